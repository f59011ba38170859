"""From examples to texts that the target wrote or read: what is learned from, and what is measured on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gamaneh.errors import InvalidOption
from gamaneh.models.loading import LoadedModel
from gamaneh.train.answers import AnswerPlan, answer_questions
from gamaneh.train.data import Example
from gamaneh.train.features import FeatureStore, compute_features
from gamaneh.train.runs import Workshop
from gamaneh.train.samples import Sample, answered, different, finished_samples, questions, split_held_out
from gamaneh.train.settings import DataOptions

ANSWERS = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts as tokens.

    Args:
        train: to be learned from.
        held_out: to be measured on.
        left_out: how many examples are in neither, by reason.
    """

    train: list[Sample]
    held_out: list[Sample]
    left_out: Counter[str] = field(default_factory=Counter)


def make_corpus(loaded: LoadedModel, examples: Sequence[Example], options: DataOptions, workshop: Workshop) -> Corpus:
    """Let the target answer what is open, and put everything into tokens.

    Of several processes the first one does it, the others read the file of answers.

    Raises:
        InvalidOption: the examples do not suffice, or none of them fits into the length.
        InvalidRequest: the model has no chat template, or it refuses a conversation.
        ModelError: an answer cannot be written down.
    """
    if options.max_length > loaded.config.max_context:
        limit = loaded.config.max_context
        raise InvalidOption("max_length", f"must be at most the context of {loaded.name} ({limit})", options.max_length)
    left_out: Counter[str] = Counter()
    once = different(examples)
    left_out["came before"] = len(examples) - len(once)
    spoken = [example for example in once if not example.is_silent]
    left_out["end in a system message"] = len(once) - len(spoken)
    train, held_out = split_held_out(spoken, options.held_out)
    # Every held-out prompt is answered, whatever time there is for the others, and as greedy decoding does.
    measured = replace(options, temperatures=(0.0,), answer_minutes=None)
    with workshop.accelerator.main_process_first():
        corpus = Corpus(
            held_out=_samples(loaded, held_out, measured, workshop, "answering held-out prompts", left_out),
            train=_samples(loaded, train, options, workshop, "answering prompts", left_out),
            left_out=+left_out,
        )
    if corpus.left_out:
        told = ", ".join(f"{count} {reason}" for reason, count in corpus.left_out.items())
        workshop.say(f"left out of {len(examples)} examples: {told}")
    return corpus


def corpus_features(
    loaded: LoadedModel, corpus: Corpus, layers: Sequence[int], workshop: Workshop
) -> tuple[FeatureStore, FeatureStore]:
    """What the target computes about the texts to learn from, and about the others.

    Raises:
        ModelError: it cannot be written down.
    """
    with workshop.accelerator.main_process_first():
        with workshop.bar("reading texts") as tick:
            train = compute_features(loaded, corpus.train, layers, workshop.folder, tick)
        with workshop.bar("reading held-out texts") as tick:
            return train, compute_features(loaded, corpus.held_out, layers, workshop.folder, tick)


def _samples(
    loaded: LoadedModel,
    examples: Sequence[Example],
    options: DataOptions,
    workshop: Workshop,
    title: str,
    left_out: Counter[str],
) -> list[Sample]:
    texts = [example for example in examples if not example.messages]
    closed = [example for example in examples if example.messages and not example.is_open]
    samples = finished_samples(closed, loaded.tokenizer, options.max_length)
    left_out[f"have no answer within {options.max_length} tokens"] += len(closed) - len(samples)
    samples += finished_samples(texts, loaded.tokenizer, options.max_length)
    open_ones = questions(examples, loaded.tokenizer)
    asked = [question for question in open_ones if len(question.tokens) + options.answer_tokens <= options.max_length]
    room = f"leave no room for an answer of {options.answer_tokens} in {options.max_length} tokens"
    left_out[room] += len(open_ones) - len(asked)
    if asked:
        with workshop.bar(title) as tick:
            pairs = answer_questions(loaded, asked, _plan(options), workshop.folder / ANSWERS, tick)
        left_out["were not answered in time"] += len(asked) - len(pairs)
        samples += [answered(question, answer) for question, answer in pairs]
    if not samples:
        rule = f"must leave room for a prompt and an answer of {options.answer_tokens} tokens, or for a text"
        raise InvalidOption("max_length", f"{rule}; none of {len(examples)} examples has it", options.max_length)
    return samples


def _plan(options: DataOptions) -> AnswerPlan:
    return AnswerPlan(
        max_tokens=options.answer_tokens,
        temperatures=options.temperatures,
        seed=options.seed,
        batch=options.answer_batch,
        seconds=None if options.answer_minutes is None else 60 * options.answer_minutes,
    )
