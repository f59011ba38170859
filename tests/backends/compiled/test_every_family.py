"""Every family and feature that the torch decoder has runs compiled too: near the same scores, and fixed bits."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from compiled_models import new_pages, span
from models.hf_models import MODELS, VOCAB, our_logits, save

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
from gamaneh.backends.compiled.stored_weights import stored_weights
from gamaneh.models.canonical import ModelTensors
from gamaneh.models.decoder import Decoder
from gamaneh.models.families import FAMILIES, decoder_config
from gamaneh.models.weights import SafetensorsWeights, read_json

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

TOKENS = torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(2)).tolist()
TOLERANCES = {"stored": 2e-3, "int8": 0.06, "int4": 0.06}
"""Of scores, against float32 of the same weights: keys and values as float16, and activations rounded to int8."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder of each model of `MODELS`, written once."""

    @cache
    def folder(name):
        path = tmp_path_factory.mktemp("model")
        save(name, path)
        return path

    return folder


def compiled_and_expanded(folder, weights):
    """The compiled decoder, and the torch decoder over the numbers that its weights stand for."""
    config = decoder_config(read_json(folder / "config.json"))
    kept = stored_weights(ModelTensors(config, SafetensorsWeights(folder)), weights)
    numbers = {
        name: torch.cat([torch.from_numpy(part.expand()) for part in value])
        if isinstance(value, tuple)
        else torch.from_numpy(value)
        for name, value in kept.items()
    }
    return CompiledDecoder(config, kept, threads=2), Decoder(config, numbers)


def in_chunks(decoder, size):
    pages = new_pages(decoder.config)
    stops = range(0, len(TOKENS), size)
    parts = [decoder.step([span(TOKENS, at, min(at + size, len(TOKENS)))], pages).logits.clone() for at in stops]
    return torch.cat(parts)


@pytest.mark.parametrize("weights", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_of_the_torch_decoder_over_the_same_numbers(name, weights, saved):
    decoder, reference = compiled_and_expanded(saved(name), weights)
    got, want = in_chunks(decoder, len(TOKENS)), our_logits(reference, TOKENS)
    assert (got - want).norm() < TOLERANCES[weights] * want.norm()


@pytest.mark.parametrize("weights", TOLERANCES)
@pytest.mark.parametrize("name", MODELS)
def test_bits_of_a_row_do_not_depend_on_how_the_tokens_are_cut(name, weights, saved):
    decoder, _ = compiled_and_expanded(saved(name), weights)
    whole = in_chunks(decoder, len(TOKENS))
    assert all(torch.equal(in_chunks(decoder, size), whole) for size in (1, 5, 16))


def test_no_family_is_left_out():
    assert {kind for kind, _ in MODELS.values()} == FAMILIES.keys()
