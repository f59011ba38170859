"""How a measurement sees a model: prompts as token ids, and what the run compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gamaneh.bench.comparison import Setup
from gamaneh.options import SamplingParams
from gamaneh.sampling.rules import choose_rule

if TYPE_CHECKING:
    from gamaneh.engine.llm import LLM


def as_tokens(llm: LLM, text: str, chat: bool | None = None) -> list[int]:
    """Token ids of a prompt, in the model's chat template or not; None puts it there if there is one.

    Raises:
        InvalidRequest: the model has no chat template.
    """
    if chat or (chat is None and llm.tokenizer.backend.chat_template is not None):
        return llm.tokenizer.chat([{"role": "user", "content": text}])
    return llm.tokenizer.encode(text)


def describe_setup(llm: LLM, params: SamplingParams, model: str | None = None) -> Setup:
    """What a comparison with `llm` compares; `model` is the name that the user gave it."""
    speculation = llm.speculation
    has_probs = llm.engine.gives_probs(speculation)
    rule = choose_rule(speculation.rule, params, has_probs, speculation)
    return Setup(
        model=model or llm.loaded.name,
        dtype=str(llm.loaded.dtype).removeprefix("torch."),
        device=str(llm.loaded.device),
        proposer=speculation.proposer,
        k=speculation.draft_length,
        rule=rule.name,
        exact=rule.exact,
        invariant=llm.engine.invariant,
        threads=torch.get_num_threads(),
    )
