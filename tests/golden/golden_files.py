"""Recorded outputs: read, compared, written so that a change is a readable difference."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "outputs"
WIDTH = 116
TOLERANCE = 2e-3
"""Logits differ in their last bits from machine to machine; what is recorded has four decimals."""

RECORD = "If the change is wanted, run `python tests/golden/record.py` and say why in the commit."


def recorded(area: str) -> dict[str, Any]:
    """The scenarios of one area as they were recorded; none if they never were."""
    path = FOLDER / f"{area}.json"
    values: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return values


def write(area: str, scenarios: Mapping[str, Any]) -> bool:
    """Record an area. A number that is within the tolerance of what stands there stays as it was.

    Returns:
        Whether the file has changed.
    """
    path = FOLDER / f"{area}.json"
    before = recorded(area)
    kept = {name: before[name] if same(before.get(name), value) else value for name, value in scenarios.items()}
    text = rendered(kept) + "\n"
    changed = not path.exists() or path.read_text("utf-8") != text
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return changed


def plain_data(value: Any) -> Any:
    """The value as JSON gives it back, numbers rounded."""
    return _rounded(json.loads(json.dumps(value)))


def same(expected: Any, actual: Any) -> bool:
    """Whether two values are equal, but for the last bits of numbers."""
    return next(differences(expected, actual), None) is None


def differences(expected: Any, actual: Any, where: str = "") -> Iterator[str]:
    """Where two values differ, one line each."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            yield from differences(expected.get(key, "(absent)"), actual.get(key, "(absent)"), f"{where}/{key}")
    elif _nested(expected) and _nested(actual) and len(expected) == len(actual):
        for at, (old, new) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(old, new, f"{where}[{at}]")
    elif not _equal(expected, actual):
        yield f"{where}:\n    recorded {json.dumps(expected)}\n    now      {json.dumps(actual)}"


def check(area: str, name: str, actual: Any) -> None:
    """Raise AssertionError with every difference between a scenario and its record."""
    found = list(differences(recorded(area).get(name, "(not recorded)"), plain_data(actual), name))
    assert not found, "\n".join([*found, RECORD])


def rendered(value: Any, indent: int = 0) -> str:
    """JSON with one short thing on a line."""
    inline = json.dumps(value, ensure_ascii=False)
    if len(inline) + indent <= WIDTH or not value:
        return inline
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key)}: {rendered(entry, indent + 1)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    if isinstance(value, list) and _nested(value):
        return "[\n" + ",\n".join(pad + rendered(entry, indent + 1) for entry in value) + "\n" + " " * indent + "]"
    return inline


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, dict | list | float) for entry in value)


def _equal(expected: Any, actual: Any) -> bool:
    numbers = isinstance(expected, float) or isinstance(actual, float)
    if numbers and isinstance(expected, int | float) and isinstance(actual, int | float):
        return math.isclose(expected, actual, rel_tol=0.0, abs_tol=TOLERANCE)
    return type(expected) is type(actual) and expected == actual


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value
