"""The one place where an engine and its parts are built: from a backend, or from loaded models."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch

from gamaneh.backends.choose import backend_for, cache_dtype, is_library_model
from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import Quarantine
from gamaneh.control.learned import Learned
from gamaneh.control.router import Router
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import PLAIN, Backend, Clock, Proposer
from gamaneh.engine.calibration import WORTH_KEEPING, Progress, calibrate, costs_file
from gamaneh.engine.detokenizer import SupportsText
from gamaneh.engine.drafting import Drafters
from gamaneh.engine.engine import Engine
from gamaneh.engine.scheduler import Scheduler
from gamaneh.errors import InvalidOption
from gamaneh.heads.locate import HeadsSource, open_heads
from gamaneh.kv.cache import bytes_per_block
from gamaneh.machine_limits import available_memory
from gamaneh.models.config import DecoderConfig
from gamaneh.models.fetch import cache_folder
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.proposers.recipe import Ingredients, ReadyModel
from gamaneh.proposers.registry import REGISTRY, build_proposers

LOGGER = logging.getLogger(__name__)

DEFAULT_TOKENS_PER_REQUEST = 2048
MEMORY_SHARE = 0.3
"""Share of the free memory that a cache of automatic size may take; untouched parts of it cost nothing."""


def assemble(
    backend: Backend,
    tokenizer: SupportsText,
    *,
    proposers: Mapping[str, Proposer] | None = None,
    speculation: SpeculationOptions | None = None,
    options: EngineOptions | None = None,
    clock: Clock = time.perf_counter,
) -> Engine:
    """Build the parts of an engine and put them together.

    Args:
        backend: where the target runs.
        tokenizer: turns emitted tokens into text.
        proposers: those that requests may use, by name.
        speculation: how requests speculate that do not say otherwise.
        options: limits.
        clock: seconds; every time that the engine tells or measures is its.
    """
    options, quarantine = options or EngineOptions(), Quarantine()
    engine = Engine(
        tokenizer,
        scheduler=Scheduler(backend, options),
        drafting=Drafters(quarantine, backend.caps.vocab_size),
        router=Router(quarantine),
        controller=Controller(SurvivalTracker(), CostModel(backend.computed_rows), quarantine),
        speculation=speculation or SpeculationOptions(),
        options=options,
        clock=clock,
    )
    for proposer in (proposers or {}).values():
        engine.register(proposer)
    return engine


def build_engine(
    target: LoadedModel,
    draft: LoadedModel | None,
    speculation: SpeculationOptions,
    options: EngineOptions,
    measuring: Progress = lambda done, total: None,
    heads: Sequence[HeadsSource] = (),
    proposers: bool = True,
) -> Engine:
    """An engine for these models.

    Args:
        heads: networks on top of the target, at most one set of each kind.
        proposers: False builds none, whatever the options say of them: an engine that cannot speculate.
        measuring: called with the number of timed forwards and their total, where costs are measured.

    Raises:
        TokenizerMismatch: draft and target have different tokenizers, and no text leads from one to the other.
        InvalidOption: the options do not fit the models.
    """
    invariant = default_invariant(target) if options.invariant is None else options.invariant
    if is_library_model(target):
        _check_library_target(speculation, options, heads)
    ready = _ready(target, options, invariant=invariant, prefix_cache=options.prefix_cache)
    parts = Ingredients(
        options=speculation,
        target=ready,
        draft_model=None if draft is None else _ready(draft, options, invariant=False, prefix_cache=False),
        heads=open_heads(heads, target),
    )
    engine = assemble(
        ready.backend,
        target.tokenizer,
        proposers=build_proposers(parts) if proposers else {},
        speculation=speculation,
        options=options,
    )
    for name, proposer in engine.proposers.items():
        if proposer.needs.about:
            LOGGER.info("%s: %s", name, proposer.needs.about)
    if speculation.proposer != PLAIN and speculation.draft_length is None:
        _calibrate(engine, target, draft, parts, measuring)
        if target.weight_bytes >= WORTH_KEEPING:
            _recall(engine, target, draft, [str(each) for each in heads])
    return engine


def _check_library_target(
    speculation: SpeculationOptions, options: EngineOptions, heads: Sequence[HeadsSource]
) -> None:
    """Refuse what needs to see inside a model that the library runs."""
    if heads:
        raise InvalidOption("heads", "must be left out with backend hf, which shows no layers", len(heads))
    inside = sorted(name for name, recipe in REGISTRY.items() if "heads" in recipe.given)
    if speculation.proposer in inside:
        raise InvalidOption("proposer", f"must be none of {', '.join(inside)} with backend hf", speculation.proposer)
    if options.invariant:
        raise InvalidOption("invariant", "cannot be had with backend hf, whose bits depend on the rows beside", True)


def default_invariant(target: LoadedModel) -> bool:
    """Where fixed tiles are known to cost little on every machine: bfloat16 on a CPU."""
    return target.decoder.device.type == "cpu" and target.decoder.dtype == torch.bfloat16


def _ready(model: LoadedModel, options: EngineOptions, *, invariant: bool, prefix_cache: bool) -> ReadyModel:
    num_blocks = options.kv_blocks or automatic_blocks(model.config, options, cache_dtype(model))
    backend = backend_for(model, num_blocks, options.block_size, invariant=invariant, prefix_cache=prefix_cache)
    return ReadyModel(model, backend)


def automatic_blocks(config: DecoderConfig, options: EngineOptions, dtype: torch.dtype) -> int:
    """Blocks for a full batch of ordinary requests and at least one of full length, if memory allows."""
    context = min(config.max_context, options.max_context or config.max_context)
    tokens = max(options.max_batch * min(context, DEFAULT_TOKENS_PER_REQUEST), context)
    size = bytes_per_block(config.num_layers, options.block_size, config.num_kv_heads, config.head_dim, dtype)
    affordable = int(available_memory() * MEMORY_SHARE) // size
    return max(min(-(-tokens // options.block_size), affordable), 1)


def _recall(engine: Engine, target: LoadedModel, draft: LoadedModel | None, heads: Sequence[str]) -> None:
    """Go on with what an earlier engine of these models and proposers learned, and keep what this one learns."""
    facts = {**_facts(target), "heads": heads, "options": repr(engine.speculation), "learned": True}
    file = costs_file(cache_folder() / "costs", facts, None if draft is None else _facts(draft))
    engine.controller.learned = Learned(file, engine.controller.survival)
    engine.controller.learned.recall()


def _calibrate(
    engine: Engine, target: LoadedModel, draft: LoadedModel | None, parts: Ingredients, progress: Progress
) -> None:
    """The controller starts from facts. Small models are measured faster than a file is read."""
    file = None
    if target.weight_bytes >= WORTH_KEEPING:
        facts = {**_facts(target), "invariant": engine.invariant}
        file = costs_file(cache_folder() / "costs", facts, None if draft is None else _facts(draft))
    drafting = None if parts.draft_model is None else parts.draft_model.backend
    calibrate(engine.cost, engine.backend, drafting, file=file, progress=progress)


def _facts(model: LoadedModel) -> dict[str, object]:
    """What decides about the time of a forward, the machine apart."""
    return {
        "config": asdict(model.config),
        "weight_bytes": model.weight_bytes,
        "dtype": str(model.dtype),
        "device": str(model.device),
    }


def check_devices(draft_device: str | None, draft: object) -> None:
    """A device for a draft model makes sense only with a draft model."""
    if draft_device is not None and draft is None:
        raise InvalidOption("draft_device", "must come with a draft model", draft_device)
