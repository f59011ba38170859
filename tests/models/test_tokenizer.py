"""Tokenizers from GGUF metadata and from folders: the same text back, and the same tokens as known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from gamaneh.errors import CorruptModel, InvalidRequest, UnsupportedModel
from gamaneh.models.fetch import find
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.gguf_tokenizer import PRE_TOKENIZERS, backend_from_metadata
from gamaneh.models.tokenizer import Tokenizer, tokenizer_difference

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

TEXTS = [
    "Hello, world! I'm here; you're there.",
    "سلام دنیا! می‌روم، ۱۲۳۴ کتاب.",
    "def f(x):\n    return x**2  # square\n\n\tpass\r\n",
    "👩‍👩‍👧‍👦 🇮🇷 naïve café",
    "  two  spaces , kept . ",
    "price: 12345.678",
    " ",
    "",
]

TEMPLATE = (
    "{% for message in messages %}{% if message.role not in ['user', 'system'] %}"
    "{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def byte_level(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer: control tokens, all bytes, a few merges and padding."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["h e", "l l", "he ll", "hell o", "1 2", "12 3"]
    pieces = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*control, *pieces, "<tool_call>", "[PAD]"]
    keys = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL] * 3 + [NORMAL] * len(pieces) + [USER_DEFINED, UNUSED],
        "merges": merges,
        "bos_token_id": 0,
        "eos_token_id": 2,
        **changes,
    }
    return {"tokenizer.chat_template": TEMPLATE, **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}


def sentence_piece(**changes: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece tokenizer: unknown, begin, end, all bytes, letters and a few words."""
    head = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    byte_pieces = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    words = [(piece, NORMAL) for piece in ["he", "ll", "hell", "▁hell", "▁hello", "lo", *"▁helo wrd"]]
    pieces = head + byte_pieces + words
    keys = {
        "model": "llama",
        "tokens": [piece for piece, _ in pieces],
        "token_type": [kind for _, kind in pieces],
        "scores": [0.0] * 259 + [-float(at) for at in range(len(words))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {"general.architecture": "llama"} | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(backend_from_metadata(metadata))


def pieces(made: Tokenizer, text: str) -> list[str]:
    return [made.token_text(token) for token in made.encode(text, special=False)]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_round_trips(pre: str, text: str) -> None:
    made = tokenizer(byte_level(pre))
    assert made.decode(made.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_round_trips(prefix: bool, text: str) -> None:
    made = tokenizer(sentence_piece(add_space_prefix=prefix))
    assert made.decode(made.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_bytes_of_the_tokens_are_those_of_the_text(make: Any, text: str) -> None:
    changes = {"add_space_prefix": False} if make is sentence_piece else {}
    made = tokenizer(make(**changes))
    assert b"".join(map(made.token_bytes, made.encode(text, special=False))) == text.encode()


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["123"]),
        ("smollm", ["1", "2", "3"]),
        ("qwen2", ["1", "2", "3"]),
        ("llama-bpe", ["123"]),
    ],
)
def test_digits_are_cut_as_the_pre_tokenizer_says(pre: str, expected: list[str]) -> None:
    assert pieces(tokenizer(byte_level(pre)), "123") == expected


def test_merges_are_applied_in_order() -> None:
    assert pieces(tokenizer(byte_level()), "hello hell") == ["hello", " ", "hell"]


def test_sentence_piece_merges_the_best_scores_first() -> None:
    scores = sentence_piece()["tokenizer.ggml.scores"]
    scores[264] = 1.0  # of "lo", which is then merged before "ll" can be
    assert pieces(tokenizer(sentence_piece()), "hello") == [" hello"]
    assert pieces(tokenizer(sentence_piece(scores=scores)), "hello") == [" ", "he", "l", "lo"]


def test_what_sentence_piece_does_not_know_becomes_bytes() -> None:
    made = tokenizer(sentence_piece(add_space_prefix=False))
    assert [made.token_bytes(token) for token in made.encode("é", special=False)] == [b"\xc3", b"\xa9"]


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_a_part_of_a_character_is_shown_as_the_replacement_character(make: Any) -> None:
    made = tokenizer(make())
    assert made.token_text(made.encode("é", special=False)[-1]) == "\N{REPLACEMENT CHARACTER}"


def test_control_tokens_in_the_text_are_special_and_skipped() -> None:
    made = tokenizer(byte_level())
    ids = made.encode("<|im_start|>hello<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert made.decode(ids) == "hello"
    assert made.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>"
    assert made.special_ids == {0, 1, 2}


def test_user_defined_tokens_stay_whole_but_are_text() -> None:
    made = tokenizer(byte_level())
    [token] = made.encode("<tool_call>")
    assert made.decode([token]) == "<tool_call>"
    assert made.token_bytes(token) == b"<tool_call>"


def test_an_entry_outside_the_byte_alphabet_stands_for_itself() -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    made = tokenizer(byte_level(tokens=[*tokens[:-1], "a b→"], token_type=[CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)))
    token = made.vocab()["a b→"]
    assert made.token_bytes(token) == "a b→".encode() == made.decode([token]).encode()


@pytest.mark.parametrize(
    ("kind", "visible"), [(NORMAL, True), (CONTROL, False), (USER_DEFINED, True), (UNUSED, None), (BYTE, True)]
)
def test_types_of_tokens_decide_what_is_whole_and_what_is_shown(kind: int, visible: bool | None) -> None:
    tokens = byte_level()["tokenizer.ggml.tokens"]
    types = byte_level()["tokenizer.ggml.token_type"]
    made = tokenizer(byte_level(tokens=[*tokens, "<think>"], token_type=[*types, kind]))
    whole = made.encode("a<think>b")
    if kind in (CONTROL, USER_DEFINED):
        assert len(whole) == 3
    assert made.decode(whole) == ("ab" if visible is False else "a<think>b")


def test_padding_has_no_token() -> None:
    made = tokenizer(byte_level())
    assert "[PAD]" not in made.vocab()
    assert made.vocab_size == len(byte_level()["tokenizer.ggml.tokens"]) - 1
    assert made.decode([made.vocab_size, 10**6]) == ""
    assert made.token_bytes(made.vocab_size) == b""


def test_begin_and_end_ids_are_known() -> None:
    made = tokenizer(byte_level())
    assert (made.bos_id, made.eos_ids) == (0, (2,))


def test_given_end_ids_win() -> None:
    assert Tokenizer(backend_from_metadata(byte_level()), (2, 0)).eos_ids == (2, 0)


def test_qwen_composes_characters() -> None:
    made = tokenizer(byte_level("qwen2"))
    assert made.decode(made.encode("n\N{COMBINING TILDE}")) == "ñ"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_level(), []),
        (byte_level(add_bos_token=True), [0]),
        (byte_level("llama-bpe"), [0]),
        (byte_level("llama-bpe", add_bos_token=False), []),
        (sentence_piece(), [1]),
    ],
)
def test_the_begin_token_is_added_where_the_model_wants_it(metadata: dict[str, Any], expected: list[int]) -> None:
    made = tokenizer(metadata)
    plain = made.encode("he", special=False)
    assert made.encode("he") == expected + plain


