"""The first layers of the target draft over its cache, and leave nothing there that the verify would read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import ProposalRow, Use
from gamaneh.engine.assembly import build_engine
from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.exit_head import ExitHead, blank_exit, load_exit
from gamaneh.heads.trainable import TrainBatch
from gamaneh.kv import BlockPool, KVCache, KVManager
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.early_exit import EarlyExitProposer
from gamaneh.proposers.exit_choice import (
    ExitMeasure,
    best_exit,
    candidate_layers,
    choose_exit,
    measure_exits,
)
from gamaneh.proposers.exits import Exit, OwnExit, TrainedExit
from gamaneh.proposers.tree import Style
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import BYTE_VOCAB, tiny_heads, tiny_model

TOKENS = [(7 * at + 3) % 251 for at in range(40)]
DEPTH = 3


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model("llama")


def cached(target: LoadedModel, tokens: Sequence[int] = TOKENS) -> tuple[DecoderRunner, KVManager]:
    """The target's runner and cache as in a round: all tokens but one are read, and room is reserved."""
    config = target.config
    cache = KVCache(config.num_layers, 16, 16, config.num_kv_heads, config.head_dim, target.dtype)
    runner, kv = DecoderRunner(target.decoder, cache, invariant=False), KVManager(BlockPool(16, 16), cache)
    kv.admit("r", tokens)
    kv.reserve("r", len(tokens) - 1)
    runner.forward([Placed(tokens[:-1], 0, 0, kv.slots("r", 0, len(tokens) - 1))])
    kv.commit("r", tokens, len(tokens) - 1)
    kv.reserve("r", 1 + DEPTH)
    return runner, kv


def row(k: int = DEPTH, **params: Any) -> ProposalRow:
    sampling = SamplingParams(**params)
    sampler = RequestSampler(sampling, vocab_size=BYTE_VOCAB, prompt=TOKENS[:1], tokens=TOKENS, eos_ids=(), seed=0)
    return ProposalRow("r", TOKENS, k, k, sampler, Use.TARGET)


def shallow(target: LoadedModel, head: ExitHead | None, count: int) -> tuple[int, ...]:
    """Greedy tokens of the first layer and a way out, the whole text again for each."""
    text = list(TOKENS)
    for _ in range(count):
        runner, _ = cached(target, [*text, 0])
        feed = Placed(text, 0, 0, range(16, 16 + len(text)))
        forward = runner.forward([feed], taps=(1,), num_layers=1)
        logits = forward.logits[0][-1] if head is None else head(forward.hidden[0][-1, 0])
        found = int(logits.argmax())
        ids = None if head is None else head.draft_ids()
        text.append(found if ids is None else int(ids[found]))
    return tuple(text[len(TOKENS) :])


def exits(target: LoadedModel, backend: PagedBackend) -> dict[str, tuple[Exit, ExitHead | None]]:
    whole, part = (
        load_exit(tiny_heads(target, "early_exit", num_layers=1, draft_vocab=size), target) for size in (None, 30)
    )
    return {
        "own": (OwnExit(backend, 1), None),
        "trained": (TrainedExit(backend, whole, target.decoder), whole),
        "reduced": (TrainedExit(backend, part, target.decoder), part),
    }


@pytest.mark.parametrize("kind", ["own", "trained", "reduced"])
def test_drafts_are_those_of_the_first_layers(target: LoadedModel, kind: str) -> None:
    runner, kv = cached(target)
    exit_, head = exits(target, PagedBackend(runner, kv))[kind]
    (draft,) = EarlyExitProposer(exit_).propose([row()])
    assert draft.tokens == shallow(target, head, DEPTH)


def test_the_verify_computes_what_it_would_without_a_draft(target: LoadedModel) -> None:
    """CASES kind 31: keys of refused candidates stand behind the tokens, where nobody looks."""
    feeds = []
    for drafts in (False, True):
        runner, kv = cached(target)
        if drafts:
            EarlyExitProposer(OwnExit(PagedBackend(runner, kv), 1)).propose([row()])
        feed = Placed([TOKENS[-1], 9], len(TOKENS) - 1, 0, kv.slots("r", 0, len(TOKENS) + 1), None, (-1,), 2)
        feeds.append(runner.forward([feed]).logits[0])
    assert torch.equal(*feeds)


def test_drafts_end_where_the_exit_is_unsure(target: LoadedModel) -> None:
    runner, kv = cached(target)
    assert len(EarlyExitProposer(OwnExit(PagedBackend(runner, kv), 1), style=Style(1.0)).propose([row()])[0]) == 1


def test_nothing_but_the_way_out_takes_memory(target: LoadedModel) -> None:
    runner, kv = cached(target)
    memory = {
        kind: EarlyExitProposer(exit_).memory_bytes()
        for kind, (exit_, _) in exits(target, PagedBackend(runner, kv)).items()
    }
    assert memory["own"] == 0
    assert 0 < memory["trained"] < memory["reduced"]


