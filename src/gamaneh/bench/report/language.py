"""The language of a report: its words, its digits, its direction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gamaneh.bench.report.words import WORDS
from gamaneh.bench.statistics import Interval
from gamaneh.errors import InvalidOption

_PERSIAN = str.maketrans("0123456789.%", "۰۱۲۳۴۵۶۷۸۹٫٪")
_LEFT_TO_RIGHT, _END = "\u2066", "\u2069"
_MISSING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)\S*(?:\+00:00|Z)")


@dataclass(frozen=True, slots=True)
class Language:
    """Words and figures as one reader wants them.

    Raises:
        InvalidOption: there are no words for `code`.
    """

    code: str = "en"

    def __post_init__(self) -> None:
        if self.code not in WORDS:
            raise InvalidOption("language", f"must be one of {', '.join(WORDS)}", self.code)

    @property
    def direction(self) -> Literal["ltr", "rtl"]:
        return "rtl" if self.code == "fa" else "ltr"

    @property
    def rtl(self) -> bool:
        return self.direction == "rtl"

    @property
    def arrow(self) -> str:
        """From one figure to the next."""
        return " ← " if self.rtl else " → "

    def say(self, key: str, **values: str) -> str:
        """The words for `key`."""
        return WORDS[self.code][key].format(**values)

    def name(self, name: str) -> str:
        """The words for a name out of a run, such as a category; itself if it is not known."""
        return WORDS[self.code].get(name, name)

    def listed(self, parts: Iterable[str]) -> str:
        """Parts with commas between them."""
        return ("، " if self.rtl else ", ").join(parts)

    def digits(self, text: str) -> str:
        """A figure with its unit in the digits of the language, kept together where writing runs the other way."""
        return self.isolated(text.translate(_PERSIAN)) if self.code == "fa" else text

    def isolated(self, text: str) -> str:
        """A text that runs from left to right, whatever stands beside it."""
        return f"{_LEFT_TO_RIGHT}{text}{_END}" if self.rtl else text

    def moment(self, text: str) -> str:
        """A date; with its time to the minute where `text` is a moment of UTC as ISO 8601 writes it."""
        found = _MOMENT.fullmatch(text)
        if found is None:
            return self.digits(text)
        date, time = found.groups()
        return self.say("moment", date=self.digits(date), time=self.digits(f"{time} UTC"))

    def number(self, value: float | None, places: int = 2) -> str:
        """With thousands apart and so many decimal places."""
        if value is None:
            return _MISSING
        text = f"{value:,.{places}f}".replace(",", "\u202f")
        return self.digits(text)

    def significant(self, value: float | None, figures: int = 3) -> str:
        """With so many figures, and no zeros behind them."""
        return _MISSING if value is None else self.digits(_significant(value, figures))

    def times(self, value: float | None) -> str:
        """A ratio."""
        return _MISSING if value is None else self.digits(f"{value:.2f}×")

    def tick_times(self, value: float) -> str:
        """A ratio on an axis."""
        return self.digits(f"{_significant(value)}×")

    def interval(self, value: Interval | None) -> str:
        """A ratio and how sure it is."""
        if value is None:
            return _MISSING
        return self.digits(f"{value.value:.2f}× ({value.low:.2f} – {value.high:.2f})")

    def share(self, value: float | None) -> str:
        """Of one hundred."""
        return _MISSING if value is None else self.digits(f"{value:.0%}")

    def seconds(self, value: float | None) -> str:
        """In the unit that suits."""
        if not value:
            return _MISSING if value is None else self.digits("0")
        text = f"{_significant(value)} s" if value >= 1 else f"{_significant(value * 1e3)} ms"
        return self.digits(text)

    def bytes(self, value: int | float | None) -> str:
        """In the unit that suits, by thousands."""
        if value is None:
            return _MISSING
        if value < 1:
            return self.digits("0")
        at = min(_magnitude(value) // 3, len(_UNITS) - 1)
        return self.digits(f"{_significant(value / 1000**at)} {_UNITS[at]}")


def _significant(value: float, figures: int = 3) -> str:
    places = 0 if value == 0 else max(figures - 1 - _magnitude(value), 0)
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _magnitude(value: float) -> int:
    """Power of ten of the first figure."""
    return int(f"{abs(value):e}".split("e")[1])
