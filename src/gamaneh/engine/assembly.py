"""From loaded models to an engine: caches sized, runners and proposers built, costs measured."""

from __future__ import annotations

import time

import psutil
import torch

from gamaneh.control.cost import CostModel
from gamaneh.core import PLAIN
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidOption, TokenizerMismatch
from gamaneh.kv.cache import KVCache, bytes_per_block
from gamaneh.kv.manager import KVManager
from gamaneh.kv.pool import BlockPool
from gamaneh.models.batch import TRASH_SLOT, Feed
from gamaneh.models.config import DecoderConfig
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner, Runner
from gamaneh.models.tokenizer import tokenizer_difference
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.proposers.registry import DraftModel, Ingredients, build_proposers

DEFAULT_TOKENS_PER_REQUEST = 2048
MEMORY_SHARE = 0.3
"""Share of the free memory that a cache of automatic size may take; untouched parts of it cost nothing."""

MEASURED_ROWS = (1, 2, 4, 8, 16, 32)


def build_engine(
    target: LoadedModel,
    draft: LoadedModel | None,
    speculation: SpeculationOptions,
    options: EngineOptions,
) -> Engine:
    """An engine for these models.

    Raises:
        TokenizerMismatch: draft and target differ in a token, which is named.
        InvalidOption: the options do not fit the models.
    """
    invariant = default_invariant(target) if options.invariant is None else options.invariant
    kv, runner = _runner(target, options, invariant=invariant, prefix_cache=options.prefix_cache)
    parts = Ingredients(
        options=speculation,
        vocab_size=runner.vocab_size,
        special_ids=target.tokenizer.special_ids,
        draft_model=None if draft is None else _draft_model(target, draft, options),
    )
    proposers = build_proposers(parts)
    engine = Engine(runner, kv, target.tokenizer, proposers=proposers, speculation=speculation, options=options)
    if speculation.proposer != PLAIN and speculation.draft_length is None:
        _measure_costs(engine.cost, runner, parts.draft_model)
    return engine


def default_invariant(target: LoadedModel) -> bool:
    """Where fixed tiles cost little: bfloat16 on a CPU. In float32 they cost more than a tenth."""
    return target.decoder.device.type == "cpu" and target.decoder.dtype == torch.bfloat16


def _runner(
    model: LoadedModel, options: EngineOptions, *, invariant: bool, prefix_cache: bool
) -> tuple[KVManager, DecoderRunner]:
    config, decoder = model.config, model.decoder
    num_blocks = options.kv_blocks or automatic_blocks(config, options, decoder.dtype)
    cache = KVCache(
        config.num_layers,
        num_blocks,
        options.block_size,
        config.num_kv_heads,
        config.head_dim,
        decoder.dtype,
        decoder.device,
    )
    pool = BlockPool(num_blocks, options.block_size, prefix_cache=prefix_cache)
    return KVManager(pool, cache), DecoderRunner(decoder, cache, invariant=invariant)


def automatic_blocks(config: DecoderConfig, options: EngineOptions, dtype: torch.dtype) -> int:
    """Blocks for a full batch of ordinary requests and at least one of full length, if memory allows."""
    context = min(config.max_context, options.max_context or config.max_context)
    tokens = max(options.max_batch * min(context, DEFAULT_TOKENS_PER_REQUEST), context)
    size = bytes_per_block(config.num_layers, options.block_size, config.num_kv_heads, config.head_dim, dtype)
    affordable = int(psutil.virtual_memory().available * MEMORY_SHARE) // size
    return max(min(-(-tokens // options.block_size), affordable), 1)


def _draft_model(target: LoadedModel, draft: LoadedModel, options: EngineOptions) -> DraftModel:
    difference = tokenizer_difference(target.tokenizer, draft.tokenizer)
    if difference is not None:
        raise TokenizerMismatch(
            f"the tokenizers of target {target.name} and draft model {draft.name} must be the same: {difference}"
        )
    kv, runner = _runner(draft, options, invariant=False, prefix_cache=False)
    return DraftModel(runner, kv)


def _measure_costs(cost: CostModel, target: Runner, draft: DraftModel | None) -> None:
    """Time forwards of some sizes, so that the controller starts from facts; two runs each, the first to warm up."""
    for rows in sorted({target.computed_rows(rows) for rows in MEASURED_ROWS}):
        cost.anchor_verify(rows, _forward_seconds(target, rows))
    if draft is not None:
        one_token = _forward_seconds(draft.runner, 1)
        for depth in (1, 8):
            cost.anchor_draft("draft_model", depth, depth * one_token)


def _forward_seconds(runner: Runner, rows: int) -> float:
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        runner.forward([Feed([0] * rows, 0, 0, [TRASH_SLOT] * rows, logit_rows=rows)])
        seconds = time.perf_counter() - started
    return seconds


def check_devices(draft_device: str | None, draft: object) -> None:
    """A device for a draft model makes sense only with a draft model."""
    if draft_device is not None and draft is None:
        raise InvalidOption("draft_device", "must come with a draft model", draft_device)
