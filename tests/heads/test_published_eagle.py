"""EAGLE-3 checkpoints of others, made here to the documented formats, draft what their own arithmetic says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gamaneh.engine.llm import LLM
from gamaneh.errors import CorruptModel, ModelError, UnsupportedModel
from gamaneh.heads.eagle_head import EagleHead, load_eagle
from gamaneh.heads.locate import check_heads, open_heads
from gamaneh.heads.published import is_published, read_published
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.config import DecoderConfig, LayerSpec
from gamaneh.models.loading import LoadedModel
from gamaneh.options import SamplingParams
from gamaneh.testing import TINY_CONFIGS, tiny_model

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, DRAFT_VOCAB, LAYERS = 32, 48, 4, 2, 8, 24, 8
EPS, THETA = 1e-5, 10000.0


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    config: DecoderConfig = TINY_CONFIGS["llama"]
    values = {**{name: getattr(config, name) for name in config.__slots__}, "layers": (LayerSpec(),) * LAYERS}
    return tiny_model(config=DecoderConfig(**values))


LAYER_CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": 1,
    "vocab_size": 260,
    "max_position_embeddings": 512,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


def speculators_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3}]},
        "transformer_layer_config": dict(LAYER_CONFIG),
        **changes,
    }


def native_config(**changes: Any) -> dict[str, Any]:
    return {**LAYER_CONFIG, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB, **changes}


def some_tensors(prefix: str, *, norms: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        f"{prefix}input_layernorm.weight": (HIDDEN,),
        f"{prefix}hidden_norm.weight": (HIDDEN,),
        f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
        f"{prefix}mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INNER, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INNER),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        **{name: (size,) for name, size in (norms or {}).items()},
    }
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    ids = torch.randperm(260, generator=generator)[:DRAFT_VOCAB].sort().values
    known = torch.zeros(260, dtype=torch.bool)
    known[ids] = True
    return {**tensors, "d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": known}


def written(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """`[length, heads, head_dim]`, halves rotated into each other as Llama does."""
    angles = positions[:, None] / THETA ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (torch.cat([part, part], dim=-1)[:, None] for part in (angles.cos(), angles.sin()))
    turned = torch.cat([-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]], dim=-1)
    return x * cos + turned * sin


def reference_chain(
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: str,
    text: Tensor,
    hidden: Tensor,
    embedding: Tensor,
) -> list[Tensor]:
    """`[draft_vocab]` logits of three candidates behind `text[: len(hidden) + 1]`, the whole sequence each time."""
    get = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    features = hidden.flatten(1)
    if config.get("norm_before_fc"):
        features = rms(features, get["input_norm.weight"])
    if config.get("fc_norm"):
        features = torch.cat([rms(hidden[:, at], get[f"fc_norm.{at}.weight"]) for at in range(3)], dim=-1)
    features = features @ get["fc.weight"].T
    logits = []
    for _ in range(3):
        embedded = embedding[text[1 : len(features) + 1]]
        normed = rms(features, get["hidden_norm.weight"])
        x = torch.cat([rms(embedded, get["input_layernorm.weight"]), normed], dim=-1)
        positions = torch.arange(len(x))
        queries, keys, values = (
            (x @ get[f"self_attn.{part}_proj.weight"].T).unflatten(-1, (-1, HEAD_DIM)) for part in "qkv"
        )
        queries, keys = rotated(queries, positions), rotated(keys, positions)
        keys, values = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / HEAD_DIM**0.5
        scores = scores.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
        y = (normed if config.get("norm_before_residual") else features) + mixed @ get["self_attn.o_proj.weight"].T
        inner = rms(y, get["post_attention_layernorm.weight"])
        gated = torch.nn.functional.silu(inner @ get["mlp.gate_proj.weight"].T) * (inner @ get["mlp.up_proj.weight"].T)
        y = y + gated @ get["mlp.down_proj.weight"].T
        final = rms(y[-1], get["norm.weight"])
        logits.append(final @ get["lm_head.weight"].T)
        features = torch.cat([features, (final if config.get("norm_output") else y[-1])[None]])
    return logits


NORMS = {"input_norm.weight": 3 * HIDDEN}
EACH = {f"fc_norm.{at}.weight": HIDDEN for at in range(3)}

FORMS: Mapping[str, tuple[dict[str, Any], str, Mapping[str, int]]] = {
    "native": (native_config(), "midlayer.", {}),
    "native with norms": (native_config(eagle_config={"norm_before_fc": True}), "midlayer.", NORMS),
    "speculators": (speculators_config(), "layers.0.", {}),
    "speculators, residual": (speculators_config(norm_before_residual=False), "layers.0.", {}),
    "speculators, joint": (speculators_config(norm_before_fc=True, norm_output=True), "layers.0.", NORMS),
    "speculators, each": (speculators_config(fc_norm=True, norm_output=True), "layers.0.", EACH),
}


def own_chain(head: EagleHead, text: Tensor, hidden: Tensor) -> list[Tensor]:
    states = torch.zeros(1, len(text), *hidden.shape[1:])
    states[0, : len(hidden)] = hidden
    logits = head.draft_logits(TrainBatch(text[None], states, torch.ones(1, len(text), dtype=torch.bool)))
    return [part[0, len(hidden) - 1] for part in logits[:3]]


@pytest.mark.parametrize("form", FORMS)
def test_they_draft_what_their_own_arithmetic_says(target: LoadedModel, form: str, tmp_path: Path) -> None:
    config, prefix, norms = FORMS[form]
    tensors = some_tensors(prefix, norms=norms)
    folder = written(tmp_path / "heads", config, tensors)
    head = load_eagle(read_published(folder, target), target)
    generator = torch.Generator().manual_seed(5)
    text, hidden = torch.randint(0, 256, (14,), generator=generator), torch.randn(10, 3, HIDDEN, generator=generator)
    flat = {**config, **config.get("eagle_config", {})}
    with torch.no_grad():
        theirs = reference_chain(flat, tensors, prefix, text, hidden, target.decoder.embedding)
        for own, other in zip(own_chain(head, text, hidden), theirs, strict=True):
            torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-3)
    ids = head.draft_ids()
    assert ids is not None
    assert ids.tolist() == tensors["t2d"].nonzero().flatten().tolist()


def test_layers_are_those_of_either_convention(target: LoadedModel, tmp_path: Path) -> None:
    cases = {
        "said": (speculators_config(eagle_aux_hidden_state_layer_ids=[2, 4, 5]), (2, 4, 5)),
        "counted from zero": (speculators_config(eagle_aux_hidden_state_layer_ids=[1, 3, 4]), (2, 4, 5)),
        "left out": (speculators_config(eagle_aux_hidden_state_layer_ids=None), (2, 4, 5)),
    }
    for name, (config, layers) in cases.items():
        folder = written(tmp_path / name, config, some_tensors("layers.0."))
        assert tuple(read_published(folder, target).shape["hidden_layers"]) == layers, name


@pytest.mark.parametrize("same", [True, False])
def test_a_copy_of_the_target_s_embedding_is_not_kept(target: LoadedModel, same: bool, tmp_path: Path) -> None:
    embedding = target.decoder.embedding.clone() + (0.0 if same else 1.0)
    folder = written(
        tmp_path / "h", speculators_config(), {**some_tensors("layers.0."), "embed_tokens.weight": embedding}
    )
    artifact = read_published(folder, target)
    assert artifact.shape["own_embedding"] is not same
    assert ("embedding.weight" in artifact.tensors) is not same


def test_tensors_only_pickles_are_read(target: LoadedModel, tmp_path: Path) -> None:
    folder = written(tmp_path / "h", native_config(), {})
    (folder / "model.safetensors").unlink()
    torch.save(some_tensors("midlayer."), folder / "pytorch_model.bin")
    assert load_eagle(read_published(folder, target), target).draft_ids() is not None


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("ran"),)  # type: ignore[return-value]


def test_pickles_of_anything_else_are_refused(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = written(tmp_path / "h", native_config(), {})
    (folder / "model.safetensors").unlink()
    torch.save({"fc.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(CorruptModel, match="cannot be read"):
        read_published(folder, target)
    assert not (tmp_path / "ran").exists()


def test_they_are_opened_like_heads_of_ours(target: LoadedModel, tmp_path: Path) -> None:
    folder = written(tmp_path / "heads", speculators_config(), some_tensors("layers.0."))
    (artifact,) = open_heads([folder], target)
    assert artifact.kind == "eagle"
    assert artifact.provenance.data == {"published": "heads"}


def test_other_folders_are_not_published_heads(tmp_path: Path) -> None:
    assert not is_published(tmp_path)
    assert not is_published(written(tmp_path / "model", {"architectures": ["LlamaForCausalLM"]}, {}))


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "kind": (speculators_config(speculators_model_type="mlp"), "eagle3"),
    "two layers": (native_config(num_hidden_layers=2), "one layer"),
    "bias": (native_config(attention_bias=True), "biases"),
    "window": (native_config(layer_types=["sliding_attention"]), "see everything"),
    "family": (native_config(model_type="qwen3"), "llama"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_features_that_we_do_not_have_are_named(target: LoadedModel, case: str, tmp_path: Path) -> None:
    config, words = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=words):
        read_published(written(tmp_path / "h", config, some_tensors("midlayer.")), target)


def test_damage_is_named(target: LoadedModel, tmp_path: Path) -> None:
    whole = some_tensors("layers.0.")
    lacking = {name: tensor for name, tensor in whole.items() if "q_proj" not in name}
    with pytest.raises(CorruptModel, match="q_proj"):
        read_published(written(tmp_path / "h", speculators_config(), lacking), target)
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp"):
        read_published(written(tmp_path / "h", speculators_config(), {**whole, "layers.1.mlp": torch.ones(1)}), target)
    with pytest.raises(CorruptModel, match=r"fc\.weight .*must have shape \(32, 96\), got \(32, 32\)"):
        wide = {**whole, "fc.weight": torch.ones(HIDDEN, HIDDEN)}
        load_eagle(read_published(written(tmp_path / "h", speculators_config(), wide), target), target)
    with pytest.raises(CorruptModel, match="d2t"):
        beyond = {**whole, "d2t": whole["d2t"] + 300}
        read_published(written(tmp_path / "h", speculators_config(), beyond), target)
    with pytest.raises(CorruptModel, match=r"norm\.weight.*NaN"):
        broken = {**whole, "norm.weight": torch.full((HIDDEN,), float("nan"))}
        read_published(written(tmp_path / "h", speculators_config(), broken), target)
    with pytest.raises(CorruptModel, match="norm_before_residual"):
        config = speculators_config()
        del config["norm_before_residual"]
        read_published(written(tmp_path / "h", config, whole), target)
    written(tmp_path / "h", speculators_config(), whole)
    (tmp_path / "h" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(CorruptModel, match="cannot be read"):
        read_published(tmp_path / "h", target)


# -- vocabulary maps and names ---------------------------------------------------------------


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    """Tensors of the usual heads, some replaced, or left out where None."""
    tensors = {**some_tensors("layers.0."), **changes}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


GOOD = some_tensors("layers.0.")
IDS = GOOD["t2d"].nonzero().flatten()

BAD_MAPS: Mapping[str, tuple[dict[str, Tensor], str]] = {
    "absolute, against the marks": (changed(d2t=IDS), "d2t in .* must lead to"),
    "absolute, in range, without marks": (
        {**changed(t2d=None), "d2t": torch.arange(100), "lm_head.weight": torch.ones(100, HIDDEN)},
        "must hold distances, which do not rise",
    ),
    "all zero, against the marks": (changed(d2t=torch.zeros(DRAFT_VOCAB, dtype=torch.long)), "tokens that .*t2d"),
    "all zero, without marks": (changed(d2t=torch.zeros(DRAFT_VOCAB, dtype=torch.long), t2d=None), "not only zeros"),
    "a token twice": (changed(d2t=torch.cat([GOOD["d2t"][:1], GOOD["d2t"][:-1] - 1]), t2d=None), "each token once"),
    "against the marks": (changed(t2d=GOOD["t2d"].roll(1)), "must lead to the tokens that .*t2d.* marks"),
    "floats": (changed(d2t=GOOD["d2t"].float()), r"must hold whole numbers, got torch\.float32"),
    "too short": (changed(d2t=GOOD["d2t"][:-1]), "must have an entry for each of 24 rows"),
    "missing": (changed(d2t=None, t2d=None), r"lm_head\.weight in .* or come with d2t, got 24"),
    "marks of another number": (changed(d2t=None, t2d=torch.ones(260, dtype=torch.bool)), "t2d in .* must mark 24"),
    "marks that are none": (changed(t2d=torch.full((260,), 7)), "t2d in .* must hold a mark"),
    "config of another size": (
        {**GOOD, "lm_head.weight": torch.ones(20, HIDDEN)},
        r"draft_vocab_size rows \(24\), got 20",
    ),
}


@pytest.mark.parametrize("case", BAD_MAPS)
def test_a_vocabulary_map_that_cannot_be_right_is_refused_by_the_tensor_s_name(
    target: LoadedModel, case: str, tmp_path: Path
) -> None:
    tensors, message = BAD_MAPS[case]
    config = speculators_config(draft_vocab_size=100 if len(tensors["lm_head.weight"]) == 100 else DRAFT_VOCAB)
    with pytest.raises(CorruptModel, match=message):
        read_published(written(tmp_path / "h", config, tensors), target)


@pytest.mark.parametrize("left_out", ["d2t", "t2d"])
def test_either_map_alone_leads_to_the_same_tokens(target: LoadedModel, left_out: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "h", speculators_config(), changed(**{left_out: None}))
    assert torch.equal(read_published(folder, target).tensors["draft_ids"], IDS)


def test_layers_under_two_names_are_refused(target: LoadedModel, tmp_path: Path) -> None:
    twice = {**GOOD, "midlayer.hidden_norm.weight": torch.ones(HIDDEN)}
    with pytest.raises(
        CorruptModel, match=r"one of the tensors .*hidden_norm\.weight and .*hidden_norm\.weight, got both"
    ):
        read_published(written(tmp_path / "h", speculators_config(), twice), target)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("fc.weight", (HIDDEN, 3 * HIDDEN + 96), (HIDDEN, 96)),
        ("embed_tokens.weight", (260, 48), (260, HIDDEN)),
        ("layers.0.self_attn.k_proj.weight", (16, HIDDEN), (16, 64)),
        ("lm_head.weight", (DRAFT_VOCAB, 48), (DRAFT_VOCAB, HIDDEN)),
    ],
)
def test_a_wrong_width_is_told_with_the_file_s_own_name(
    target: LoadedModel, name: str, shape: tuple[int, ...], expected: tuple[int, ...], tmp_path: Path
) -> None:
    folder = written(tmp_path / "h", speculators_config(), {**GOOD, name: torch.ones(shape)})
    told = re.escape(f"tensor {name} in {folder} must have shape {expected}, got {shape}")
    with pytest.raises(CorruptModel, match=told):
        read_published(folder, target)


def test_another_width_without_an_embedding_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    config = speculators_config(transformer_layer_config={**LAYER_CONFIG, "hidden_size": 48})
    with pytest.raises(CorruptModel, match=r"must have embed_tokens\.weight, since their hidden_size is 48 .* 32"):
        read_published(written(tmp_path / "h", config, GOOD), target)


def test_a_base_that_is_not_given_is_warned_of_beside_the_target_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TINY_CONFIGS["llama"]
    target = tiny_model(
        config=replace(config, layers=(LayerSpec(),) * LAYERS, ropes=(replace(config.ropes[0], theta=5e5),))
    )
    layer = {key: value for key, value in LAYER_CONFIG.items() if key != "rope_theta"}
    read_published(written(tmp_path / "h", speculators_config(transformer_layer_config=layer), GOOD), target)
    assert "does not give rope_theta: taking 10000.0, where the target has 500000.0" in caplog.text


def test_they_are_used_wherever_heads_are_given(target: LoadedModel, tmp_path: Path) -> None:
    folder = written(tmp_path / "heads", speculators_config(), GOOD)
    check_heads([folder])
    llm = LLM(target, heads=[folder])
    assert [artifact.kind for artifact in llm.heads] == ["eagle"]
    plain = LLM(target)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    assert llm.generate([[1, 2, 3]], params)[0].tokens == plain.generate([[1, 2, 3]], params)[0].tokens


def test_errors_of_heads_say_whose_they_are_and_where(target: LoadedModel, tmp_path: Path) -> None:
    folder = written(tmp_path / "heads", speculators_config(), changed(**{"fc.weight": None}))
    with pytest.raises(CorruptModel, match=rf"^heads {folder} \(option heads\): .* lack the tensor fc\.weight"):
        open_heads([folder], target)
    with pytest.raises(ModelError, match=r"^heads nowhere \(option heads\): heads must be a folder"):
        LLM("no-model-that-is-read", heads=["nowhere"])
