"""A model goes to the compiled backend where a CPU can run it, and the reason is told where it does not."""

from __future__ import annotations

import importlib.util
import logging

import pytest
from gguf import GGMLQuantizationType
from models.gguf_models import as_gguf
from models.hf_models import hf_model
from models.test_tokenizer import byte_level

from gamaneh.backends.choose import compile_ahead, load, why_not_compiled
from gamaneh.backends.compiled import compiled_decoder, processor
from gamaneh.errors import InvalidOption
from gamaneh.options import Precision

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        (Precision(), ""),
        (Precision(weights="int4"), ""),
        (Precision(weights="stored"), ""),
        (Precision(weights="bfloat16"), "asked for is bfloat16"),
        (Precision(compute="float32"), "asked for is compute float32"),
    ],
)
def test_types_of_numbers_ask_for_torch(precision, reason):
    assert reason in why_not_compiled(precision, "cpu")
    assert bool(reason) == bool(why_not_compiled(precision, "cpu"))


def test_without_numba_torch_serves_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert why_not_compiled(Precision(), "cpu") == "numba is not installed"
    monkeypatch.setattr("gamaneh.models.loading.load", lambda model, **_: "by torch")
    with caplog.at_level(logging.WARNING):
        assert load("model", device="cpu") == "by torch"
    assert "torch runs the target, which is slower on a CPU: numba is not installed" in caplog.text
    with pytest.raises(InvalidOption, match="backend must be torch here: numba is not installed, got 'compiled'"):
        load("model", backend="compiled", device="cpu")


def test_an_unknown_backend_is_refused():
    with pytest.raises(InvalidOption, match="backend must be one of auto, compiled, torch, hf, got 'fast'"):
        load("model", backend="fast")


def test_block_types_without_products_are_rounded_and_said_aloud(tmp_path, caplog):
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    draft.kinds |= {f"blk.{layer}.ffn_down.weight": GGMLQuantizationType.MXFP4 for layer in range(3)}
    with caplog.at_level(logging.WARNING):
        model = load(draft.write(tmp_path / "tiny.gguf"), backend="compiled")
    assert "what is stored as MXFP4 is rounded to int8 in groups of 32, since there are no compiled" in caplog.text
    (down,) = model.decoder.layers[0].linears[3].tensors
    assert down.format.name == "MXFP4"


@pytest.mark.parametrize("weights", ["stored", "int4"])
def test_progress_counts_to_the_total(weights, tmp_path):
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    seen = []
    load(
        draft.write(tmp_path / "tiny.gguf"),
        backend="compiled",
        precision=Precision(weights=weights),
        progress=lambda done, total: seen.append((done, total)),
    )
    (total,) = {total for _, total in seen}
    assert sorted({done for done, _ in seen}) == list(range(1, total + 1))


def test_steps_are_compiled_ahead_so_that_loading_compiles_nothing(tmp_path, monkeypatch):
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    draft.kinds |= {f"blk.{layer}.ffn_up.weight": GGMLQuantizationType.Q8_0 for layer in range(3)}
    path = draft.write(tmp_path / "tiny.gguf")
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.setattr(compiled_decoder, "code_folder", lambda: code)
    assert compile_ahead(path)
    before = {file.name: file.stat().st_mtime_ns for file in code.iterdir()}
    assert before
    load(path, backend="compiled")
    assert {file.name: file.stat().st_mtime_ns for file in code.iterdir()} == before


def test_what_cannot_be_opened_is_not_compiled_ahead(tmp_path):
    assert not compile_ahead(tmp_path / "absent.gguf")


@pytest.mark.parametrize(("weights", "told"), [("auto", True), ("stored", False), ("int8", False)])
def test_large_float_weights_are_told_to_be_slow_unless_they_were_asked_for(
    weights, told, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("gamaneh.backends.choose.HINT_BYTES", 1000)
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    with caplog.at_level(logging.WARNING):
        load(draft.write(tmp_path / "tiny.gguf"), backend="compiled", precision=Precision(weights=weights))
    assert ("GB of float32; --weights int8 reads less and is faster" in caplog.text) == told


def test_weights_that_the_backend_does_not_have_are_refused_before_anything_is_read():
    with pytest.raises(InvalidOption, match="rounds them, asked for is float32, got 'compiled'"):
        load("no such model", backend="compiled", precision=Precision(weights="float32"), device="cpu")
