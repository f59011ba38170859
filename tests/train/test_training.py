from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_training import QUICK, SHORT, ChatBytes, Listener, examples, tiny_corpus, tiny_target, workshop

from gamaneh.control.fallback import Ledger
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError, InvalidOption, ModelError
from gamaneh.heads.artifact import load_artifact
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import EOS_ID
from gamaneh.train import checkpoints, loop
from gamaneh.train.corpus import Corpus, make_corpus
from gamaneh.train.data import Example
from gamaneh.train.heads import HeadsOrder, train_heads
from gamaneh.train.loop import learning_rate
from gamaneh.train.settings import DataOptions, LoopOptions

pytestmark = pytest.mark.usefixtures("one_thread")

LEARNED_BY_HEART = LoopOptions(epochs=120, batch_tokens=512, validate_every=60, learning_rate=1e-2, weight_decay=0.0)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_of_every_kind_learn_and_come_back_as_they_were_trained(tmp_path: Path, kind: str) -> None:
    loaded = tiny_target()
    corpus = tiny_corpus(loaded, tmp_path)
    order = HeadsOrder(kind=kind, loop=replace(QUICK, epochs=12, validate_every=6), command="make it again")

    artifact = train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "out")
    again = load_artifact(tmp_path / "out")
    heads = HEAD_KINDS[kind].load(again, loaded)

    losses = [entry["loss"] for entry in _history(tmp_path / "work")]
    assert losses[-1] < losses[0]
    assert heads.depth == len(artifact.quality["survival"]["all"]) == len(artifact.quality["ranks"])
    assert again.provenance.command == "make it again"
    assert again.provenance.data["train"]["texts"] == len(corpus.train)
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in artifact.tensors.items())


def _history(work: Path) -> list[dict[str, float]]:
    (folder,) = (path for path in work.iterdir() if path.is_dir())
    kept = checkpoints.Checkpoints(folder)
    course = checkpoints.read_json(folder / f"step-{kept.steps()[-1]:07}" / checkpoints.COURSE)
    return list(course["history"])