def test_a_trained_exit_begins_as_the_target_s_head(target: LoadedModel) -> None:
    head = blank_exit({"num_layers": 1}, target, None)
    hidden = torch.randn(5, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head(hidden), target.decoder.logits(hidden, [5]), atol=1e-5, rtol=1e-5)


def test_every_draft_position_is_guessed_alike(target: LoadedModel) -> None:
    head = blank_exit({"num_layers": 1, "depth": 3}, target, torch.arange(9))
    tokens = torch.tensor([TOKENS[:12]])
    hidden = torch.randn(1, 12, 1, target.config.hidden_size, generator=torch.Generator().manual_seed(0))
    logits = head.draft_logits(TrainBatch(tokens, hidden, torch.ones_like(tokens, dtype=torch.bool)))
    assert [part.shape for part in logits] == [(1, 12, 9)] * 3
    for step, part in enumerate(logits, start=1):
        torch.testing.assert_close(part[:, : 12 - step], head(hidden[:, step:, 0]))
    sum(part.sum() for part in logits).backward()
    assert all(parameter.grad is not None for parameter in head.module().parameters())


@pytest.mark.parametrize(("field", "value"), [("num_layers", 2), ("num_layers", 0), ("width", 0), ("depth", 0)])
def test_a_shape_that_breaks_a_rule_is_named(target: LoadedModel, field: str, value: int) -> None:
    with pytest.raises(InvalidOption, match=field):
        blank_exit({field: value}, target, None)
    good = tiny_heads(target, "early_exit")
    with pytest.raises(CorruptModel, match="shape"):
        load_exit(Artifact(good.kind, {**good.shape, field: value}, good.target, good.tensors), target)


def test_speed_up_is_that_of_the_formula() -> None:
    """Leviathan et al. 2023, theorem 3.8: (1 - a^(k + 1)) / ((1 - a) (k c + 1))."""
    measure = ExitMeasure(layer=3, agreement=0.8, cost=0.2)
    assert measure.speedup(4) == pytest.approx((1 - 0.8**5) / ((1 - 0.8) * (4 * 0.2 + 1)))
    assert measure.speedup(measure.best_length()) == max(measure.speedup(length) for length in range(1, 16))


def test_the_best_exit_weighs_agreement_against_cost() -> None:
    cheap, dear, useless = ExitMeasure(2, 0.5, 0.1), ExitMeasure(6, 0.9, 0.9), ExitMeasure(1, 0.0, 0.05)
    assert best_exit([useless, dear, cheap]) is cheap


def test_exits_are_measured_layer_by_layer(target: LoadedModel) -> None:
    ticks = iter(range(1000))
    whole = tiny_model("llama")
    (measure,) = measure_exits(whole, clock=lambda: float(next(ticks)))
    assert measure.layer == 1
    assert 0.0 <= measure.agreement <= 1.0
    assert measure.cost == 1.0


def test_the_last_layer_agrees_with_itself(target: LoadedModel) -> None:
    assert [measure.agreement for measure in measure_exits(target, [2])] == [1.0]


def test_candidates_are_layers_below_the_last() -> None:
    assert candidate_layers(2) == [1]
    assert candidate_layers(30) == [3, 7, 11, 15, 18, 22, 26]


def test_the_choice_says_why(target: LoadedModel) -> None:
    runner, kv = cached(target)
    trained = tiny_heads(target, "early_exit", num_layers=1)
    assert choose_exit(target, PagedBackend(runner, kv), 1, None)[1] == "after 1 of 2 layers, as asked"
    assert (
        choose_exit(target, PagedBackend(runner, kv), None, trained)[1]
        == "after 1 of 2 layers, for which it was trained"
    )
    assert "measured" in choose_exit(target, PagedBackend(runner, kv), None, None)[1]


def test_a_layer_that_cannot_be_left_is_refused(target: LoadedModel) -> None:
    runner, kv = cached(target)
    with pytest.raises(InvalidOption, match="exit_layer must be below"):
        choose_exit(target, PagedBackend(runner, kv), 2, None)
    with pytest.raises(InvalidOption, match="exit_layer must be 1, for which"):
        choose_exit(target, PagedBackend(runner, kv), 2, tiny_heads(target, "early_exit", num_layers=1))


def test_it_is_there_by_name_and_with_its_heads_only(target: LoadedModel) -> None:
    options = EngineOptions(max_batch=2, kv_blocks=32)
    plain = build_engine(target, None, SpeculationOptions(proposer="auto", draft_length=1), options)
    asked = build_engine(target, None, SpeculationOptions(proposer="early_exit", draft_length=1), options)
    heads = [tiny_heads(target, "early_exit", num_layers=1)]
    given = build_engine(target, None, SpeculationOptions(proposer="auto", draft_length=1), options, heads=heads)
    assert [name for engine in (plain, asked, given) for name in engine.proposers if name == "early_exit"] == [
        "early_exit"
    ] * 2
    assert "early_exit" not in plain.proposers
