"""Examples as tokens: which of them may be learned from, and which examples are kept aside to measure with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gamaneh.errors import InvalidOption
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.prefix import common_prefix
from gamaneh.train.data import Example, Message

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Text that the target reads once, to be learned from.

    Args:
        tokens: token ids.
        spans: [start, stop) of the tokens that may be learned from.
        category: what its figures are grouped by.
    """

    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    category: str

    @property
    def num_learned(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def cut(self, length: int) -> Sample:
        """The first `length` tokens."""
        spans = ((start, min(stop, length)) for start, stop in self.spans if start < length)
        return Sample(self.tokens[:length], tuple(spans), self.category)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt that the target has to answer.

    Args:
        tokens: token ids, up to where the answer begins.
    """

    tokens: tuple[int, ...]
    category: str


def different(examples: Iterable[Example]) -> list[Example]:
    """The examples without those that came before, word for word."""
    seen: dict[tuple[object, ...], Example] = {}
    for example in examples:
        turns = tuple((turn["role"], turn["content"]) for turn in example.messages)
        seen.setdefault((turns, example.text), example)
    return list(seen.values())


def split_held_out(examples: Sequence[Example], count: int) -> tuple[list[Example], list[Example]]:
    """What is learned from, and `count` examples to measure with; whatever their order, the same ones.

    Examples with the same words are never on both sides.

    Raises:
        InvalidOption: so few examples cannot be divided.
    """
    by_words: dict[str, list[Example]] = {}
    for example in examples:
        by_words.setdefault(_fingerprint(example), []).append(example)
    groups = [by_words[key] for key in sorted(by_words)]
    if len(groups) <= count:
        raise InvalidOption("held_out", f"must be below the number of different examples ({len(groups)})", count)
    return _flat(groups[count:]), _flat(groups[:count])


def questions(examples: Iterable[Example], tokenizer: Tokenizer) -> list[Question]:
    """Those examples that wait for an answer.

    Raises:
        InvalidRequest: the model has no chat template, or it refuses a conversation.
    """
    return [
        Question(tuple(_prompt_tokens(tokenizer, example.messages)), example.category)
        for example in examples
        if example.is_open
    ]


def finished_samples(examples: Iterable[Example], tokenizer: Tokenizer, max_length: int) -> list[Sample]:
    """Those examples that are whole: conversations with their answers, and texts in pieces of `max_length` tokens.

    Raises:
        InvalidRequest: the model has no chat template, or it refuses a conversation.
    """
    closed = [example for example in examples if not example.is_open]
    return [
        sample.cut(max_length)
        for example in closed
        for sample in _samples(example, tokenizer, max_length)
        if sample.cut(max_length).num_learned
    ]


def answered(question: Question, answer: Sequence[int]) -> Sample:
    """A prompt with the answer that the target gave."""
    start = len(question.tokens)
    return Sample((*question.tokens, *answer), ((start, start + len(answer)),), question.category)


def _flat(groups: Iterable[Sequence[Example]]) -> list[Example]:
    return [example for group in groups for example in group]


def _fingerprint(example: Example) -> str:
    return hashlib.sha256((example.prompt or example.text).encode()).hexdigest()


def _samples(example: Example, tokenizer: Tokenizer, max_length: int) -> Iterator[Sample]:
    if example.messages:
        yield _conversation(example, tokenizer)
        return
    tokens = tokenizer.encode(example.text)
    for start in range(0, len(tokens), max_length):
        piece = tokens[start : start + max_length]
        # Nothing comes before the first token, so nothing could have guessed it.
        yield Sample(tuple(piece), ((1, len(piece)),) if len(piece) > 1 else (), example.category)


def _conversation(example: Example, tokenizer: Tokenizer) -> Sample:
    """All answers are learned from that stand in the last prompt just as they were given."""
    *before, last = example.messages
    tokens = _prompt_tokens(tokenizer, before)
    spans = [span for at, turn in enumerate(before) if (span := _span(tokens, before[:at], turn, tokenizer))]
    answer = [*tokenizer.encode(last["content"], special=False), *tokenizer.eos_ids[:1]]
    spans.append((len(tokens), len(tokens) + len(answer)))
    return Sample((*tokens, *answer), tuple(spans), example.category)


def _span(tokens: Sequence[int], before: Sequence[Message], turn: Message, tokenizer: Tokenizer) -> Span | None:
    """Where an earlier answer stands; None where the template renders the past in another way."""
    if turn["role"] != "assistant" or not before:
        return None
    prompt, answer = _prompt_tokens(tokenizer, before), tokenizer.encode(turn["content"], special=False)
    # A prompt may end in markers, of thinking for example, that are left out where its answer is past.
    least = common_prefix(prompt, tokens)
    for start in range(least, len(prompt) + 1):
        stop = start + len(answer)
        if list(tokens[start:stop]) == answer:
            return start, stop + (stop < len(tokens) and tokens[stop] in tokenizer.eos_ids)
    return None


def _prompt_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Without a chat template, a single turn is a text to be continued."""
    if tokenizer.backend.chat_template is None and len(messages) == 1:
        return tokenizer.encode(messages[0]["content"])
    return tokenizer.chat(messages)