@pytest.mark.parametrize("kind", ["medusa", "eagle", "mtp"])
def test_survival_measured_in_training_is_what_the_engine_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Heads that know the answers by heart, measured on these answers, then asked for them."""
    # A tiny target is faster than any heads, which nobody shall mind here.
    monkeypatch.setattr(Ledger, "add", lambda ledger, account: False)
    loaded = tiny_target()
    texts = tiny_corpus(loaded, tmp_path).train
    order = HeadsOrder(kind=kind, shape={"depth": 3}, loop=LEARNED_BY_HEART)
    artifact = train_heads(loaded, Corpus(texts, texts), order, workshop(tmp_path / "work"), tmp_path / "out")

    own = {} if kind == "medusa" else {"min_confidence": 0.0}
    speculation = SpeculationOptions(proposer=kind, draft_length=3, proposer_options=own)
    llm = LLM(loaded, heads=[tmp_path / "out"], speculation=speculation)
    stats = SpeculationStats()
    for text in texts:
        start = text.spans[0][0]
        params = SamplingParams(max_tokens=text.num_learned)
        generation = llm.generate([list(text.tokens[:start])], params)[0]
        assert (*text.tokens[:start], *generation.tokens, EOS_ID)[: len(text.tokens)] == text.tokens
        for report in generation.reports:
            stats.add(report)

    measured = artifact.quality["tokens_per_round"]["all"]
    assert measured > 1.5, "nothing was learned by heart"
    # The engine shortens its last drafts, where training counts rounds of full depth.
    assert stats.tokens_per_round == pytest.approx(measured, rel=0.1)


def test_a_part_of_the_vocabulary_is_drafted_from(tmp_path: Path) -> None:
    loaded, listener = tiny_target(), Listener()
    order = HeadsOrder(kind="medusa", draft_vocab=100, loop=QUICK)

    artifact = train_heads(
        loaded, tiny_corpus(loaded, tmp_path), order, listener.workshop(tmp_path / "work"), tmp_path / "out"
    )

    assert artifact.draft_vocab == 100
    assert any(line.startswith("100 draft tokens cover") for line in listener.said)


def test_a_run_that_was_broken_off_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_target()
    corpus = tiny_corpus(loaded, tmp_path)
    order = HeadsOrder(kind="medusa", loop=replace(QUICK, epochs=6))
    whole = train_heads(loaded, corpus, order, workshop(tmp_path / "whole"), tmp_path / "a")
    learned = loop.learning_rate
    rates: list[float] = []

    def break_at_step_5(progress: float, warmup: float) -> float:
        if len(rates) == 5:
            raise KeyboardInterrupt
        rates.append(progress)
        return learned(progress, warmup)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "learning_rate", break_at_step_5)
        train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "b")
    assert not (tmp_path / "b").exists()
    listener = Listener()
    resumed = train_heads(loaded, corpus, order, listener.workshop(tmp_path / "work"), tmp_path / "b")

    assert listener.said[0].startswith("going on at step 4 of")
    assert resumed.quality == whole.quality
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(resumed.tensors[name], tensor)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    loaded = tiny_target()
    corpus, order = tiny_corpus(loaded, tmp_path), HeadsOrder(kind="medusa", loop=QUICK)
    first = train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "out")
    listener = Listener()

    second = train_heads(loaded, corpus, order, listener.workshop(tmp_path / "work"), tmp_path / "out")

    assert not listener.ticks["training medusa heads"]
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())


def test_training_ends_early_where_nothing_gets_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, listener = tiny_target(), Listener()
    monkeypatch.setattr(loop, "learning_rate", lambda progress, warmup: 0.0)
    order = HeadsOrder(kind="medusa", loop=replace(QUICK, epochs=100, patience=2))

    artifact = train_heads(
        loaded, tiny_corpus(loaded, tmp_path), order, listener.workshop(tmp_path / "work"), tmp_path / "out"
    )

    # Measured at steps 2, 4 and 6; only the first one was better than nothing.
    assert (artifact.provenance.data["steps"], artifact.provenance.data["best_step"]) == (6, 2)


def test_the_time_limit_ends_training_with_a_measurement(tmp_path: Path) -> None:
    loaded = tiny_target()
    order = HeadsOrder(kind="medusa", loop=replace(QUICK, epochs=1000, validate_every=10_000, minutes=1e-9))

    artifact = train_heads(loaded, tiny_corpus(loaded, tmp_path), order, workshop(tmp_path / "work"), tmp_path / "out")

    assert artifact.provenance.data["steps"] == 1
    assert "all" in artifact.quality["survival"]


def test_a_loss_that_is_no_number_ends_training_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tiny_target()
    monkeypatch.setattr(loop, "learning_rate", lambda progress, warmup: float("nan"))
    order = HeadsOrder(kind="medusa", loop=QUICK)

    with pytest.raises(GamanehError, match=r"loss at step \d+ must be a number, got nan"):
        train_heads(loaded, tiny_corpus(loaded, tmp_path), order, workshop(tmp_path / "work"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_artifact_and_the_run_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_target()
    corpus, order = tiny_corpus(loaded, tmp_path), HeadsOrder(kind="medusa", loop=QUICK)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ModelError, match="No space left on device"):
        patch.setattr(checkpoints, "save_file", full)
        train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "out")
    assert not (tmp_path / "out").exists()

    assert train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "out").quality


def test_an_unknown_kind_and_an_unknown_part_of_a_shape_are_refused(tmp_path: Path) -> None:
    loaded = tiny_target()
    corpus = tiny_corpus(loaded, tmp_path)

    for order, rule in (
        (HeadsOrder(kind="hydra"), "kind must be one of medusa"),
        (HeadsOrder(kind="medusa", shape={"wings": 2}), "wings is not an option of MedusaShape"),
        (HeadsOrder(kind="medusa", draft_vocab=999), "draft_vocab must be from 1 to the target's 260"),
    ):
        with pytest.raises(InvalidOption, match=rule):
            train_heads(loaded, corpus, order, workshop(tmp_path / "work"), tmp_path / "out")


def test_held_out_prompts_are_answered_greedily_whatever_the_others_are(tmp_path: Path) -> None:
    loaded = tiny_target()
    corpus = tiny_corpus(loaded, tmp_path, options=replace(SHORT, temperatures=(1.0,)))
    llm = LLM(loaded)

    for text in corpus.held_out:
        start = text.spans[0][0]
        answer = llm.generate([list(text.tokens[:start])], SamplingParams(max_tokens=20))[0]
        assert (*answer.tokens, EOS_ID)[: text.num_learned] == text.tokens[start:]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (DataOptions(max_length=600, held_out=3, answer_tokens=20), "max_length must be at most the context of tiny"),
        (DataOptions(max_length=24, held_out=3, answer_tokens=20), "must leave room for a prompt and an answer"),
        (DataOptions(max_length=64, held_out=9, answer_tokens=20), "held_out must be below"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_the_reason(tmp_path: Path, options: DataOptions, rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        make_corpus(tiny_target(), examples(9), options, workshop(tmp_path))


def test_what_is_left_out_is_counted_by_reason(tmp_path: Path) -> None:
    silent = Example(messages=({"role": "system", "content": "Be brief."},))
    long = Example.from_prompt("x" * 60)
    past = Example(messages=({"role": "user", "content": "y" * 70}, {"role": "assistant", "content": "z"}))
    given = [*examples(9), *examples(2), silent, long, past]
    options = DataOptions(max_length=64, held_out=1, answer_tokens=20)

    corpus = make_corpus(tiny_target(tokenizer=ChatBytes()), given, options, workshop(tmp_path))

    assert corpus.left_out == {
        "came before": 2,
        "end in a system message": 1,
        "leave no room for an answer of 20 in 64 tokens": 1,
        "have no answer within 64 tokens": 1,
    }


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [learning_rate(progress / 100, 0.1) for progress in range(101)]

    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert (max(rates), min(rates), rates[-1]) == (1.0, loop.LEAST_RATE, pytest.approx(loop.LEAST_RATE))


@pytest.mark.parametrize(
    ("kind", "values", "rule"),
    [
        (DataOptions, {"held_out": 0}, "held_out must be a whole number from 1"),
        (DataOptions, {"temperatures": ()}, "temperatures must be numbers from 0 to 100, at least one"),
        (DataOptions, {"temperatures": (0.5, -1)}, "temperatures must be numbers"),
        (DataOptions, {"answer_minutes": 0}, "answer_minutes must be a number above 0, or none"),
        (LoopOptions, {"learning_rate": float("nan")}, "learning_rate must be a number from 0 to 1"),
        (LoopOptions, {"precision": "float8"}, "precision must be one of auto, float32, bfloat16"),
        (LoopOptions, {"epochs": True}, "epochs must be a whole number"),
    ],
)
def test_options_out_of_range_are_refused(kind: type, values: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        kind(**values)
