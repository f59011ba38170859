"""Advice as data: what was asked, measured, predicted and concluded. Version 1.

Times are in seconds, memory in bytes, except where a name says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gamaneh.bench.advise.candidate import Unusable
from gamaneh.bench.advise.checklist import Line
from gamaneh.bench.advise.costs import Surface
from gamaneh.bench.advise.memory_cost import Footprint
from gamaneh.bench.advise.predict import SpeedPrediction
from gamaneh.bench.advise.validate import Validation
from gamaneh.bench.advise.verdict import AdviceVerdict
from gamaneh.bench.result import Machine
from gamaneh.errors import InvalidOption

FORMAT = "gamaneh.advice"
VERSION = 1


@dataclass(frozen=True, slots=True)
class CellSeconds:
    """Repeated measurements of rounds without their drafts.

    Args:
        batch: requests at once.
        rows: candidates of all of them together.
    """

    batch: int
    rows: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What was asked.

    Args:
        requests: answered; `own` ones of the user, `recorded` ones with the answers' lengths.
        sampling: parameters of every request.
        batch: requests at once that the advice is for.
    """

    model: str
    dtype: str
    device: str
    requests: int
    categories: tuple[str, ...]
    languages: tuple[str, ...]
    own: bool
    recorded: bool
    sampling: dict[str, Any]
    batch: int
    batch_stated: bool


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """Plain decoding, one request at a time.

    Args:
        step_seconds: of a round.
        overhead_seconds: the part of it that is not the forward.
        decode_share: of the latency of whole answers.
        median_tokens, median_prompt_tokens: of answers and prompts.
    """

    step_seconds: float
    overhead_seconds: float
    decode_share: float
    median_tokens: float
    median_prompt_tokens: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate with its predictions.

    Args:
        tokenizer: of a draft model: `same` as the target's or `other`; else `none`.
        draft_step_ratio: seconds of one more candidate / seconds of a plain round.
        draft_token_seconds: of one more candidate, one request at a time.
        survival: s_1, s_2, ... at the largest draft length.
        acceptance_rate_macro: mean over the requests of each one's accepted / drafted, at the best draft length.
        prediction: at the asked number of requests at once, with the best draft length.
        by_batch: the same for other numbers.
        by_k: expected speed-up by requests at once and draft length.
        by_category, by_language: the prediction for the requests of each, with the best draft length of all.
        differing: recorded answers that are not the plain ones.
        requests, rounds: that were recorded.
    """

    title: str
    proposer: str
    draft_model: str | None
    heads: str | None
    tokenizer: str
    weight_bytes: int
    token_bytes: int
    largest_batch: int
    draft_token_seconds: float
    draft_step_ratio: float
    survival: tuple[float, ...]
    acceptance_rate_macro: float
    prediction: SpeedPrediction
    by_batch: tuple[SpeedPrediction, ...]
    by_k: dict[int, dict[int, float]]
    by_category: dict[str, SpeedPrediction]
    by_language: dict[str, SpeedPrediction]
    differing: int
    requests: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole of it.

    Args:
        candidates: best first.
        validation, memory: of the first candidate; None where there is none.
        stopped: why not everything was measured; None if it was.
    """

    format: str
    version: int
    date: str
    package: str
    machine: Machine
    setting: Setting
    plain: PlainFigures
    steps: tuple[CellSeconds, ...]
    candidates: tuple[Ranked, ...]
    unusable: tuple[Unusable, ...]
    memory: Footprint | None
    validation: Validation | None
    checklist: tuple[Line, ...]
    verdict: AdviceVerdict
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for `json.dumps`."""
        return asdict(self)


def cells_of(surface: Surface) -> tuple[CellSeconds, ...]:
    """The measurements of rounds as data."""
    return tuple(CellSeconds(batch, rows, seconds) for (batch, rows), seconds in surface.cells.items())


def read_steps(path: Path) -> Surface:
    """The measured rounds of an advice's file.

    Raises:
        InvalidOption: the file cannot be read, is no advice, is of another version, or holds no measurement.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption("costs", f"must be a readable JSON file ({error})", str(path)) from error
    head = (document.get("format"), document.get("version")) if isinstance(document, dict) else None
    if head != (FORMAT, VERSION):
        raise InvalidOption(str(path), f"must be an advice of version {VERSION}, format {FORMAT}", head)
    try:
        return Surface({_cell(entry): tuple(map(_seconds, entry["seconds"])) for entry in document["steps"]})
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidOption(
            f"{path} steps", "must hold batch, rows and seconds above 0 of each cell", str(error)
        ) from error


def _cell(entry: Mapping[str, Any]) -> tuple[int, int]:
    return int(entry["batch"]), int(entry["rows"])


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not seconds > 0:
        raise ValueError(f"{value} s")
    return seconds
