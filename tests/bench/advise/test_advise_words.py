import string

import pytest

from gamaneh.bench.advise.checklist import CODES, Status
from gamaneh.bench.advise.language import LANGUAGES, as_language
from gamaneh.bench.advise.words import SENTENCES, STATUS, TITLES
from gamaneh.errors import InvalidOption


def fields(sentence: str) -> set[str | None]:
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name is not None}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_line_and_status_has_its_words(language: str) -> None:
    assert set(TITLES[as_language(language)]) == set(CODES)
    assert set(STATUS[as_language(language)]) == {status.value for status in Status}


def test_both_languages_say_the_same_sentences_with_the_same_figures() -> None:
    assert {key: fields(one) for key, one in SENTENCES["en"].items()} == {
        key: fields(one) for key, one in SENTENCES["fa"].items()
    }


def test_persian_is_written_in_persian() -> None:
    for sentence in (*SENTENCES["fa"].values(), *TITLES["fa"].values()):
        assert any("\u0600" <= letter <= "\u06ff" for letter in sentence)


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(InvalidOption, match="language must be one of en, fa, got 'de'"):
        as_language("de")
