"""From the options of a command to an `LLM` and a prompt. Slow to import: torch and transformers come with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gamaneh.backends.choose import load, open_for
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice
from gamaneh.cli.pull import located
from gamaneh.cli.terminal import Tick, count_bar
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine, check_devices
from gamaneh.engine.engine import Engine
from gamaneh.engine.llm import LLM
from gamaneh.heads.locate import check_heads, kind_of_heads
from gamaneh.models.catalogue import names
from gamaneh.models.loading import DRAFT, TARGET, LoadedModel, OpenModel, Role
from gamaneh.options import Precision
from gamaneh.proposers.registry import check_proposer

LOGGER = logging.getLogger(__name__)

Bar = Callable[[str], AbstractContextManager[Tick]]
"""What is being done -> something that takes how far it is."""


def open_llm(model: ModelChoice, proposer: ProposerChoice, *, max_batch: int = 1) -> LLM:
    """Load what the options name; catalogue models that are missing are fetched first.

    Raises:
        GamanehError: an option, a file or a model is wrong.
    """
    speculation, options = proposer.speculation(), model.engine(max_batch=max_batch)
    precision = model.precision()
    target = file_or_name(model.model)
    draft = None if proposer.draft_model is None else file_or_name(proposer.draft_model)
    heads = proposer.heads or ()
    check_heads(heads)
    kinds = [kind_of_heads(name) for name in heads]
    if proposer.only_heads and len(kinds) == 1:
        speculation = replace(speculation, proposer=kinds[0])
    check_proposer(speculation.proposer)
    with count_bar(f"loading {model.model}") as tick:
        llm = LLM(
            target,
            draft_model=draft,
            heads=heads,
            speculation=speculation,
            options=options,
            precision=precision,
            draft_precision=proposer.draft_precision(precision),
            device=model.device,
            draft_device=proposer.draft_device,
            backend=model.backend,
            progress=tick,
        )
    _tell_of_cut(model, llm.engine)
    return llm


def open_engine(
    model: ModelChoice, proposer: ProposerChoice, bar: Bar = count_bar, **limits: Any
) -> tuple[LoadedModel, Engine]:
    """Load what the options name and build an engine that nothing else listens to.

    `bar` shows how far each thing is that takes long.

    It takes whichever proposer pays, unless one was asked for by its name, or lookup or plain decoding.

    Raises:
        GamanehError: an option, a file or a model is wrong.
    """
    options, precision = model.engine(**limits), model.precision()
    check_devices(proposer.draft_device, proposer.draft_model)
    # Everything is opened before the weights of anything are read, so that mistakes are told at once.
    check_heads(proposer.heads or ())
    check_proposer(proposer.speculation().proposer)
    open_target = open_for(file_or_name(model.model), model.backend)
    draft_model = proposer.draft_model
    open_draft = None if draft_model is None else open_for(file_or_name(draft_model), model.backend, DRAFT)
    target = _loaded(open_target, TARGET, precision, model.backend, model.device, bar)
    draft_device = proposer.draft_device or str(target.device)
    of_draft = proposer.draft_precision(precision)
    draft = None if open_draft is None else _loaded(open_draft, DRAFT, of_draft, model.backend, draft_device, bar)
    speculation = proposer.speculation()
    if not (proposer.lookup or proposer.plain or proposer.proposer):
        speculation = replace(speculation, proposer=AUTO)
    with bar("measuring costs") as tick:
        engine = build_engine(target, draft, speculation, options, tick, proposer.heads or ())
    _tell_of_cut(model, engine)
    return target, engine


def _tell_of_cut(model: ModelChoice, engine: Engine) -> None:
    """Say so where a request can have less context than was asked for."""
    asked, there = model.max_context, engine.max_context
    if asked is not None and there < asked:
        LOGGER.warning(
            "max_context is cut to %d, which is what model and KV cache hold; %d was asked for", there, asked
        )


def _loaded(
    model: OpenModel | Path, role: Role, precision: Precision, backend: str, device: str, bar: Bar
) -> LoadedModel:
    with bar(f"loading {model.name}") as tick:
        return load(model, precision=precision, backend=backend, device=device, progress=tick, role=role)


def file_or_name(model: str) -> str:
    """The file of a catalogue model, fetched if need be; any other name as it is."""
    return str(located(model)) if model in names() else model
