"""A tiny target with a tokenizer that has no chat template, and a place to train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gamaneh.models.loading import LoadedModel
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import Precision
from gamaneh.testing import EOS_ID, ByteTokenizer, tiny_model
from gamaneh.train.corpus import Corpus, make_corpus
from gamaneh.train.data import Example
from gamaneh.train.runs import Tick, Workshop, start_accelerator
from gamaneh.train.settings import DataOptions, LoopOptions


class PlainBytes(ByteTokenizer):
    """A single turn is a text to be continued."""

    backend = SimpleNamespace(chat_template=None)


class ChatBytes(ByteTokenizer):
    """Turns behind the first letters of their roles, answers between `A` and the end token."""

    backend = SimpleNamespace(chat_template="yes")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        turns = [self._turn(turn["role"], turn["content"]) for turn in messages]
        return [*(token for turn in turns for token in turn), ord("A")]

    def _turn(self, role: str, content: str) -> list[int]:
        return [ord(role[0].upper()), *self.encode(content), *self.eos_ids]


def tiny_target(family: str = "llama", tokenizer: ByteTokenizer | None = None) -> LoadedModel:
    return replace(tiny_model(family), tokenizer=tokenizer or PlainBytes())


def byte_tokenizer() -> Tokenizer:
    """The ids of `ByteTokenizer` in a tokenizer of the library, which can be written to files."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pieces = {piece: at for at, piece in enumerate([*sorted(alphabet), "<bos>", "<eos>", "<pad>", "<unk>"])}
    fast = FastTokenizer(models.BPE(vocab=pieces, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<eos>"), [EOS_ID])


class Listener:
    """Bars and sayings of a run, remembered."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.ticks: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def bar(self, title: str) -> Iterator[Tick]:
        ticks = self.ticks.setdefault(title, [])
        yield lambda done, total: ticks.append((done, total))

    def workshop(self, folder: Path) -> Workshop:
        accelerator = start_accelerator("float32", Precision(weights="float32"), "cpu")
        return Workshop(accelerator, folder, self.bar, self.said.append)


def workshop(folder: Path) -> Workshop:
    return Listener().workshop(folder)


SHORT = DataOptions(max_length=64, held_out=3, answer_tokens=20, temperatures=(0.0,))
QUICK = LoopOptions(epochs=2, batch_tokens=256, validate_every=2, learning_rate=1e-2)


def examples(count: int = 9) -> list[Example]:
    return [Example.from_prompt(f"question {number}") for number in range(count)]


def tiny_corpus(loaded: LoadedModel, folder: Path, count: int = 9, options: DataOptions = SHORT) -> Corpus:
    return make_corpus(loaded, examples(count), options, workshop(folder))
