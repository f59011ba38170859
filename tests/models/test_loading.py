"""From a name or a path to a model that runs."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf_models import as_gguf
from hf_models import hf_logits, hf_model, our_logits, save
from test_tokenizer import byte_level

from gamaneh.bench.engines import as_tokens
from gamaneh.errors import CorruptModel, InvalidOption, ModelError, UnsupportedModel
from gamaneh.models import fetch, loading
from gamaneh.models.canonical import weight_shapes
from gamaneh.models.gguf_tokenizer import backend_from_metadata
from gamaneh.models.loading import DRAFT, TARGET, Role, choose_dtype, load, open_model, resolve
from gamaneh.models.weights import SafetensorsWeights
from gamaneh.options import Precision

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
    loaded = load(folder, precision=Precision(weights="float32"))
    assert (loaded.name, loaded.path) == ("tiny-llama", folder)
    assert (loaded.dtype, loaded.decoder.dtype) == (torch.float32, torch.float32)
    assert loaded.weight_bytes >= sum(p.nbytes for p in hf_model("llama 2").parameters() if p.ndim > 1)
    torch.testing.assert_close(
        our_logits(loaded.decoder, TOKENS), hf_logits(hf_model("llama 2"), TOKENS), atol=1e-4, rtol=1e-4
    )


def test_a_gguf_file_is_loaded(file: Path) -> None:
    loaded = load(str(file), precision=Precision(weights="float32"))
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

ENDOFTEXT, IM_START, IM_END = 0, 1, 2


def edit(folder: Path, name: str, **changes: Any) -> None:
    """Change keys of a JSON file; None leaves one out."""
    path = folder / name
    values = {**(json.loads(path.read_text()) if path.is_file() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


@pytest.fixture
def bare(folder: Path) -> Path:
    """A folder that names one end token, 0, and whose template writes none."""
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit(folder, "config.json", eos_token_id=None, bos_token_id=None)
    edit(folder, "tokenizer_config.json", eos_token="<|endoftext|>", chat_template=None)
    return folder


def test_end_tokens_are_the_union_of_all_sources_the_generation_config_first(folder: Path) -> None:
    edit(folder, "generation_config.json", eos_token_id=[4, 5])
    loaded = load(folder)
    assert loaded.config.eos_ids == loaded.tokenizer.eos_ids == (4, 5, 2, 1)


def test_the_default_of_a_config_class_is_no_end_token(bare: Path) -> None:
    assert load(bare).tokenizer.eos_ids == (ENDOFTEXT,)
    assert load(bare).config.bos_id is None


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("generation_config.json", [IM_END]),
        ("generation_config.json", IM_END),
        ("config.json", IM_END),
        ("special_tokens_map.json", "<|im_end|>"),
        ("special_tokens_map.json", {"content": "<|im_end|>", "special": True}),
    ],
)
def test_an_end_token_that_one_file_alone_names_ends_the_output(file: str, value: Any, bare: Path) -> None:
    edit(bare, file, **{"eos_token" if file.startswith("special") else "eos_token_id": value})
    assert set(load(bare).tokenizer.eos_ids) == {ENDOFTEXT, IM_END}


def test_an_end_marker_that_only_the_template_writes_ends_the_output(bare: Path) -> None:
    (bare / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    assert set(load(bare).tokenizer.eos_ids) == {ENDOFTEXT, IM_END}


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_a_gguf_file_ends_where_its_folder_does_whatever_the_type_of_the_marker(kind: int, tmp_path: Path) -> None:
    draft = as_gguf(hf_model("llama 2"), "llama")
    types = byte_level()["tokenizer.ggml.token_type"]
    draft.metadata |= byte_level(eos_token_id=1, token_type=[*types[:2], kind, *types[3:]])
    assert {1, IM_END} <= set(load(draft.write(tmp_path / "tiny.gguf")).tokenizer.eos_ids)


@pytest.mark.parametrize("value", [10**6, -1, "2", [2, "x"], True])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_an_end_id_that_is_none_of_the_model_is_refused_by_file_and_key(file: str, value: Any, bare: Path) -> None:
    edit(bare, file, eos_token_id=value)
    with pytest.raises(CorruptModel, match=rf"{file}: eos_token_id must hold token ids from 0 to 95, got"):
        load(bare)


def test_an_end_token_that_the_vocabulary_lacks_is_refused(bare: Path) -> None:
    edit(bare, "special_tokens_map.json", eos_token="<|nowhere|>")
    with pytest.raises(CorruptModel, match=r"special_tokens_map\.json: eos_token must be one of .*<\|nowhere\|>"):
        load(bare)


def test_tokens_without_a_row_are_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(folder)
    assert "vocab_size is 96, its tokenizer has 170 more" in caplog.text


# -- whose weights, and what was given --------------------------------------------------------


@pytest.mark.parametrize(("role", "told"), [(TARGET, "target .*option model"), (DRAFT, "draft .*option draft_model")])
def test_errors_name_whose_weights_they_are_about(role: Role, told: str, folder: Path) -> None:
    edit(folder, "config.json", rope_theta="500000.0", rope_parameters=None)
    with pytest.raises(CorruptModel, match=rf"{told}.*tiny-llama.*rope_theta must be a number above 0"):
        load(folder, role=role)


def test_errors_come_before_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetensorsWeights, "stored", lambda *_: pytest.fail("weights were read"))
    edit(folder, "config.json", intermediate_size=97)
    with pytest.raises(CorruptModel, match=r"gate_proj\.weight must have shape \(97, 64\), got \(96, 64\)"):
        open_model(folder)


def test_opening_reads_no_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetensorsWeights, "stored", lambda *_: pytest.fail("weights were read"))
    with closing(open_model(folder)) as opened:
        assert opened.config.vocab_size == 96
        assert opened.tokenizer.eos_ids
        assert set(opened.tensors.names) == set(weight_shapes(opened.config))


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "nowhere.gguf", "~/nowhere-at-all"])
def test_a_path_that_leads_nowhere_is_named_for_that(name: str) -> None:
    with pytest.raises(ModelError, match=rf"target {re.escape(name)} .*no file or folder is at"):
        load(name)


def test_an_adapter_is_refused_as_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(UnsupportedModel, match=r"got an adapter \(adapter_config\.json\) for owner/base"):
        load(tmp_path)


def test_an_adapter_beside_a_model_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(UnsupportedModel, match=r"adapter .* for owner/base, which would be left out"):
        load(folder)


def test_several_models_in_a_folder_are_listed(file: Path) -> None:
    copy = file.with_name("other.gguf")
    copy.write_bytes(file.read_bytes())
    with pytest.raises(CorruptModel, match=r"got 2 GGUF files; name one of them: other\.gguf, tiny\.gguf"):
        load(file.parent)


def test_a_config_beside_a_gguf_file_is_no_second_model(file: Path) -> None:
    (file.parent / "config.json").write_text("{}")
    assert load(file.parent).path == file


# -- the begin token ---------------------------------------------------------------------------


def test_the_begin_token_stands_once_in_front_on_every_way_in(tmp_path: Path) -> None:
    draft = as_gguf(hf_model("llama 2"), "llama")
    template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    draft.metadata |= byte_level(add_bos_token=True) | {"tokenizer.chat_template": template}
    tokenizer = load(draft.write(tmp_path / "tiny.gguf")).tokenizer
    ways = {
        "text": tokenizer.encode("hello"),
        "text that begins with it": tokenizer.encode("<|endoftext|>hello"),
        "chat": tokenizer.chat([{"role": "user", "content": "hello"}]),
        "bench": as_tokens(tokenizer, "<|endoftext|>hello", chat=False),
    }
    expected = [0, *tokenizer.encode("hello", special=False)]
    assert {name: ids for name, ids in ways.items() if ids != expected} == {}


# -- precision and device -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("abilities", "expected"),
    [({"amx_bf16": True}, torch.bfloat16), ({"avx512_bf16": True}, torch.bfloat16), ({"avx2": True}, torch.float32)],
)
def test_the_type_follows_the_processor(
    abilities: dict[str, bool], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: abilities)
    assert choose_dtype(Precision(), torch.device("cpu")) == expected


@pytest.mark.parametrize(
    ("precision", "formats", "expected"),
    [
        (Precision(weights="bfloat16"), ("Q4_1",), torch.bfloat16),
        (Precision(weights="float32", compute="float32", kv="float32"), (), torch.float32),
        (Precision(compute="bfloat16"), (), torch.bfloat16),
        (Precision(weights="stored"), ("bfloat16",), torch.bfloat16),
        (Precision(weights="stored"), ("float32",), torch.float32),
    ],
)
def test_torch_keeps_weights_in_the_type_that_it_computes_in(
    precision: Precision, formats: tuple[str, ...], expected: torch.dtype
) -> None:
    assert choose_dtype(precision, torch.device("cpu"), formats) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"weights": "int4"}, r"weights must be auto, stored, float32 or bfloat16 where torch .*, got 'int4'"),
        ({"weights": "float32", "compute": "bfloat16"}, r"compute must be auto or that of the weights \(float32\)"),
        ({"weights": "float32", "kv": "bfloat16"}, r"kv must be auto or that of the weights \(float32\)"),
        ({"weights": "float64"}, r"weights must be one of auto, stored, .*, got 'float64'"),
        ({"compute": "int8"}, "compute must be one of auto, float32, bfloat16, got 'int8'"),
    ],
)
def test_a_precision_that_nothing_at_hand_has_is_refused_by_name(
    asked: dict[str, str], message: str, file: Path
) -> None:
    with pytest.raises(InvalidOption, match=message):
        load(file, precision=Precision(**asked))


def test_stored_formats_that_torch_does_not_keep_are_named(tmp_path: Path) -> None:
    draft = as_gguf(hf_model("llama 2"), "llama")
    draft.metadata |= byte_level()
    draft.kinds["blk.0.ffn_up.weight"] = GGMLQuantizationType.Q8_0
    path = draft.write(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidOption, match=r"weights must be float32 or bfloat16 where torch .*Q8_0, float32"):
        load(path, precision=Precision(weights="stored"))
    with closing(open_model(path)) as opened:
        assert opened.tensors.formats == ("Q8_0", "float32")
        stored = opened.tensors.as_stored()
    gate, up = stored["layers.0.gate_up.weight"]
    assert (gate.format.name, up.format.name) == ("float32", "Q8_0")
    assert stored["norm"].shape == (64,)


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
    with pytest.raises(ModelError, match=r"a file or folder, a hub id or one of the catalogue's .*'no-such-model'"):
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
