from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from request_loop import table_model
from torch import Tensor

from gamaneh.core import Draft, Use
from gamaneh.errors import BadLogits, InvalidRequest
from gamaneh.options import SamplingParams
from gamaneh.sampling.counts import TokenCounts
from gamaneh.sampling.pipeline import RequestSampler, check_tokens
from gamaneh.sampling.rows import DraftRows

VOCAB = 8


def sampler_of(
    params: SamplingParams, prompt: Sequence[int] = (1, 2), output: Sequence[int] = (), **kwargs: object
) -> RequestSampler:
    return RequestSampler(
        params, vocab_size=VOCAB, prompt=prompt, tokens=[*prompt, *output], eos_ids=(7,), seed=5, **kwargs
    )


def scores_of(params: SamplingParams, path: Sequence[int] = (), **kwargs: object) -> list[float]:
    row = torch.tensor([1.0, 2.0, -3.0, 4.0, 0.5, -1.0, 0.0, 3.0])
    return sampler_of(params, **kwargs).scores(row, path).tolist()


PLAIN = scores_of(SamplingParams())


def changed(scores: list[float]) -> dict[int, float]:
    return {token: score for token, score in enumerate(scores) if score != PLAIN[token]}


def test_bias_is_added_to_its_tokens() -> None:
    assert changed(scores_of(SamplingParams(logit_bias={3: -100.0, 0: 2.5}))) == {3: -96.0, 0: 3.5}


def test_repetition_penalty_weakens_tokens_of_prompt_output_and_path() -> None:
    scores = scores_of(SamplingParams(repetition_penalty=2.0), path=(3,), prompt=(1, 2), output=(4, 4))
    assert changed(scores) == {1: 1.0, 2: -6.0, 3: 2.0, 4: 0.25}


def test_presence_penalty_counts_output_and_path_once() -> None:
    scores = scores_of(SamplingParams(presence_penalty=0.5), path=(3, 4), prompt=(1, 2), output=(4, 4))
    assert changed(scores) == {3: 3.5, 4: 0.0}


def test_frequency_penalty_counts_every_occurrence() -> None:
    scores = scores_of(SamplingParams(frequency_penalty=0.5), path=(3, 4), prompt=(1, 2), output=(4, 4))
    assert changed(scores) == {3: 3.5, 4: -1.0}


@pytest.mark.parametrize(("path", "masked"), [((), True), ((3,), True), ((3, 3), False)])
def test_end_tokens_are_masked_until_enough_are_emitted(path: tuple[int, ...], masked: bool) -> None:
    scores = scores_of(SamplingParams(min_tokens=3, stop_token_ids=(0,)), path=path, output=(4,))
    assert changed(scores) == ({7: -math.inf, 0: -math.inf} if masked else {})


def test_ignored_end_tokens_are_not_masked() -> None:
    assert changed(scores_of(SamplingParams(min_tokens=3, ignore_eos=True, stop_token_ids=(0,)))) == {0: -math.inf}


@pytest.mark.parametrize(
    ("path", "banned"),
    [((), {6}), ((3,), {6, 4}), ((3, 5), {6}), ((5,), {6, 0}), ((3, 3), {6, 4})],
)
def test_the_last_token_of_a_bad_word_is_masked_after_the_others(path: tuple[int, ...], banned: set[int]) -> None:
    params = SamplingParams(bad_words=((6,), (3, 4), (2, 5, 0)))
    assert changed(scores_of(params, path=path)) == dict.fromkeys(banned, -math.inf)


class OnlyAfter:
    """Allows the tokens up to the last one of the path."""

    def mask(self, path: Sequence[int]) -> Tensor | None:
        return torch.arange(VOCAB) <= path[-1] if path else None


def test_an_extra_mask_sees_the_path() -> None:
    masked = scores_of(SamplingParams(), path=(5,), mask=OnlyAfter())
    assert changed(masked) == {6: -math.inf, 7: -math.inf}
    assert changed(scores_of(SamplingParams(), mask=OnlyAfter())) == {}


