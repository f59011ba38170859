"""Engines over tiny targets whose heads know some texts by heart, so that drafts are accepted and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from conftest import assert_idle, run
from torch.nn import functional as F
from under_test import kept, tiny_model

from gamaneh import testing
from gamaneh.core import StepReport
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.heads.artifact import Artifact, mark_target, tensors_of
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.heads.trainable import TrainBatch
from gamaneh.kv import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions

TEXT = b"the cat sat on the mat and the cat sat on the hat; "
PROMPTS = {"a": list(TEXT * 2), "b": list(TEXT[:9]), "c": [7], "d": list(TEXT * 3)[5:130]}
KNOWN = "ab"
"""Prompts whose greedy outputs the heads know."""

STEPS, RATE = 60, 0.02
RANKS = [[0.5, 0.2, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.05]]


def params_for(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=5, max_tokens=32, ignore_eos=True)


def engine_for(
    family: str,
    heads: Artifact | None,
    dtype: torch.dtype = torch.float32,
    *,
    k: int | None = 3,
    num_blocks: int = 64,
    step_tokens: int = 256,
    rule: str = "auto",
) -> Engine:
    """An engine that drafts with these heads, or not at all."""
    proposer = "none" if heads is None else heads.kind
    speculation = SpeculationOptions(
        proposer=proposer,
        draft_length=k,
        rule=rule,  # type: ignore[arg-type]
        proposer_options={} if proposer in ("none", "medusa") else {"min_confidence": 0.0},
    )
    options = EngineOptions(max_batch=8, step_tokens=step_tokens, kv_blocks=num_blocks, invariant=True)
    target = tiny_model(family, dtype=dtype)
    return build_engine(target, None, speculation, options, heads=[made_for(target, heads)] if heads else [])


def made_for(target: LoadedModel, heads: Artifact) -> Artifact:
    """The same heads for a target that keeps the weights that they were trained on in another format."""
    return replace(heads, target=mark_target(target))


@kept
def plain_outputs(family: str, temperature: float, dtype: torch.dtype = torch.float32) -> Mapping[str, list[int]]:
    """Each prompt alone, in one piece, without speculation."""
    return {
        name: run(engine_for(family, None, dtype), {name: (prompt, params_for(temperature))})[name].tokens
        for name, prompt in PROMPTS.items()
    }


def outputs(engine: Engine, names: str, temperature: float) -> dict[str, list[int]]:
    results = run(engine, {name: (PROMPTS[name], params_for(temperature)) for name in names})
    assert_idle(engine)
    return {name: result.tokens for name, result in results.items()}


def expected(family: str, names: str, temperature: float, dtype: torch.dtype = torch.float32) -> dict[str, list[int]]:
    plain = plain_outputs(family, temperature, dtype)
    return {name: plain[name] for name in names}


def watch(engine: Engine) -> list[StepReport]:
    """The reports of all rounds to come."""
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    return reports


@kept
def learned_heads(family: str, kind: str, **shape: Any) -> Artifact:
    """Heads that know the greedy outputs of some prompts by heart."""
    target = testing.tiny_model(family)  # heads are trained on torch
    texts = [[*PROMPTS[name], *plain_outputs(family, 0.0)[name]] for name in KNOWN]
    torch.manual_seed(0)
    heads = HEAD_KINDS[kind].blank(shape, target, None)
    batches = [text_batch(target, text, heads.hidden_layers) for text in texts]
    optimiser = torch.optim.Adam(heads.module().parameters(), lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.stack([loss for batch in batches for loss in _losses(heads.draft_logits(batch), batch)]).sum().backward()
        optimiser.step()
    whole = HEAD_KINDS[kind].whole_shape(shape, target)
    tensors = {name: tensor.detach() for name, tensor in tensors_of(heads).items()}
    return Artifact(kind, whole, mark_target(target), tensors, quality={"ranks": RANKS})


def chains_only(heads: Artifact) -> Artifact:
    """The same heads without what trees are made by."""
    return replace(heads, quality={})


def text_batch(target: LoadedModel, tokens: Sequence[int], layers: Sequence[int]) -> TrainBatch:
    """A text as the target read it."""
    config = target.config
    pages = KVCache(config.num_layers, 32, 16, config.num_kv_heads, config.head_dim, target.dtype)
    runner = DecoderRunner(target.decoder, pages, invariant=False)
    feed = Placed(tokens, 0, len(tokens), range(16, 16 + len(tokens)))
    hidden = runner.forward([feed], taps=layers).hidden[0].clone()
    ids = torch.tensor([list(tokens)])
    return TrainBatch(ids, hidden[None], torch.ones_like(ids, dtype=torch.bool))


def _losses(logits: Sequence[torch.Tensor], batch: TrainBatch) -> list[torch.Tensor]:
    labels = [batch.tokens[0, 2 + level :] for level in range(len(logits))]
    return [F.cross_entropy(own[0, : len(label)], label) for own, label in zip(logits, labels, strict=True)]
