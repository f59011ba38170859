"""A run as files: JSON, whole or not at all, and a table of comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gamaneh.bench.result import Distribution, Figures, Group, Point, Run
from gamaneh.errors import GamanehError

_DIGITS = 6


class CannotWrite(GamanehError):
    """A file cannot be written."""


def write_json(run: Run, path: Path) -> None:
    """
    Raises:
        CannotWrite: the disk is full, the folder is not there, or it must not be written to.
    """
    _write(path, to_text(run) + "\n")


def write_csv(run: Run, path: Path) -> None:
    """One row for each load, group of prompts and side; what is not known is empty.

    Raises:
        CannotWrite: as above.
    """
    rows = list(_rows(run))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["load"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def check_folder(path: Path) -> None:
    """Find out before measuring, not after.

    Raises:
        CannotWrite: the file's folder is not there.
    """
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"{path} cannot be written: its folder is not there")


def to_text(run: Run) -> str:
    """JSON on one line; six digits of each figure are more than any measurement has."""
    return json.dumps(rounded(run.to_json()), ensure_ascii=False, allow_nan=False)


def rounded(value: Any) -> Any:
    """Plain data with its numbers cut to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _write(path: Path, text: str) -> None:
    """Beside the file first, so that a full disk leaves the old one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from error


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    for point in run.points:
        for group in point.groups:
            for name, figures in (("plain", group.plain), ("speculative", group.speculative)):
                yield rounded({**_where(run, point, group, name), **_figures(figures)})


def _where(run: Run, point: Point, group: Group, side: str) -> dict[str, Any]:
    speedup = group.speedup if side == "speculative" else None
    return {
        "run": run.name,
        "load": point.load.pattern,
        "level": point.load.level,
        "group": group.kind,
        "name": group.name,
        "side": side,
        "prompts": group.prompts,
        "speedup": None if speedup is None else speedup.value,
        "speedup_low": None if speedup is None else speedup.low,
        "speedup_high": None if speedup is None else speedup.high,
    }


def _figures(figures: Figures) -> dict[str, Any]:
    speculation, goodput = figures.speculation, figures.goodput
    return {
        "requests": figures.requests,
        "prompt_tokens": figures.prompt_tokens,
        "output_tokens": figures.output_tokens,
        "seconds": figures.seconds,
        "tokens_per_second": figures.tokens_per_second,
        "requests_per_second": figures.requests_per_second,
        "decode_tokens_per_second": figures.decode_tokens_per_second,
        **_spread("ttft", figures.ttft),
        **_spread("itl", figures.itl),
        **_spread("tpot", figures.tpot),
        **_spread("e2e", figures.e2e),
        "tokens_per_character": figures.tokens_per_character,
        "queue_seconds": figures.split.queue,
        "prefill_seconds": figures.split.prefill,
        "decode_seconds": figures.split.decode,
        "draft_seconds": figures.split.draft,
        "verify_seconds": figures.split.verify,
        "acceptance_rate": None if speculation is None else speculation.acceptance_rate,
        "acceptance_rate_macro": None if speculation is None else speculation.acceptance_rate_macro,
        "tokens_per_round": None if speculation is None else speculation.tokens_per_round,
        "utilisation": figures.utilisation,
        "goodput_requests_per_second": None if goodput is None else goodput.requests_per_second,
        "goodput_tokens_per_second": None if goodput is None else goodput.tokens_per_second,
        "cost_per_million": figures.cost_per_million,
    }


def _spread(name: str, spread: Distribution | None) -> dict[str, Any]:
    ranks = ("mean", "p50", "p95", "p99")
    return {f"{name}_{rank}": None if spread is None else getattr(spread, rank) for rank in ranks}
