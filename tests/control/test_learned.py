"""What drafts were worth is kept across restarts, and no disk can do harm by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.control.learned import PAUSE, Learned
from gamaneh.control.survival import DraftSource, SurvivalTracker

DRAFTER = DraftSource("drafter")


def taught(accepted: int) -> SurvivalTracker:
    tracker = SurvivalTracker()
    for at in range(100):
        tracker.observe(DRAFTER, f"r{at}", 4, accepted, kind="greedy")
    return tracker


@pytest.mark.parametrize(("accepted", "low", "high"), [(4, 0.85, 1.0), (0, 0.0, 0.15)])
def test_a_new_engine_begins_with_what_the_last_one_learned(
    tmp_path: Path, accepted: int, low: float, high: float
) -> None:
    Learned(tmp_path / "costs" / "x.learned.json", taught(accepted)).keep(0.0)
    tracker = SurvivalTracker()
    assert Learned(tmp_path / "costs" / "x.learned.json", tracker).recall()
    assert low < tracker.survival(DRAFTER, "new", 1, kind="greedy")[0] < high


def test_what_was_remembered_is_soon_outweighed(tmp_path: Path) -> None:
    Learned(tmp_path / "x.json", taught(4)).keep(0.0)
    tracker = SurvivalTracker()
    Learned(tmp_path / "x.json", tracker).recall()
    for at in range(30):
        tracker.observe(DRAFTER, f"r{at}", 4, 0, kind="greedy")
    assert tracker.survival(DRAFTER, "new", 1, kind="greedy")[0] < 0.4


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 0, "survival": []}',
        '{"version": 1, "survival": [{"proposer": "drafter"}]}',
        '{"version": 1, "survival": [{"proposer": "d", "grade": 0, "kind": null, "reached": [1], "accepted": [2]}]}',
    ],
)
def test_a_file_that_cannot_be_used_counts_as_none(tmp_path: Path, content: str) -> None:
    file, tracker = tmp_path / "x.json", SurvivalTracker()
    file.write_text(content)
    assert not Learned(file, tracker).recall()
    assert tracker.survival(DRAFTER, "new", 1) == [0.5]


def test_a_folder_that_cannot_be_written_to_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where the folder should be")
    Learned(tmp_path / "costs" / "x.json", taught(4)).keep(0.0)
    assert [each.name for each in tmp_path.iterdir()] == ["costs"]


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    tracker = taught(4)
    learned = Learned(tmp_path / "x.json", tracker)
    learned.keep(0.0)
    before = learned.file.read_text()
    tracker.observe(DRAFTER, "more", 4, 0)
    learned.keep(0.5 * PAUSE)
    assert learned.file.read_text() == before
    learned.keep(PAUSE)
    assert learned.file.read_text() != before
