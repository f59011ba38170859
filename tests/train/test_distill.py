from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import byte_tokenizer, tiny_target, workshop

from gamaneh import files
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidOption, ModelError, UnsupportedModel
from gamaneh.kv.cache import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel, load
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import Precision, SamplingParams, SpeculationOptions
from gamaneh.proposers.distilled import ABOUT
from gamaneh.testing import BYTE_VOCAB, EOS_ID
from gamaneh.train.corpus import make_corpus
from gamaneh.train.data import Example
from gamaneh.train.distill.distill import distill
from gamaneh.train.distill.lesson import DistillLesson, _chains
from gamaneh.train.distill.student import cut_student, principal_components, scratch_student, spread
from gamaneh.train.features import compute_features
from gamaneh.train.samples import Sample
from gamaneh.train.settings import DataOptions, LoopOptions, StudentOptions

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = DataOptions(max_length=64, held_out=2, answer_tokens=16, temperatures=(0.0,))
LOOP = LoopOptions(epochs=40, batch_tokens=256, validate_every=20, learning_rate=5e-3)


def target(family: str = "llama") -> LoadedModel:
    return replace(tiny_target(family), tokenizer=byte_tokenizer())


def run(tmp_path: Path, options: StudentOptions, loop: LoopOptions = LOOP, family: str = "llama") -> dict[str, Any]:
    loaded, desk = target(family), workshop(tmp_path / "work")
    corpus = make_corpus(loaded, [Example.from_prompt(f"question {at}") for at in range(8)], DATA, desk)
    return distill(loaded, corpus, options, loop, desk, tmp_path / "out", command="once more")