class Short:
    def mask(self, path: Sequence[int]) -> Tensor | None:
        return torch.tensor([False, True])


def test_tokens_beyond_an_extra_mask_are_not_allowed() -> None:
    assert [token for token, score in enumerate(scores_of(SamplingParams(), mask=Short())) if score > -math.inf] == [1]


def test_masks_that_allow_nothing_end_the_request() -> None:
    sampler = sampler_of(SamplingParams(bad_words=tuple((token,) for token in range(VOCAB))))
    with pytest.raises(BadLogits):
        sampler.pick(sampler.scores(torch.zeros(VOCAB), ()), 2, Use.TARGET)


EVERYTHING = SamplingParams(
    temperature=0.7,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    min_tokens=50,
    logit_bias={3: 1.0, 2: -100.0},
    bad_words=((4,), (1, 5)),
    top_p=0.9,
)


def test_rows_wider_than_the_vocabulary_are_cut() -> None:
    row = torch.randn(VOCAB + 5, generator=torch.Generator().manual_seed(0))
    row[VOCAB:] = 100.0
    sampler = sampler_of(EVERYTHING, output=(3, 6))
    assert torch.equal(sampler.scores(row, (1,)), sampler.scores(row[:VOCAB], (1,)))


def test_rows_narrower_than_the_vocabulary_leave_out_what_they_lack() -> None:
    sampler = sampler_of(EVERYTHING, output=(3, 6))
    scores = sampler.scores(torch.randn(4, generator=torch.Generator().manual_seed(0)), (7, 1))
    assert scores.shape == (4,)
    assert 0 <= sampler.pick(scores, 4, Use.DRAFT) < 4


