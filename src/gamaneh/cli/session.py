"""From the options of a command to an `LLM` and a prompt. Slow to import: torch and transformers come with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gamaneh.bench.comparison import Setup
from gamaneh.cli.options import ModelChoice, ProposerChoice
from gamaneh.cli.pull import located
from gamaneh.cli.terminal import count_bar
from gamaneh.engine.assembly import default_invariant
from gamaneh.engine.llm import LLM
from gamaneh.models.catalogue import names
from gamaneh.options import SamplingParams
from gamaneh.sampling.rules import choose_rule


def open_llm(model: ModelChoice, proposer: ProposerChoice, *, max_batch: int = 1) -> LLM:
    """Load what the options name; catalogue models that are missing are fetched first.

    Raises:
        GamanehError: an option, a file or a model is wrong.
    """
    speculation, options = proposer.speculation(), model.engine(max_batch=max_batch)
    target = file_or_name(model.model)
    draft = None if proposer.draft_model is None else file_or_name(proposer.draft_model)
    with count_bar(f"loading {model.model}") as tick:
        return LLM(
            target,
            draft_model=draft,
            speculation=speculation,
            options=options,
            dtype=model.dtype,
            device=model.device,
            draft_device=proposer.draft_device,
            progress=tick,
        )


def file_or_name(model: str) -> str:
    """The file of a catalogue model, fetched if need be; any other name as it is."""
    return str(located(model)) if model in names() else model


def as_tokens(llm: LLM, text: str, chat: bool | None) -> Sequence[int]:
    """Token ids of a prompt, in the model's chat template or not; None puts it there if there is one.

    Raises:
        InvalidRequest: the model has no chat template.
    """
    if chat or (chat is None and llm.tokenizer.backend.chat_template is not None):
        return llm.tokenizer.chat([{"role": "user", "content": text}])
    return llm.tokenizer.encode(text)


def describe_setup(llm: LLM, model: str, params: SamplingParams) -> Setup:
    """What a comparison with `llm` compares."""
    speculation = llm.speculation
    rule = choose_rule(speculation.rule, params, draft_has_probs=True, options=speculation)
    return Setup(
        model=model,
        dtype=str(llm.loaded.dtype).removeprefix("torch."),
        device=str(llm.loaded.device),
        proposer=speculation.proposer,
        k=speculation.draft_length,
        rule=rule.name,
        exact=rule.exact,
        invariant=default_invariant(llm.loaded) if llm.options.invariant is None else llm.options.invariant,
        threads=torch.get_num_threads(),
    )
