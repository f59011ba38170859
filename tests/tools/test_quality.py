"""What the compiled arithmetic costs, on a tiny model."""

from __future__ import annotations

import pytest

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
from gamaneh.models.formats.known import QUANTISED, from_floats
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_weights
from tools.quality import compared, expanded, measure, scores, texts

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

TOKENS = {"numbers": [(5 * i * i + 3) % 251 for i in range(60)]}


def weights(fmt=None):
    found = {}
    for name, values in tiny_weights(TINY_CONFIGS["llama"]).items():
        floats = values.numpy()
        matrix = from_floats(floats) if fmt is None or values.ndim == 1 else QUANTISED[fmt].quantise(floats)
        found[name] = floats if values.ndim == 1 else (matrix,)
    return found


def test_fewer_bits_cost_more():
    config = TINY_CONFIGS["llama"]
    (eight,), (four,) = (measure(config, weights(), weights(fmt), TOKENS) for fmt in ("int8", "int4"))
    assert 0 < eight.kl < four.kl
    assert eight.float32_perplexity == four.float32_perplexity
    assert eight.same_argmax > 0.9


def test_the_same_numbers_cost_nothing():
    decoder = CompiledDecoder(TINY_CONFIGS["llama"], expanded(weights()))
    exact = scores(decoder, TOKENS["numbers"])
    same = compared("numbers", TOKENS["numbers"], exact, exact)
    assert (same.kl, same.same_argmax) == (0, 1)
    assert same.perplexity == same.float32_perplexity


def test_texts_are_in_two_languages_and_in_python():
    found = texts()
    assert set(found) == {"English", "Persian", "code"}
    assert "def rope_tables" in found["code"]
    assert all(len(text) > 2000 for text in found.values())
