"""The catalogue's names over tiny models and heads, so that every example runs as written, offline and in seconds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

from gamaneh.heads import locate
from gamaneh.heads.artifact import save_artifact
from gamaneh.models import catalogue, fetch
from gamaneh.models.catalogue import Entry
from gamaneh.models.gguf_tokenizer import CONTROL
from gamaneh.models.loading import load
from gamaneh.testing import tiny_heads

SHIPPED_FOR = "smollm2-135m-instruct"
LAYERS, HIDDEN, INNER, HEADS, CONTEXT = 2, 32, 48, 4, 4096
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each name of the catalogue stand for a tiny model, pulled already into `folder`."""
    folder.mkdir(parents=True)
    entries = {entry.name: _tiny_entry(entry, folder, seed) for seed, entry in enumerate(catalogue.entries())}
    monkeypatch.setattr(catalogue, "_ENTRIES", entries)
    monkeypatch.setenv(fetch.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(locate, "SHIPPED", folder / "shipped")
    target = load(SHIPPED_FOR)
    for kind in ("medusa", "eagle"):
        save_artifact(tiny_heads(target, kind), locate.SHIPPED / SHIPPED_FOR / kind)


def _tiny_entry(entry: Entry, folder: Path, seed: int) -> Entry:
    path = write_tiny_gguf(folder / entry.file, seed)
    return replace(entry, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size=path.stat().st_size)


def write_tiny_gguf(path: Path, seed: int) -> Path:
    """A random model of two layers with a byte-level tokenizer and a chat template."""
    writer = GGUFWriter(path, "llama")
    pieces = [*sorted(ByteLevel.alphabet()), "he", "<|im_end|>"]
    _add_sizes(writer)
    _add_tokenizer(writer, pieces)
    noise = np.random.default_rng(seed)
    for name, shape in _shapes(len(pieces)).items():
        values = np.ones(shape) if "norm" in name else noise.standard_normal(shape) * 2 / shape[-1] ** 0.5
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: GGUFWriter) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)


def _add_tokenizer(writer: GGUFWriter, pieces: Sequence[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([*[1] * (len(pieces) - 1), CONTROL])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(len(pieces) - 1)
    writer.add_chat_template(TEMPLATE)


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN, HIDDEN),
        "attn_v": (HIDDEN, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    whole = {"token_embd": (vocab, HIDDEN), "output_norm": (HIDDEN,)}
    return {f"{name}.weight": shape for name, shape in whole.items()} | {
        f"blk.{index}.{name}.weight": shape for index in range(LAYERS) for name, shape in layer.items()
    }
