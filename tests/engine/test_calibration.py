"""Costs are measured once per model and machine, and scaled to the pace of the day."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.backends.paged import PagedBackend
from gamaneh.control.cost import CostModel
from gamaneh.engine.calibration import MEASURED_ROWS, REPEATS, calibrate, costs_file, measure
from gamaneh.kv import BlockPool, KVManager
from gamaneh.testing import SimulatedClock, TimedRunner, hashed

VOCAB = 20


class Machine:
    """A target and a draft model on a machine of some pace."""

    def __init__(self, pace: float = 1.0, tile: int = 1) -> None:
        self.clock = SimulatedClock()
        self.target, self.draft = (
            PagedBackend(runner, KVManager(BlockPool(4, 16), runner.cache))
            for runner in (
                TimedRunner(hashed(VOCAB), VOCAB, self.clock, lambda rows, _: pace * (1 + rows / 16), tile=tile),
                TimedRunner(hashed(VOCAB), VOCAB, self.clock, lambda rows, _: pace * 0.1),
            )
        )

    def calibrate(self, file: Path | None = None, *, with_draft: bool = True) -> CostModel:
        cost = CostModel(self.target.computed_rows)
        calibrate(cost, self.target, self.draft if with_draft else None, file=file, clock=self.clock)
        return cost


def test_measured_costs_are_what_forwards_take() -> None:
    cost = Machine().calibrate()
    assert cost.verify_seconds(1) == pytest.approx(1 + 1 / 16)
    assert cost.verify_seconds(12) == pytest.approx(1 + 12 / 16)
    assert cost.draft_seconds("draft_model", 5) == pytest.approx(0.5)


def test_sizes_that_are_computed_alike_are_measured_once() -> None:
    assert list(measure(Machine(tile=16).target, None).verify) == [16, 32, 64]


def test_progress_is_told() -> None:
    machine, seen = Machine(), []
    measure(machine.target, machine.draft, clock=machine.clock, progress=lambda *counts: seen.append(counts))
    total = (len(MEASURED_ROWS) + 1) * (1 + REPEATS)
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_what_was_measured_is_kept_and_scaled_to_todays_pace(tmp_path: Path) -> None:
    file = tmp_path / "costs" / "x.json"
    Machine().calibrate(file)
    slower = Machine(pace=3.0)
    cost = slower.calibrate(file)
    assert cost.verify_seconds(16) == pytest.approx(6.0)
    assert cost.draft_seconds("draft_model", 1) == pytest.approx(0.3)
    assert len(slower.target.model.forwards) == 1 + REPEATS
    assert slower.draft.model.forwards == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"verify": {"1": -1}, "draft_token": 0.1}', '{"verify": {}, "draft_token": 1}']
)
def test_a_file_that_cannot_be_used_is_written_anew(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    assert Machine().calibrate(file).verify_seconds(16) == pytest.approx(2.0)
    assert file.read_text() != content


def test_a_file_without_a_draft_model_does_not_serve_one(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    Machine().calibrate(file, with_draft=False)
    assert Machine().calibrate(file).knows("draft_model")


def test_a_folder_that_cannot_be_written_to_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where the folder should be")
    assert Machine().calibrate(tmp_path / "costs" / "x.json").verify_seconds(16) == pytest.approx(2.0)


def test_the_file_is_named_after_everything_that_decides(tmp_path: Path) -> None:
    base = {"config": {"layers": 2}, "dtype": "float32"}
    files = {
        costs_file(tmp_path, base, None),
        costs_file(tmp_path, {**base, "dtype": "bfloat16"}, None),
        costs_file(tmp_path, base, base),
    }
    assert len(files) == 3
    assert costs_file(tmp_path, base, None) in files
