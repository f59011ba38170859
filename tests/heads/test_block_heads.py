"""A block drafter sees what it may see, begins with counted pairs, and is kept in few bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.block_heads import BlockHeads, blank_block, block_shape, kept_tensors, load_block
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import tiny_heads, tiny_model

DEPTH = 3


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def heads(target: LoadedModel) -> BlockHeads:
    return load_block(tiny_heads(target, "block", depth=DEPTH, seed=1), target)


def text(seed: int, length: int = 12) -> TrainBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (1, length), generator=generator)
    return TrainBatch(tokens, torch.randn(1, length, 2, 32, generator=generator), torch.ones_like(tokens).bool())


@pytest.mark.parametrize("level", range(DEPTH))
def test_a_guess_does_not_see_what_comes_behind_the_candidate_before_it(heads: BlockHeads, level: int) -> None:
    at, batch = 5, text(1)
    before = heads.draft_logits(batch)[level][0, at]
    batch.hidden[:, at + 1 :] = 9.0
    batch.tokens[:, at + level + 2 :] = 7
    assert torch.allclose(heads.draft_logits(batch)[level][0, at], before, atol=1e-5)


@pytest.mark.parametrize("level", range(1, DEPTH))
def test_a_guess_is_corrected_by_the_candidate_before_it(heads: BlockHeads, level: int) -> None:
    at, batch = 5, text(1)
    before = heads.draft_logits(batch)[level][0, at]
    batch.tokens[0, at + level + 1] += 1
    assert not torch.allclose(heads.draft_logits(batch)[level][0, at], before, atol=1e-3)


def test_pairs_that_often_came_are_likelier_from_the_beginning(target: LoadedModel) -> None:
    heads = blank_block({"markov_rank": 8}, target, None)
    heads.learn_pairs([[10, 20, 30] * 40, [11, 21, 31] * 40])
    added = heads.before @ heads.behind.T
    assert added[10].argmax() == 20
    assert added[11, 21] > added[11, 20] + 1


def test_a_pair_that_came_once_says_little(target: LoadedModel) -> None:
    heads = blank_block({"markov_rank": 8}, target, None)
    heads.learn_pairs([[10, 20] * 100, [50, 60]])
    added = heads.before @ heads.behind.T
    assert added[50, 60] < added[10, 20]


def test_an_artifact_keeps_a_byte_a_weight_and_loads_the_same_twice(target: LoadedModel) -> None:
    whole = tiny_heads(target, "block", depth=DEPTH)
    small = replace(whole, tensors=kept_tensors(whole.tensors))
    loaded = load_block(small, target)
    again = load_block(replace(small, tensors=kept_tensors(loaded.state_dict())), target)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), again.parameters(), strict=True))
    assert sum(tensor.nbytes for tensor in small.tensors.values()) < 0.3 * sum(
        tensor.nbytes for tensor in whole.tensors.values()
    )
    assert torch.allclose(loaded.fuse.weight, whole.tensors["fuse.weight"], atol=0.01)


def test_a_matrix_of_a_wrong_size_is_refused(target: LoadedModel) -> None:
    whole = tiny_heads(target, "block", depth=DEPTH)
    tensors = kept_tensors(whole.tensors)
    tensors["fuse.weight.int8"] = tensors["fuse.weight.int8"][:-1]
    with pytest.raises(CorruptModel, match=r"fuse\.weight"):
        load_block(replace(whole, tensors=tensors), target)


def test_layers_out_of_order_are_refused(target: LoadedModel) -> None:
    with pytest.raises(InvalidOption, match="hidden_layers must name layers of the target in ascending order"):
        block_shape({"hidden_layers": [2, 1]}, target)
