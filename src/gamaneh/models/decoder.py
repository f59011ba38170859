"""One decoder, configured by data, for every Llama-shaped family; target and draft alike."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.models.attention import LayerCache, attend, softcapped, write_cache
from gamaneh.models.batch import FlatBatch
from gamaneh.models.config import DecoderConfig, LayerSpec
from gamaneh.models.linear import DenseLinear, Linear, apply_tiled, make_linear
from gamaneh.models.rope import rope_tables

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Rotary:
    """Cosines and signed sines of one `RopeSpec` for every position, `[max_context, head_dim]`."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        half = cos.shape[-1] // 2
        self.cos, self.sin = cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`[num_rows, 1, head_dim]` for the given positions."""
        return self.cos[positions][:, None], self.sin[positions][:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `[num_rows, heads, head_dim]`; `sin` is negative in its first half."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class Layer:
    """Attention and feed-forward, each with its norms and residual."""

    def __init__(
        self, index: int, config: DecoderConfig, spec: LayerSpec, weights: MutableMapping[str, Tensor]
    ) -> None:
        self.index, self.config, self.spec = index, config, spec
        self.qkv = _linear(weights, index, "qkv")
        self.out = _linear(weights, index, "out")
        self.gate_up = _linear(weights, index, "gate_up")
        self.down = _linear(weights, index, "down")
        self.norms = {
            name: weights.pop(f"layers.{index}.{name}")
            for name in ("attn_norm", "mlp_norm", "post_attn_norm", "post_mlp_norm", "q_norm", "k_norm")
            if f"layers.{index}.{name}" in weights
        }
        self.activation = ACTIVATIONS[config.activation]

    @property
    def linears(self) -> list[Linear]:
        return [self.qkv, self.out, self.gate_up, self.down]

    def __call__(
        self, x: Tensor, batch: FlatBatch, cache: LayerCache, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        x = x + self._post("post_attn_norm", self._attention(self._norm("attn_norm", x), batch, cache, rotation))
        return x + self._post("post_mlp_norm", self._mlp(self._norm("mlp_norm", x), batch))

    def _attention(
        self, x: Tensor, batch: FlatBatch, cache: LayerCache, rotation: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        config = self.config
        qkv = apply_tiled(self.qkv, x, batch.splits).view(x.shape[0], -1, config.head_dim)
        rotated, values = torch.split(qkv, [config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        if config.qk_norm:
            queries, keys = torch.split(rotated, [config.num_heads, config.num_kv_heads], dim=1)
            rotated = torch.cat([self._norm("q_norm", queries), self._norm("k_norm", keys)], dim=1)
        if rotation is not None:
            rotated = rotate(rotated, *rotation)
        queries, keys = torch.split(rotated, [config.num_heads, config.num_kv_heads], dim=1)
        key_cache, value_cache = cache.layer(self.index)
        write_cache(key_cache, value_cache, batch, keys, values)
        mixed = attend(queries, key_cache, value_cache, batch, self.spec.window, config.scale, config.attention_softcap)
        return apply_tiled(self.out, mixed, batch.splits)

    def _mlp(self, x: Tensor, batch: FlatBatch) -> Tensor:
        return apply_tiled(self.down, self.gated(apply_tiled(self.gate_up, x, batch.splits)), batch.splits)

    def gated(self, gate_up: Tensor) -> Tensor:
        """`[num_rows, 2 * intermediate]` -> activation of the gate half times the up half."""
        gate, up = gate_up.chunk(2, dim=-1)
        return self.activation(gate).mul_(up)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.norms[name]
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _post(self, name: str, x: Tensor) -> Tensor:
        return self._norm(name, x) if name in self.norms else x


class Decoder:
    """Token rows in, hidden rows and logits out; keys and values go to the cache.

    Args:
        weights: by the names that `DecoderConfig` documents. Each is taken out of the mapping when
            it is put into its format, so that the weights are never held twice.
    """

    def __init__(self, config: DecoderConfig, weights: MutableMapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = weights.pop("embedding")
        self.norm = weights.pop("norm")
        self.layers = [Layer(index, config, spec, weights) for index, spec in enumerate(config.layers)]
        self.head = make_linear(self.embedding if config.tied_embedding else weights.pop("head"))
        self.ropes = [self._rotary(index) for index in range(len(config.ropes))]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    def nbytes(self) -> int:
        """Bytes of the weights as they lie in memory; a tied head counts if it has a format of its own."""
        linears = [linear for layer in self.layers for linear in layer.linears]
        shared = isinstance(self.head, DenseLinear) and self.head.weight is self.embedding
        return (
            self.embedding.nbytes + sum(linear.nbytes() for linear in linears) + (0 if shared else self.head.nbytes())
        )

    def forward(
        self, batch: FlatBatch, cache: LayerCache, *, taps: Sequence[int] = (), num_layers: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the layers over the batch.

        Args:
            taps: layers whose outputs are returned too; 0 is the embedding.
            num_layers: stop after this many layers; None runs them all.

        Returns:
            `[num_rows, hidden]` before the final norm, and one such tensor per tap.
        """
        x = self.embedding[batch.token_ids]
        if self.config.embedding_scale != 1.0:
            x = x * torch.tensor(self.config.embedding_scale, dtype=x.dtype)
        rotations = [rotary.rows(batch.positions) for rotary in self.ropes]
        outputs = [x] if 0 in taps else []
        for layer in self.layers[:num_layers]:
            rotation = None if layer.spec.rope is None else rotations[layer.spec.rope]
            x = layer(x, batch, cache, rotation)
            if layer.index + 1 in taps:
                outputs.append(x)
        return x, outputs

    def logits(self, hidden: Tensor, splits: Sequence[int]) -> Tensor:
        """`[num_rows, hidden]` before the final norm -> `[num_rows, vocab]`."""
        logits = apply_tiled(self.head, self.normed(hidden), splits)
        return logits if self.config.logit_softcap is None else softcapped(logits, self.config.logit_softcap)

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return F.rms_norm(hidden, self.norm.shape, self.norm, self.config.norm_eps)

    def _rotary(self, index: int) -> Rotary:
        cos, sin = rope_tables(self.config.ropes[index], self.config.head_dim, self.config.max_context)
        return Rotary(cos.to(self.device, self.dtype), sin.to(self.device, self.dtype))


def _linear(weights: MutableMapping[str, Tensor], index: int, name: str) -> Linear:
    prefix = f"layers.{index}.{name}"
    return make_linear(weights.pop(f"{prefix}.weight"), weights.pop(f"{prefix}.bias", None))