@pytest.mark.parametrize("make", [lambda: byte_level(add_bos_token=True), sentence_piece])
def test_the_begin_token_is_not_added_to_a_text_that_begins_with_it(make: Any) -> None:
    made = tokenizer(make())
    begin = made.token_text(made.bos_id or 0)
    assert made.encode(f"{begin}hello") == [made.bos_id, *made.encode("hello", special=False)]
    assert made.encode(f"{begin}{begin}he")[:3] == [made.bos_id, made.bos_id, *made.encode("he", special=False)][:3]
    assert made.encode(begin) == [made.bos_id]


def test_begin_tokens_that_a_text_holds_stay_where_none_is_added() -> None:
    made = tokenizer(byte_level())
    assert made.encode("<|endoftext|><|endoftext|>he") == [0, 0, *made.encode("he")]


def test_the_end_token_is_added_where_the_model_wants_it() -> None:
    assert tokenizer(byte_level(add_eos_token=True)).encode("hello")[-1] == 2


def test_chat_follows_the_template_up_to_the_answer() -> None:
    made = tokenizer(byte_level(add_bos_token=True))
    ids = made.chat([{"role": "user", "content": "hello"}])
    assert made.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|><|im_start|>"


def test_chat_hands_tools_to_the_template() -> None:
    made = tokenizer(byte_level())
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    ids = made.chat([{"role": "user", "content": "hello"}], tools=[tool, tool])
    assert made.decode(ids, skip_special=False) == "<|im_start|>hello<|im_end|>2<|im_start|>"


def test_messages_that_the_template_refuses_are_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match=r"messages must fit .*no such role"):
        tokenizer(byte_level()).chat([{"role": "robot", "content": "hello"}])


def test_chat_without_a_template_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="need a model with a chat template"):
        tokenizer(sentence_piece()).chat([{"role": "user", "content": "hello"}])


# -- what is refused ------------------------------------------------------------------------


def test_an_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"pre must be one of default.*got 'falcon'"):
        backend_from_metadata(byte_level("falcon"))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"must be one of gpt2, llama; got 'bert'"):
        backend_from_metadata(byte_level(model="bert"))


def test_missing_merges_are_named() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(CorruptModel, match=r"tokenizer\.ggml\.merges"):
        backend_from_metadata(metadata)


def test_missing_types_are_named() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.token_type"]
    with pytest.raises(CorruptModel, match=r"must have tokenizer\.ggml\.token_type"):
        backend_from_metadata(metadata)


