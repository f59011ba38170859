"""Parts of a step add up to it, on a tiny model. How long they take is not checked."""

from __future__ import annotations

import pytest

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
from gamaneh.models.formats.known import QUANTISED
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_weights
from tools.step_parts import LAYER_PARTS, measure

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

CONFIG = TINY_CONFIGS["llama"]


@pytest.fixture(scope="module")
def decoder() -> CompiledDecoder:
    weights = {
        name: values.numpy() if values.ndim == 1 else (QUANTISED["int8"].quantise(values.numpy()),)
        for name, values in tiny_weights(CONFIG).items()
    }
    return CompiledDecoder(CONFIG, weights, threads=2)


@pytest.mark.parametrize("separate", [False, True])
def test_parts_add_up_to_the_step(decoder: CompiledDecoder, separate: bool) -> None:
    for parts in measure(decoder, [1, 3], 20, 1, separate=separate).values():
        whole = parts.pop("whole")
        assert sum(parts.values()) == pytest.approx(whole)


def test_every_stage_that_a_model_has_is_a_part(decoder: CompiledDecoder) -> None:
    (parts,) = measure(decoder, [2], 20, 1).values()
    assert set(LAYER_PARTS) - {"quantise"} | {"whole", "outside", "head"} <= set(parts)