def logits(loaded: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    config, length = loaded.config, len(tokens)
    cache = KVCache(config.num_layers, 64, 1, config.num_kv_heads, config.head_dim, loaded.dtype)
    feed = Placed(tokens, 0, 0, range(1, length + 1), first_slot=1, logit_rows=length)
    return DecoderRunner(loaded.decoder, cache, invariant=False).forward([feed]).logits[0]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_cut_of_all_layers_is_the_target(tmp_path: Path, family: str) -> None:
    loaded = target(family)
    cut_student(loaded, 2).save_pretrained(tmp_path)
    loaded.tokenizer.backend.save_pretrained(tmp_path)
    tokens = list(b"a few tokens that are longer than the window of attention")

    again = load(tmp_path, precision=Precision(weights="float32"), device="cpu")

    torch.testing.assert_close(logits(again, tokens), logits(loaded, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma3", "smollm3"])
def test_families_that_cannot_be_cut_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="layers can be cut from llama, mistral, qwen2, qwen3, got"):
        cut_student(target(family), 1)


def test_layers_are_cut_at_even_distances() -> None:
    assert (spread(30, 4), spread(30, 1), spread(2, 2)) == ([0, 10, 19, 29], [29], [0, 1])
    with pytest.raises(InvalidOption, match="num_layers must be at most the target's 2, got 3"):
        spread(2, 3)


def test_a_student_from_scratch_begins_with_the_targets_own_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(50, 2, generator=generator) @ torch.randn(2, 8, generator=generator)

    kept = principal_components(plane + 1e-3 * torch.randn(50, 8, generator=generator), 2)
    centred = plane - plane.mean(0)
    solved = torch.linalg.lstsq(kept, centred).solution

    torch.testing.assert_close(kept @ solved, centred, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    "options",
    [
        StudentOptions(num_layers=1, hidden_size=32),
        StudentOptions(start="target", num_layers=1),
        StudentOptions(num_layers=1, hidden_size=32, on_policy=0.5, sampled_tokens=8, divergence="reverse"),
    ],
    ids=["scratch", "cut", "on-policy"],
)
def test_a_distilled_model_drafts_for_its_target(tmp_path: Path, options: StudentOptions) -> None:
    quality = run(tmp_path, options)
    loaded = target()
    newest = sorted((tmp_path / "work").glob("distill-*/step-*/course.json"))[-1]
    history = json.loads(newest.read_text())["history"]

    draft = load(tmp_path / "out", precision=Precision(weights="float32"), device="cpu")
    llm = LLM(loaded, draft_model=draft, speculation=SpeculationOptions(proposer="draft_model", draft_length=3))
    prompt, params = "question 3", SamplingParams(max_tokens=16)
    guessed = llm.generate(prompt, params)[0]

    assert guessed.tokens == LLM(loaded).generate(prompt, params)[0].tokens
    assert any(report.drafted for report in guessed.reports)
    assert history[-1]["loss"] < history[0]["loss"] or options.on_policy
    assert 0 < quality["overlap"][0] < 1


def test_the_folder_says_how_it_came_about(tmp_path: Path) -> None:
    quality = run(tmp_path, StudentOptions(num_layers=1, hidden_size=32), replace(LOOP, epochs=1))

    about = json.loads((tmp_path / "out" / ABOUT).read_text(encoding="utf-8"))

    assert (about["target"]["name"], about["quality"]) == ("tiny-llama-0", quality)
    assert about["provenance"]["command"] == "once more"
    assert about["provenance"]["data"]["student"]["hidden_size"] == 32


def test_a_folder_that_holds_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")

    with pytest.raises(InvalidOption, match="out must be a new or an empty folder"):
        run(tmp_path, StudentOptions())
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_a_full_disk_leaves_no_half_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        if folder.parent == tmp_path:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_flush", full)

    with pytest.raises(ModelError, match="out must be writable and its disk have room"):
        run(tmp_path, StudentOptions(num_layers=1, hidden_size=32), replace(LOOP, epochs=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]


def test_survival_of_a_draft_model_is_that_of_its_own_chains(tmp_path: Path) -> None:
    """A draft model that is the target itself is always right."""
    loaded = target()
    text = Sample(tuple(b"ab"), (), "all")
    answer = LLM(loaded).generate([list(text.tokens)], SamplingParams(max_tokens=12, ignore_eos=True))[0].tokens
    whole = Sample((*text.tokens, *answer), ((2, 14),), "all")
    store = compute_features(loaded, [whole], [2], tmp_path, lambda done, total: None)
    lesson = DistillLesson(cut_student(loaded, 2), loaded, store, store, LOOP, StudentOptions())

    figures = lesson.examine()

    # Eleven tokens behind the first, nine in the first round: eight candidates and the bonus.
    assert figures.total.rounds == 2
    assert figures.total.survived == [2, 2, *[1] * 6]


def test_candidates_follow_each_other() -> None:
    first = torch.tensor([[True, False, True, True]])

    chains = _chains(first)

    assert chains.shape == (1, 4, 8)
    assert chains[0, :, :3].tolist() == [
        [True, False, True],
        [False, True, True],
        [True, True, False],
        [True, False, False],
    ]


def test_own_texts_are_drawn_behind_the_prompts_and_end_at_the_end_token(tmp_path: Path) -> None:
    loaded = target()
    samples = [Sample(tuple(b"abcd"), ((3, 4),), "all"), Sample(tuple(b"wxyz12"), ((2, 6),), "all")]
    store = compute_features(loaded, samples, [2], tmp_path, lambda done, total: None)
    options = StudentOptions(num_layers=1, hidden_size=32, on_policy=1.0, sampled_tokens=9)
    torch.manual_seed(0)
    lesson = DistillLesson(scratch_student(loaded, options), loaded, store, store, LOOP, options)

    texts, starts = lesson._drawn(0, step=0)
    again, _ = lesson._drawn(0, step=0)

    prompts = {bytes(text[:start]) for text, start in zip(texts, starts, strict=True)}
    assert (prompts, texts) == ({b"abc", b"wx"}, again)
    assert all(len(text) - start <= 9 for text, start in zip(texts, starts, strict=True))
    assert lesson._until_end([5, EOS_ID, 7, EOS_ID]) == [5, EOS_ID]


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"start": "middle"}, "start must be one of scratch, target"),
        ({"hidden_size": 20}, "hidden_size must be a multiple of 8"),
        ({"on_policy": 1.5}, "on_policy must be a number from 0 to 1"),
        ({"divergence": "both"}, "divergence must be one of forward, reverse"),
    ],
)
def test_student_options_out_of_range_are_refused(values: Mapping[str, Any], rule: str) -> None:
    with pytest.raises(InvalidOption, match=rule):
        StudentOptions(**values)


def test_the_byte_tokenizer_of_these_tests_is_the_one_that_tiny_models_have() -> None:
    tokenizer = byte_tokenizer()

    assert (len(tokenizer.vocab()), tokenizer.eos_ids) == (BYTE_VOCAB, (EOS_ID,))
