"""What a decoder is made of, as data: one class of model covers every Llama-shaped family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of some layers.

    Args:
        theta: base of the geometric series of frequencies.
        scaling: `none`, `linear`, `dynamic`, `llama3` or `yarn`.
        factor: how far the context is stretched.
        original_context: context length before stretching.
        low_freq_factor, high_freq_factor: llama3 only.
        beta_fast, beta_slow, attention_factor: yarn only; `attention_factor` scales cos and sin.
        divisors: one per rotated pair, which its frequency is divided by after scaling; empty for none.
    """

    theta: float = 10000.0
    scaling: Literal["none", "linear", "dynamic", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: its attention window in tokens (None: all) and its entry in `ropes` (None: no rotation)."""

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape and switches of a decoder.

    Weight names, all `[out, in]` where they are matrices: `embedding`, `norm`, `head` (absent when
    tied), and per layer `layers.N.` + `qkv.weight`, `qkv.bias`, `out.weight`, `out.bias`,
    `gate_up.weight`, `gate_up.bias`, `down.weight`, `down.bias`, `attn_norm`, `mlp_norm`, `post_attn_norm`,
    `post_mlp_norm`, `q_norm`, `k_norm`. Query, key and value rows are stacked in `qkv`, gate and
    up rows in `gate_up`. Norms that add one to their weight have it added at load.

    Args:
        attention_softcap, logit_softcap: scores of the attention, and logits, become `cap * tanh(score / cap)`
            (Gemma 2 report, section 2); None leaves them.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_context: int
    ropes: tuple[RopeSpec, ...] = (RopeSpec(),)
    norm_eps: float = 1e-5
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    tied_embedding: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
