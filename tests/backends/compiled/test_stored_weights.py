"""Weights for compiled steps: what is rounded, and to what."""

from __future__ import annotations

import pytest
from models.hf_models import save

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.stored_weights import stored_weights
from gamaneh.models.canonical import ModelTensors
from gamaneh.models.families import decoder_config
from gamaneh.models.weights import SafetensorsWeights, read_json

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")


@pytest.mark.parametrize(
    ("weights", "matrices", "ends"),
    [("stored", "float32", "float32"), ("int8", "int8", "int8"), ("int4", "int4", "int8")],
)
def test_embedding_and_head_keep_eight_bits(weights, matrices, ends, tmp_path):
    save("llama 2", tmp_path)
    config = decoder_config(read_json(tmp_path / "config.json"))
    found = stored_weights(ModelTensors(config, SafetensorsWeights(tmp_path)), weights)
    assert {part.format.name for part in found["layers.1.qkv.weight"]} == {matrices}
    assert {part.format.name for name in ("embedding", "head") for part in found[name]} == {ends}
