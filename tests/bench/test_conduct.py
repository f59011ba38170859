"""A run as a document: complete, valid by its schema, read again as it was written, and honest when it is not whole."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from fake_sides import FakeClient, broken, make_plan, make_ways, run_of

from gamaneh.bench import conduct as conducting
from gamaneh.bench.conduct import (
    INTERRUPTED,
    CannotWrite,
    command_line,
    make_price,
    rounded,
    to_text,
    write_csv,
    write_json,
)
from gamaneh.bench.machine import hash_model
from gamaneh.bench.record import Counters
from gamaneh.bench.result import Load, Price, Run, read_run, schema
from gamaneh.errors import InvalidOption

SCHEMA = Path(__file__).parents[2] / "docs" / "bench.schema.json"


@pytest.fixture(scope="module")
def run() -> Run:
    return run_of()


def test_a_run_is_valid_by_the_documented_schema(run: Run) -> None:
    documented = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(documented)
    jsonschema.validate(json.loads(to_text(run)), documented)


def test_the_documented_schema_is_that_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == schema(), "run docs/reference.py to write it anew"


def test_a_run_is_read_as_it_was_written(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(run, path)
    read = read_run(path)
    assert rounded(read.to_json()) == rounded(run.to_json())
    assert read.points[1].load == Load("closed", 4.0, 8, 2)


def test_everything_stands_in_it(run: Run) -> None:
    assert (run.format, run.version, run.complete, run.stopped) == ("gamaneh.bench", 1, True, None)
    assert [point.load.level for point in run.points] == [1.0, 4.0]
    assert run.equality is not None and run.equality.compared == run.equality.equal == 32
    assert run.points[0].whole.plain.goodput is not None
    assert run.points[0].whole.plain.cost_per_million is not None
    assert run.provenance.prompts.count == 8
    assert {"speedup", "ttft", "survival"} <= run.formulas.keys()
    assert run.fairness[-1].name == "output_tokens"


def test_a_newer_field_is_passed_over(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**run.to_json(), "mood": "good"}))
    assert read_run(path).name == "a test"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: "{broken", "must be a readable JSON file"),
        (lambda values: "[]", "format gamaneh.bench, got None"),
        (lambda values: {**values, "format": "other"}, "format gamaneh.bench, got 'other'"),
        (lambda values: {**values, "version": 2}, "must be of version 1, got 2"),
        (lambda values: {key: value for key, value in values.items() if key != "points"}, "points field required"),
        (lambda values: {**values, "complete": "perhaps"}, "complete input should be a valid boolean.*got 'perhaps'"),
    ],
)
def test_what_is_no_run_is_refused_by_file_and_field(change, message: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    changed = change(run.to_json())
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(InvalidOption, match=f"run.json.*{message}"):
        read_run(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="must be a readable JSON file"):
        read_run(tmp_path / "absent.json")


def test_numbers_are_cut_to_what_they_are_worth() -> None:
    assert rounded({"a": 1.23456789e-5, "b": [123456.789, 7], "c": True}) == {
        "a": 1.23457e-5,
        "b": [123457.0, 7],
        "c": True,
    }


class TestEarlyEnds:
    def test_failures_are_listed_and_the_rest_is_kept(self) -> None:
        ways = make_ways(speculative=FakeClient("speculative", broken))
        kept: list[Run] = []
        run = run_of(ways, kept=kept)
        assert not run.complete
        assert run.stopped is not None and "5 requests in a row failed on the speculative side" in run.stopped
        assert len(run.failures) == 5
        assert run.points[0].whole.plain.left_out == {"other_side": 5}
        assert run.points[0].whole.speculative.left_out == {"error": 5}
        assert run.points[0].whole.speedup is None
        assert run.cautions[0].code == "partial"
        assert len(kept) == 1
        jsonschema.validate(json.loads(to_text(run)), schema())

    def test_an_interrupt_keeps_what_there_is(self) -> None:
        asked: list[str] = []

        def interrupt(ask) -> str:
            asked.append(ask.text)
            if len(asked) == 6:
                raise KeyboardInterrupt
            return "one two three"

        run = run_of(make_ways(speculative=FakeClient("speculative", interrupt)))
        assert (run.stopped, run.complete) == (INTERRUPTED, False)
        assert run.points[0].whole.speculative.requests == 4

    def test_sides_that_differ_are_refused_before_anything_is_asked(self) -> None:
        asked: list[tuple[str, str]] = []
        ways = make_ways(asked=asked)
        ways = ways._replace(plain=replace(ways.plain, setup=replace(ways.plain.setup, precision="float32")))
        with pytest.raises(InvalidOption, match="precision must be the same on both sides"):
            run_of(ways)
        assert asked == []

    def test_sides_that_differ_are_flagged_where_that_is_allowed(self) -> None:
        ways = make_ways()
        ways = ways._replace(plain=replace(ways.plain, setup=replace(ways.plain.setup, sampling={"top_k": 3})))
        run = run_of(ways, allow_unequal=True)
        assert "different_sampling" in [caution.code for caution in run.cautions]
        assert [check.name for check in run.fairness if check.equal is False] == ["sampling"]


def test_memory_is_read_at_the_end() -> None:
    async def read() -> Counters:
        return Counters(None, 1.0, 900, 300, {"target": 500, "draft_model": 70}, target_kv=40)

    ways = make_ways()
    memory = run_of(ways._replace(speculative=replace(ways.speculative, counters=read))).speculative_memory
    assert (memory.peak_resident, memory.peak_device, memory.target, memory.target_kv) == (900, 300, 500, 40)
    assert memory.proposers == {"draft_model": 70}


class TestFiles:
    def test_the_table_has_a_row_for_each_load_group_and_side(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "run.csv"
        write_csv(run, path)
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == sum(2 * len(point.groups) for point in run.points)
        assert {row["side"] for row in rows} == {"plain", "speculative"}
        assert rows[0]["speedup"] == "" and float(rows[1]["speedup"]) > 0

    def test_a_file_that_cannot_be_written_leaves_the_old_one(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run.json"
        path.write_text("old")

        def full(self: Path, *_: object, **__: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(CannotWrite, match=r"run\.json cannot be written: No space left on device"):
            write_json(run, path)
        assert path.read_text() == "old"
        assert [each.name for each in tmp_path.iterdir()] == ["run.json"]

    def test_a_folder_that_is_not_there_is_told(self, run: Run, tmp_path: Path) -> None:
        with pytest.raises(CannotWrite, match="No such file or directory"):
            write_json(run, tmp_path / "nowhere" / "run.json")


class TestProvenance:
    @pytest.mark.parametrize("key", [["--key", "secret"], ["--key=secret"]])
    def test_keys_are_not_written_down(self, key: list[str]) -> None:
        shown = command_line(["/usr/bin/gamaneh", "bench", *key, "--name", "two words"])
        assert "secret" not in shown
        assert shown.startswith(("gamaneh bench --key", "gamaneh bench '--key=")) and shown.endswith(
            "--name 'two words'"
        )

    def test_a_model_is_hashed_as_a_file_or_by_its_weight_files(self, tmp_path: Path) -> None:
        (tmp_path / "b.safetensors").write_bytes(b"two")
        (tmp_path / "a.safetensors").write_bytes(b"one")
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "both.gguf.txt").write_bytes(b"onetwo")
        assert hash_model(tmp_path) == hash_model(tmp_path / "both.gguf.txt")
        assert hash_model(tmp_path / "nothing") is None

    def test_outside_a_checkout_there_is_no_commit(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conducting, "git", lambda *arguments: None)
        assert conducting.describe_provenance(make_plan(), ()).commit is None

    def test_versions_and_machine_are_stamped(self, run: Run) -> None:
        assert {"torch", "transformers"} <= run.provenance.versions.keys()
        assert run.provenance.machine.cores >= 1
        assert run.provenance.seeds == {"arrivals": 0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_price(0.0, "EUR", "2026-01-01"), r"price must be a number above 0, got 0\.0"),
        (lambda: make_price(1.0, "EUR", None), "price_date must be the day of the price, as YYYY-MM-DD, got None"),
        (lambda: make_price(1.0, "EUR", "soon"), "price_date must be the day of the price"),
    ],
)
def test_a_price_without_a_value_or_a_date_is_refused(make, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()


def test_a_price_has_a_date() -> None:
    assert make_price(1.5, "EUR", "2026-11-29") == Price(1.5, "EUR", "2026-11-29")
