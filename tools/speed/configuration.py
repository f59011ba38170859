"""What is measured, and with how much effort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.prompt_set import Prompt
from gamaneh.engine.llm import LLM
from gamaneh.options import EngineOptions, Precision, SamplingParams
from tools.cases import Case


@dataclass(frozen=True, slots=True)
class Configuration:
    """One target in one type of numbers, with a draft model or not.

    Args:
        model, draft_model: a folder, a hub id, a `.gguf` file or a catalogue name.
    """

    model: str
    draft_model: str | None
    dtype: str

    @property
    def title(self) -> str:
        models = self.model if self.draft_model is None else f"{self.model} + {self.draft_model}"
        return f"{models}, {self.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        tokens: emitted in each answer.
        repeats: pairs of answers, and rounds of forwards, beside a first one that is dropped.
        prompts: most prompts of one category.
        context: tokens in the cache before a forward is timed.
    """

    tokens: int = 96
    repeats: int = 6
    prompts: int = 5
    context: int = 200


QUICK = Effort(tokens=12, repeats=2, prompts=1)
"""Shows that everything runs; the figures mean little."""


def open_llm(configuration: Configuration) -> LLM:
    """Load the models, on the CPU.

    Raises:
        ModelError: a model cannot be found, read or used.
    """
    return LLM(
        configuration.model,
        draft_model=configuration.draft_model,
        options=EngineOptions(max_batch=1),
        precision=Precision(weights=configuration.dtype),
        device="cpu",
    )


def fixed_length(tokens: int) -> SamplingParams:
    """Greedy, and exactly so many tokens, so that two ways of decoding do the same work."""
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


def make_cases(llm: LLM, prompts: Sequence[Prompt], *categories: str, limit: int | None = None) -> list[Case]:
    """The first `limit` prompts of each category as token ids, in the chat template if the model has one."""
    chosen = [[prompt for prompt in prompts if prompt.category == category][:limit] for category in categories]
    return [
        Case(prompt.id, prompt.category, as_tokens(llm.tokenizer, prompt.prompt), prompt.reference)
        for group in chosen
        for prompt in group
    ]
