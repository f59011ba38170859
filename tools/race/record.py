"""The record of a race: calls that each ran a part of the course, and what all their laps say together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from gamaneh import __version__
from gamaneh.errors import GamanehError
from tools.race.contestants import OURS
from tools.race.laps import Lap
from tools.race.outcome import OUR_PLAIN, THEIR_PLAIN, Group, aims_of, as_data, groups_of, growth, step_times

FORMAT, VERSION = "gamaneh.race", 2


@dataclass(frozen=True, slots=True)
class Setting:
    """What calls must have in common for their laps to be one race.

    Args:
        machine: without what changes from call to call.
        files: name and bytes of the target and the draft model.
    """

    machine: Mapping[str, Any]
    peer: Mapping[str, Any]
    files: Mapping[str, Any]


def document_of(setting: Setting, run: Mapping[str, Any], laps: Sequence[Lap], before: Any = None) -> dict[str, Any]:
    """What one call measured, together with the calls before it.

    Args:
        run: how it was called, and what it measured beside laps: its `date`, `bandwidth`, `starts` and `first_ttft`
            are read here.
        before: the document that its laps are added to; None begins one.

    Raises:
        GamanehError: that document is of another format, machine, peer or model.
    """
    runs, all_laps = [run], list(laps)
    if before is not None:
        _check_alike(setting, before)
        earlier = [Lap(**lap) for lap in before["laps"]]
        # Ratios are taken within a round: what ran in another call ran on another minute's machine.
        first = 1 + max((lap.round for lap in earlier), default=-1)
        all_laps = [*earlier, *(replace(lap, round=first + lap.round) for lap in laps)]
        runs = [*before["runs"], run]
    groups = groups_of(all_laps)
    bandwidth = median(one["bandwidth"] for one in runs)
    starts = _latest(runs, "starts")
    size = setting.files["target"]["bytes"]
    steps = step_times(groups, size, bandwidth)
    aims = aims_of(groups, steps, median(one["starts"][OURS]["ready_seconds"] for one in runs), size)
    return {
        "format": FORMAT,
        "version": VERSION,
        "date": run["date"],
        "gamaneh": __version__,
        **asdict(setting),
        "bandwidth": bandwidth,
        "runs": runs,
        "starts": starts,
        "first_ttft": _latest(runs, "first_ttft"),
        "groups": as_data(groups),
        "steps": [asdict(step) for step in steps],
        "growth": {way: growth(groups, way) for way in (OUR_PLAIN, THEIR_PLAIN)},
        "aims": [{**asdict(aim), "met": aim.met} for aim in aims],
        "laps": [asdict(lap) for lap in all_laps],
    }


def command_line(words: Sequence[str]) -> str:
    """Return a command as it is recorded: files by their names, as their folders are this machine's own."""
    return shlex.join(word.rpartition("/")[2] if word.startswith("/") else word for word in words)


def groups_in(document: Mapping[str, Any]) -> list[Group]:
    """The groups of all laps of a document."""
    return groups_of([Lap(**lap) for lap in document["laps"]])


def _check_alike(setting: Setting, before: Any) -> None:
    if not isinstance(before, dict) or (before.get("format"), before.get("version")) != (FORMAT, VERSION):
        raise GamanehError(f"--add must name a file of {FORMAT}, version {VERSION}")
    for name, ours in asdict(setting).items():
        if before[name] != ours:
            raise GamanehError(
                f"--add must name a race with the same {name}, got {before[name]!r:.300}, here {ours!r:.300}"
            )


def _latest(runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """What the last call that has it says of each server or way."""
    return {key: value for run in runs for key, value in run[name].items()}
