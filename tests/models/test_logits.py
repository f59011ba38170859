"""Our decoder computes what `transformers` computes, for every family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hf_models import MODELS, VOCAB, hf_logits, our_logits, save

from gamaneh.models.canonical import canonical_weights
from gamaneh.models.decoder import Decoder
from gamaneh.models.families import decoder_config
from gamaneh.models.weights import SafetensorsWeights, read_json

TOKENS = torch.randint(0, VOCAB, (48,), generator=torch.Generator().manual_seed(1)).tolist()


def decoder_of(folder: Path) -> Decoder:
    config = decoder_config(read_json(folder / "config.json"))
    return Decoder(config, canonical_weights(config, SafetensorsWeights(folder)))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save(name, tmp_path)
    expected = hf_logits(model, TOKENS)
    torch.testing.assert_close(our_logits(decoder_of(tmp_path), TOKENS), expected, atol=1e-4, rtol=1e-4)


def test_a_different_weight_is_seen_in_the_logits(tmp_path: Path) -> None:
    model = save("llama 2", tmp_path)
    with torch.no_grad():
        model.model.layers[2].self_attn.k_proj.weight[0] += 1
    assert (our_logits(decoder_of(tmp_path), TOKENS) - hf_logits(model, TOKENS)).abs().max() > 1e-3