def test_a_missing_pre_tokenizer_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.pre"]
    assert pieces(tokenizer(metadata), "123") == ["123"]
    assert "does not give tokenizer.ggml.pre" in caplog.text


@pytest.mark.parametrize("scores", [None, [0.0] * 5, ["x"] * 272])
def test_scores_that_do_not_fit_the_tokens_are_named(scores: list[Any] | None) -> None:
    metadata = sentence_piece()
    metadata["tokenizer.ggml.scores"] = scores and (scores * 300)[: len(metadata["tokenizer.ggml.tokens"]) - 1]
    if scores is None:
        del metadata["tokenizer.ggml.scores"]
    with pytest.raises(CorruptModel, match=r"tokenizer\.ggml\.scores"):
        backend_from_metadata(metadata)


@pytest.mark.parametrize("token", ["2", -1, 2.5])
def test_an_id_that_is_none_is_named(token: Any) -> None:
    with pytest.raises(CorruptModel, match=r"tokenizer\.ggml\.eos_token_id must hold token ids from 0 to"):
        backend_from_metadata(byte_level(eos_token_id=token))


@pytest.mark.parametrize(
    "change", [{"merges": ["h zz"]}, {"merges": ["hello"]}, {"token_type": [1, 2]}, {"eos_token_id": 10**6}]
)
def test_metadata_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel):
        backend_from_metadata(byte_level(**change))


# -- folders --------------------------------------------------------------------------------


def test_a_folder_gives_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    made = tokenizer(byte_level("smollm"))
    made.backend.save_pretrained(tmp_path)
    read = Tokenizer.from_folder(tmp_path)
    assert [read.encode(text) for text in TEXTS] == [made.encode(text) for text in TEXTS]
    assert (read.eos_ids, read.bos_id, read.special_ids) == (made.eos_ids, made.bos_id, made.special_ids)
    assert read.chat([{"role": "user", "content": "hello"}]) == made.chat([{"role": "user", "content": "hello"}])


def test_a_class_named_in_a_folder_does_not_replace_its_tokenizer_file(tmp_path: Path) -> None:
    made = tokenizer(byte_level("smollm"))
    made.backend.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": "GPT2Tokenizer"}))
    assert pieces(Tokenizer.from_folder(tmp_path), "123") == ["1", "2", "3"]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"must hold one of tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_tokenizer_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(CorruptModel, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


# -- two tokenizers -------------------------------------------------------------------------


def test_equal_tokenizers_do_not_differ() -> None:
    assert tokenizer_difference(tokenizer(byte_level()), tokenizer(byte_level())) is None


def test_more_tokens_at_the_end_are_no_difference() -> None:
    metadata = byte_level()
    longer = {
        "tokens": [*metadata["tokenizer.ggml.tokens"], "<|new|>"],
        "token_type": [*metadata["tokenizer.ggml.token_type"], CONTROL],
    }
    assert tokenizer_difference(tokenizer(metadata), tokenizer(byte_level(**longer))) is None


def test_the_first_difference_is_named() -> None:
    tokens = list(byte_level()["tokenizer.ggml.tokens"])
    tokens[2] = "<|eot_id|>"
    difference = tokenizer_difference(tokenizer(byte_level()), tokenizer(byte_level(tokens=tokens)))
    assert difference == "token 2 is '<|im_end|>' for the target but '<|eot_id|>' for the draft"


# -- the real one ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    path = find("smollm2-135m-instruct")
    if path is None:
        pytest.skip("smollm2-135m-instruct was not pulled")
    return Tokenizer.from_gguf(GgufFile(path))


def test_smollm2_has_its_published_ids(smollm2: Tokenizer) -> None:
    ids = smollm2.chat([{"role": "user", "content": "Hello"}])
    assert smollm2.encode("<|im_start|>user\nHello<|im_end|>") == [1, 4093, 198, 19556, 2]
    assert ids[-4:] == [1, 520, 9531, 198]
    assert (smollm2.vocab_size, smollm2.eos_ids) == (49152, (2,))


def test_smollm2_cuts_numbers_into_digits(smollm2: Tokenizer) -> None:
    assert pieces(smollm2, "in 2024") == ["in", " ", "2", "0", "2", "4"]


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_round_trips(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text)) == text


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@pytest.mark.parametrize("text", [*TEXTS, "hello " * 3000])
def test_the_fewest_tokens_are_no_more_than_there_are(make: Any, text: str) -> None:
    made = tokenizer(make())
    assert made.fewest_tokens(text) <= len(made.encode(text, special=False))


def test_a_long_text_is_read_as_a_short_one() -> None:
    made = tokenizer(byte_level())
    assert made.encode("hello" * 3000, special=False) == made.encode("hello", special=False) * 3000
