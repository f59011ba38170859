from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gamaneh.errors import CorruptModel, ModelError
from gamaneh.train import checkpoints
from gamaneh.train.checkpoints import Checkpoints, Course

pytestmark = pytest.mark.usefixtures("one_thread")


def module(value: float = 0.0) -> nn.Module:
    linear = nn.Linear(2, 2)
    nn.init.constant_(linear.weight, value)
    return linear


def value(of: nn.Module) -> float:
    return float(of.get_parameter("weight")[0, 0].detach())


def optimizer(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(of.parameters())


def save(kept: Checkpoints, step: int, best: int, value: float = 0.0) -> None:
    trained = module(value)
    kept.save(Course(step=step, best_step=best), trained, optimizer(trained))


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "run")

    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2)):
        save(kept, step, best, value=step)
    loaded = module()
    kept.load_best(kept.resume(module(), optimizer(loaded)), loaded)

    assert kept.steps() == [2, 4]
    assert value(loaded) == 2.0


def test_a_new_run_starts_at_step_0(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).resume(module(), optimizer(module())) == Course()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoints(tmp_path / "run")
    save(kept, 1, 1, value=7)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ModelError, match=r"have room \(No space left on device\)"):
        patch.setattr(checkpoints, "save_file", full)
        save(kept, 2, 2)
    loaded = module()

    assert kept.resume(loaded, optimizer(loaded)).step == 1
    assert value(loaded) == 7.0
    assert [path.name for path in kept.folder.iterdir()] == ["step-0000001"]


def test_an_interruption_while_writing_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoints(tmp_path / "run")
    save(kept, 1, 1)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch, "save", interrupted)
        save(kept, 2, 2)

    assert [path.name for path in kept.folder.iterdir()] == ["step-0000001"]


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.COURSE])
@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    kept = Checkpoints(tmp_path)
    save(kept, 3, 3)
    (tmp_path / "step-0000003" / name).write_bytes(content)

    with pytest.raises(CorruptModel, match="step-0000003"):
        kept.resume(module(), optimizer(module()))
