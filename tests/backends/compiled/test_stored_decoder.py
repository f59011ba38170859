"""Heads read of a stored target what they read of a torch decoder with the same numbers."""

from __future__ import annotations

import pytest
import torch
from compiled_models import compiled_decoder, compiled_weights

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.stored_decoder import StoredDecoder
from gamaneh.testing.tiny import TINY_CONFIGS

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")


def pair(family, fmt="int8"):
    config = TINY_CONFIGS[family]
    ours, same = compiled_weights(config, fmt)
    return StoredDecoder(config, ours, compiled_decoder(family, fmt)), same


def test_rows_of_the_embedding_come_by_ids_of_any_shape():
    stored, same = pair("qwen2")
    ids = torch.tensor([[3, 200], [7, 3]])
    assert torch.equal(stored.embedding[ids], same["embedding"][ids])
    assert torch.equal(stored.embedding[::64], same["embedding"][::64])
    assert torch.equal(stored.embedding.contiguous(), same["embedding"])
    assert len(stored.embedding) == len(same["embedding"])


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_output_matrix_is_the_head_or_the_embedding(family):
    stored, same = pair(family)
    matrix = same["embedding" if stored.config.tied_embedding else "head"]
    assert torch.equal(stored.head.dense(), matrix)
    assert torch.equal(stored.head.column(5), matrix[:, 5])
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    want = x @ matrix.T
    assert (stored.head(x) - want).norm() < 0.02 * want.norm()
    assert (stored.head.out_features, stored.head.in_features) == tuple(matrix.shape)


def test_layers_show_norms_and_columns():
    stored, same = pair("gemma3")
    assert set(stored.layers[1].norms) == {
        "attn_norm", "mlp_norm", "post_attn_norm", "post_mlp_norm", "q_norm", "k_norm"
    }  # fmt: skip
    assert torch.equal(stored.layers[1].norms["q_norm"], same["layers.1.q_norm"])
    names = ("qkv", "out", "gate_up", "down")
    for name, linear in zip(names, stored.layers[1].linears, strict=True):
        assert torch.equal(linear.column(3), same[f"layers.1.{name}.weight"][:, 3])
