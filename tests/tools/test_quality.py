"""What the compiled arithmetic costs, on a tiny model, and what llama.cpp's file of scores says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
from gamaneh.models.formats.known import QUANTISED, from_floats
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_weights
from tools.quality import (
    FLOOR,
    compared,
    compiled_scorer,
    divergence,
    float32_scorer,
    main,
    measure,
    read_scores,
    rounded_anew,
    scored,
    texts,
    windows_of,
)

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

CONFIG = TINY_CONFIGS["llama"]
WINDOWS = {"numbers": windows_of([(5 * i * i + 3) % 251 for i in range(130)], 60, 2)}


def weights(fmt=None):
    found = {}
    for name, values in tiny_weights(CONFIG).items():
        floats = values.numpy()
        matrix = from_floats(floats) if fmt is None or values.ndim == 1 else QUANTISED[fmt].quantise(floats)
        found[name] = floats if values.ndim == 1 else (matrix,)
    return found


def test_fewer_bits_cost_more():
    (eight,), (four,) = (measure(CONFIG, weights(), weights(fmt), WINDOWS) for fmt in ("int8", "int4"))
    assert 0 < eight.kl < four.kl
    assert eight.float32_perplexity == four.float32_perplexity
    assert eight.same_argmax > 0.9
    assert eight.tokens == 2 * 29


def test_another_side_is_held_against_the_same_numbers():
    exact = float32_scorer(CONFIG, weights())
    theirs = {"numbers": [scored(exact(each)) for each in WINDOWS["numbers"]]}
    ours, other = measure(CONFIG, weights(), weights("int4"), WINDOWS, theirs)
    assert (ours.side, other.side) == ("ours", "llama.cpp")
    assert other.kl == pytest.approx(0, abs=1e-6)
    assert other.same_argmax == 1


def test_the_same_numbers_cost_nearly_nothing():
    window = WINDOWS["numbers"][:1]
    exact = [float32_scorer(CONFIG, weights())(window[0])]
    found = [scored(compiled_scorer(CompiledDecoder(CONFIG, weights()))(window[0]))]
    same = compared("numbers", "ours", window, found, exact)
    assert same.kl == pytest.approx(0, abs=1e-5)
    assert same.perplexity == pytest.approx(same.float32_perplexity, rel=1e-3)


def test_the_floor_of_unlikely_tokens_does_not_matter_to_the_kl():
    logits = torch.randn(7, 500, generator=torch.Generator().manual_seed(1)) * 8
    other = logits + torch.randn(7, 500, generator=torch.Generator().manual_seed(2)) * 0.05
    reference, rows = logits.log_softmax(-1), other.log_softmax(-1)
    whole = (reference.exp() * (reference - rows)).sum(-1).double()
    floored = torch.maximum(rows, rows.amax(-1, keepdim=True) - FLOOR)
    torch.testing.assert_close(divergence(reference, floored), whole, atol=1e-6, rtol=0.01)


def test_weights_are_rounded_from_the_numbers_that_they_stand_for():
    again = rounded_anew(weights("int4"), "int8")
    expected = QUANTISED["int8"].quantise(weights("int4")["head"][0].expand())
    assert np.array_equal(again["head"][0].raw, expected.raw)


def test_scores_of_the_peer_are_read_as_it_writes_them(tmp_path: Path):
    size, vocab, chunks = 6, 5, 2
    tokens = np.arange(size * chunks, dtype=np.int32)
    logits = np.random.default_rng(0).standard_normal((chunks, 2, vocab)).astype(np.float32)
    wanted = torch.from_numpy(logits).log_softmax(-1)
    rows = np.zeros((chunks, 2, 10), np.uint16)
    lowest, highest = wanted.amin(-1).numpy(), wanted.amax(-1).numpy()
    scale = (highest - lowest) / 65535
    rows[..., :4] = np.stack([scale, lowest], -1).astype(np.float32).view(np.uint16)
    rows[..., 4:9] = np.rint((wanted.numpy() - lowest[..., None]) / scale[..., None])
    head = b"_logits_" + np.array([size, vocab, chunks], np.int32).tobytes()
    path = tmp_path / "scores"
    path.write_bytes(head + tokens.tobytes() + rows.tobytes())
    found, scores = read_scores(path)
    assert found == tokens.reshape(chunks, size).tolist()
    torch.testing.assert_close(torch.stack(scores), wanted, atol=1e-4, rtol=0)


def test_the_peer_is_asked_for_stored_weights_of_gguf_files_only(tmp_path: Path, capsys, monkeypatch):
    opened = type("Opened", (), {"path": tmp_path / "model.gguf"})
    monkeypatch.setattr("tools.quality.open_model", lambda name: opened)
    assert main(["tiny", "--peer", "--weights", "int8"]) == 2
    assert "--peer must come with a GGUF file and its stored weights, got 'tiny, int8'" in capsys.readouterr().err


def test_texts_are_in_two_languages_and_in_python():
    found = texts()
    assert set(found) == {"English", "Persian", "code"}
    assert "def rope_tables" in found["code"]
    assert all(len(text) > 2000 for text in found.values())