def test_the_logits_are_not_changed() -> None:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
    before = row.clone()
    sampler_of(EVERYTHING, output=(3, 6)).scores(row, (1,))
    assert torch.equal(row, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_default_parameters_copy_nothing(temperature: float) -> None:
    row = torch.randn(VOCAB)
    assert sampler_of(SamplingParams(temperature=temperature)).scores(row, ()).data_ptr() == row.data_ptr()


def test_kind_11_a_banned_token_never_appears_and_a_forced_one_always_does() -> None:
    model = table_model(VOCAB, 0)
    banned = sampler_of(SamplingParams(temperature=1.0, logit_bias={3: -100.0}))
    forced = sampler_of(SamplingParams(temperature=1.0, logit_bias={3: 100.0}))
    for position in range(300):
        row = model((position % VOCAB, position // VOCAB % VOCAB))
        assert banned.pick(banned.scores(row, ()), position, Use.TARGET) != 3
        assert forced.pick(forced.scores(row, ()), position, Use.TARGET) == 3


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    top_k=st.sampled_from([0, 3]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.31]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-3, 3), max_size=3),
    min_tokens=st.integers(0, 6),
    bad_words=st.lists(st.lists(st.integers(1, VOCAB - 1), min_size=2, max_size=3).map(tuple), max_size=4).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(params=PARAMS, output=TOKENS, path=TOKENS)
def test_kind_11_scores_at_draft_positions_equal_those_of_plain_decoding(
    params: SamplingParams, output: list[int], path: list[int]
) -> None:
    model, prompt = table_model(VOCAB, 3), [1, 2]
    logits = torch.stack([model((*prompt, *output, *path[:depth])) for depth in range(len(path) + 1)])
    sampler = sampler_of(params, prompt, output)
    rows = DraftRows(logits, Draft.chain(path), sampler, len(prompt) + len(output), VOCAB)
    tokens = [*prompt, *output]
    live = RequestSampler(params, vocab_size=VOCAB, prompt=prompt, tokens=tokens, eos_ids=(7,), seed=5)
    for depth in range(len(path) + 1):
        plain = live.scores(logits[depth], ())
        assert torch.equal(rows.scores(depth - 1), plain)
        assert rows.pick(depth - 1) == live.pick(plain, len(tokens), Use.TARGET)
        tokens.extend(path[depth : depth + 1])


def test_two_paths_of_a_tree_do_not_share_their_counts() -> None:
    params = SamplingParams(frequency_penalty=0.5)
    draft = Draft((3, 4), (-1, -1))
    rows = DraftRows(torch.zeros(3, VOCAB), draft, sampler_of(params), 2, VOCAB)
    assert rows.scores(0).nonzero().flatten().tolist() == [3]
    assert rows.scores(1).nonzero().flatten().tolist() == [4]
    assert rows.scores(-1).nonzero().flatten().tolist() == []


def test_rows_are_processed_when_asked_for_and_once() -> None:
    calls = []

    class Counting(RequestSampler):
        def scores(self, logits: Tensor, path: Sequence[int]) -> Tensor:
            calls.append(tuple(path))
            return super().scores(logits, path)

    tokens = [1]
    sampler = Counting(SamplingParams(), vocab_size=VOCAB, prompt=(1,), tokens=tokens, eos_ids=(), seed=0)
    rows = DraftRows(torch.zeros(4, VOCAB), Draft.chain((5, 6, 7)), sampler, 1, VOCAB)
    rows.probs(1)
    rows.pick(1)
    assert calls == [(5, 6)]


def test_probs_of_a_greedy_request_are_all_on_the_lowest_of_the_best() -> None:
    sampler = sampler_of(SamplingParams())
    assert sampler.probs(torch.tensor([0.0, 2.0, 2.0])).tolist() == [0.0, 1.0, 0.0]


def test_probs_of_a_sampled_request_are_normalised() -> None:
    sampler = sampler_of(SamplingParams(temperature=1.0))
    assert sampler.probs(torch.tensor([0.0, -math.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[0.0, math.nan], [-math.inf, -math.inf], [0.0, math.inf]])
def test_rows_without_a_distribution_are_refused(temperature: float, row: list[float]) -> None:
    with pytest.raises(BadLogits):
        sampler_of(SamplingParams(temperature=temperature)).probs(torch.tensor(row))


def test_target_noise_does_not_depend_on_the_round_and_other_noise_does() -> None:
    scores = torch.zeros(1000)
    first, later = sampler_of(SamplingParams(temperature=1.0)), sampler_of(SamplingParams(temperature=1.0), output=(3,))
    assert first.pick(scores, 9, Use.TARGET) == later.pick(scores, 9, Use.TARGET)
    assert first.pick(scores, 9, Use.DRAFT) != later.pick(scores, 9, Use.DRAFT)
    assert first.uniform(9, Use.ACCEPT) != later.uniform(9, Use.ACCEPT)


class ReadOnce(list[int]):
    """Counts the tokens that are read through slices."""

    read = 0

    def __getitem__(self, index: slice) -> list[int]:  # type: ignore[override]
        taken = super().__getitem__(index)
        self.read += len(taken)
        return taken


def test_committed_tokens_are_counted_once() -> None:
    tokens = ReadOnce(range(5))
    counts = TokenCounts(tokens)
    for token in range(20):
        counts.with_path((1,))
        tokens.append(token)
    counts.with_path(())
    assert tokens.read == 25


def test_counts_include_the_path_only_when_given() -> None:
    counts = TokenCounts([4, 4, 2])
    ids, occurrences = counts.with_path((2, 6))
    assert dict(zip(ids.tolist(), occurrences.tolist(), strict=True)) == {4: 2, 2: 2, 6: 1}
    ids, occurrences = counts.with_path(())
    assert dict(zip(ids.tolist(), occurrences.tolist(), strict=True)) == {4: 2, 2: 1}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias={8: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=(1, 9)), "stop_token_ids"),
        (SamplingParams(bad_words=((1,), (2, 8))), "bad_words"),
    ],
)
def test_kind_11_ids_out_of_the_vocabulary_are_refused_by_name(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} must hold token ids below 8, got"):
        check_tokens(params, VOCAB)


def test_ids_of_the_vocabulary_are_accepted() -> None:
    check_tokens(SamplingParams(logit_bias={7: 1.0}, stop_token_ids=(0,), bad_words=((7, 7),)), VOCAB)
