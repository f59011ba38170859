from collections.abc import Sequence

from rich.text import Text

from gamaneh.cli.painting import STYLES, Painter, legend
from gamaneh.core import Origin

ACCEPTED, BONUS, CORRECTION, PLAIN = Origin.ACCEPTED, Origin.BONUS, Origin.CORRECTION, Origin.PLAIN


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def spans(text: Text) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], str(span.style)) for span in text.spans]


def test_each_token_has_the_colour_of_its_origin() -> None:
    painted = Painter(decode).paint(b"ab", [ACCEPTED, BONUS], "ab")

    assert spans(painted) == [("a", STYLES[ACCEPTED]), ("b", STYLES[BONUS])]


def test_a_character_of_several_tokens_has_the_colour_of_the_last() -> None:
    painted = Painter(decode).paint("é".encode(), [ACCEPTED, CORRECTION], "é")

    assert spans(painted) == [("é", STYLES[CORRECTION])]


def test_text_that_comes_later_keeps_its_tokens_colour() -> None:
    painter = Painter(decode)
    painter.paint(b"ab", [ACCEPTED, BONUS], "a")

    assert spans(painter.paint(b"c", [PLAIN], "bc")) == [("b", STYLES[BONUS]), ("c", STYLES[PLAIN])]


def test_text_beyond_its_tokens_is_not_lost() -> None:
    painted = Painter(decode).paint(b"a", [ACCEPTED], "a...")

    assert painted.plain == "a..."


def test_a_long_text_is_painted_whole() -> None:
    text = "یک متن بلند " * 40
    painter = Painter(decode)

    painted = [painter.paint([byte], [PLAIN], "").plain for byte in text.encode()]

    assert "".join(painted) + painter.paint([], [], text).plain == text


def test_the_legend_names_every_origin() -> None:
    assert all(origin in legend().plain for origin in Origin)
