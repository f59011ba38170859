"""From a name or a path to a model that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf_models import as_gguf
from hf_models import hf_logits, hf_model, our_logits, save
from test_tokenizer import byte_level

from gamaneh.errors import CorruptModel, InvalidOption, ModelError
from gamaneh.models import fetch, loading
from gamaneh.models.gguf_tokenizer import backend_from_metadata
from gamaneh.models.loading import choose_dtype, load, resolve

TOKENS = [5, 6, 7, 8, 9]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as the hub has them; its config says token 2 ends the output."""
    path = tmp_path / "tiny-llama"
    save("llama 2", path)
    backend_from_metadata(byte_level(eos_token_id=1)).save_pretrained(path)
    (path / "generation_config.json").unlink()
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    return draft.write(tmp_path / "tiny.gguf")


def test_a_folder_is_loaded(folder: Path) -> None:
    loaded = load(folder, dtype="float32")
    assert (loaded.name, loaded.path) == ("tiny-llama", folder)
    assert (loaded.dtype, loaded.decoder.dtype) == (torch.float32, torch.float32)
    assert loaded.weight_bytes >= sum(p.nbytes for p in hf_model("llama 2").parameters() if p.ndim > 1)
    torch.testing.assert_close(
        our_logits(loaded.decoder, TOKENS), hf_logits(hf_model("llama 2"), TOKENS), atol=1e-4, rtol=1e-4
    )


def test_a_gguf_file_is_loaded(file: Path) -> None:
    loaded = load(str(file), dtype="float32")
    assert loaded.name == "tiny"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("سلام")) == "سلام"
    torch.testing.assert_close(
        our_logits(loaded.decoder, TOKENS), hf_logits(hf_model("llama 2"), TOKENS), atol=1e-4, rtol=1e-4
    )


def test_a_folder_with_one_gguf_file_stands_for_it(file: Path) -> None:
    assert resolve(file.parent) == file


def test_progress_ends_at_the_total(file: Path) -> None:
    seen: list[tuple[int, int]] = []
    load(file, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)


# -- end tokens -----------------------------------------------------------------------------


def test_end_tokens_come_from_the_generation_config_first(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    loaded = load(folder)
    assert loaded.config.eos_ids == loaded.tokenizer.eos_ids == (4, 5)


def test_then_from_the_config(folder: Path) -> None:
    assert load(folder).tokenizer.eos_ids == (2,)


def test_then_from_the_tokenizer(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}))
    loaded = load(folder)
    assert loaded.config.eos_ids == loaded.tokenizer.eos_ids == (1,)


# -- type and device ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("abilities", "expected"),
    [({"amx_bf16": True}, torch.bfloat16), ({"avx512_bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)],
)
def test_the_type_follows_the_processor(
    abilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: abilities)
    assert choose_dtype("auto", torch.device("cpu")) == expected


def test_an_unknown_type_is_refused_by_name(file: Path) -> None:
    with pytest.raises(InvalidOption, match=r"dtype must be auto or one of float32, bfloat16, got 'int4'"):
        load(file, dtype="int4")


@pytest.mark.parametrize("device", ["toaster", "cuda:77"])
def test_a_device_that_is_not_there_is_refused(device: str, file: Path) -> None:
    with pytest.raises(InvalidOption, match=f"device must be auto or a device of this machine, got '{device}'"):
        load(file, device=device)


# -- names ------------------------------------------------------------------------------------


def test_a_pulled_name_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find", lambda name: file if name == "smollm2-135m-instruct" else None)
    assert load("smollm2-135m-instruct").name == "smollm2-135m-instruct"


def test_a_name_that_was_not_pulled_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find", lambda name: None)
    with pytest.raises(ModelError, match="gamaneh pull smollm2-135m-instruct"):
        resolve("smollm2-135m-instruct")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ModelError, match="'no-such-model'"):
        resolve("no-such-model")


def test_a_hub_id_goes_to_the_hub(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_from_hub", lambda name: file if name == "owner/model" else None)
    assert resolve("owner/model") == file


# -- damage -----------------------------------------------------------------------------------


def test_a_truncated_file_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CorruptModel, match=r"tiny\.gguf.*truncated"):
        load(file)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"must hold config\.json or one GGUF file"):
        load(tmp_path)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CorruptModel, match="safetensors"):
        load(folder)
