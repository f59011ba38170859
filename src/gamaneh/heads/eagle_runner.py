"""An EAGLE head as it drafts: packed weights and a dense cache, few operations per level."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.heads.borrowed import head_rows
from gamaneh.heads.dense_cache import DenseCache
from gamaneh.heads.eagle_head import EagleHead, fuse_input
from gamaneh.heads.level import Level
from gamaneh.models.decoder import Decoder, Rotary, rotate
from gamaneh.models.linear import Linear, make_linear
from gamaneh.models.rope import rope_tables


class EagleRunner:
    """Features and tokens in, features and logits out.

    Args:
        head: its weights, in the type to compute with.
        decoder: the target's.
    """

    def __init__(self, head: EagleHead, decoder: Decoder) -> None:
        shape = self.shape = head.shape
        self.hidden_layers, self.draft_ids = head.hidden_layers, head.draft_ids()
        self.dtype, self.device = head.norm.dtype, head.norm.device
        self.embed, self.eps = head.embedder(), shape.norm_eps
        self.fuse_norm, self.embed_norm, self.hidden_norm = head.fuse_norm, head.embed_norm, head.hidden_norm
        self.mlp_norm, self.norm = head.mlp_norm, head.norm
        self.fuse, self.qkv, self.out, self.gate_up, self.down = (
            make_linear(linear.weight.detach()) for linear in (head.fuse, head.qkv, head.out, head.gate_up, head.down)
        )
        self.output = _output(head, decoder)
        cos, sin = rope_tables(shape.rope, shape.head_dim, decoder.config.max_context)
        self.rotary = Rotary(cos.to(self.device, self.dtype), sin.to(self.device, self.dtype))
        self.cache = DenseCache(shape.num_kv_heads, shape.head_dim, self.dtype, self.device)
        shared = self.draft_ids is None and shape.share_head
        self.weight_bytes = sum(linear.nbytes() for linear in self._linears()) + (0 if shared else self.output.nbytes())

    @torch.inference_mode()
    def fused(self, hidden: Tensor) -> Tensor:
        """`[num_rows, num_layers, target_hidden]` of the target -> `[num_rows, hidden]` features."""
        return self.fuse(fuse_input(self.shape, self.fuse_norm, hidden.to(self.dtype)))

    @torch.inference_mode()
    def layer(self, features: Tensor, level: Level) -> Tensor:
        """`[num_rows, hidden]` features of a level's rows -> `[num_rows, hidden]`; keys and values go to the cache."""
        normed = self._rms(features, self.hidden_norm)
        embedded = self._rms(self.embed(level.tokens).to(self.dtype), self.embed_norm)
        mixed = self._attention(torch.cat([embedded, normed], dim=-1), level)
        x = (normed if self.shape.norm_before_residual else features) + mixed
        gate, up = self.gate_up(self._rms(x, self.mlp_norm)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate).mul_(up))

    @torch.inference_mode()
    def guess(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """`[num_rows, hidden]` of `layer` -> features of the rows behind them, `[num_rows, draft_vocab]` logits."""
        normed = self._rms(outputs, self.norm)
        return normed if self.shape.norm_output else outputs, self.output(normed)

    def memory_bytes(self) -> int:
        """Weights, but for those that the target holds anyway, and cache."""
        return self.weight_bytes + self.cache.nbytes

    def _attention(self, x: Tensor, level: Level) -> Tensor:
        shape = self.shape
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        qkv = self.qkv(x).view(x.shape[0], -1, shape.head_dim)
        rotated, values = torch.split(qkv, [heads + kv_heads, kv_heads], dim=1)
        rotated = rotate(rotated, *self.rotary.rows(level.positions))
        queries, keys = torch.split(rotated, [heads, kv_heads], dim=1)
        self.cache.write(level.slots, keys, values)
        return self.out(self._attend(queries, level))

    def _attend(self, queries: Tensor, level: Level) -> Tensor:
        """The query heads of one key head are folded into the rows, so that each key is read once."""
        kv_heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        strands, repeats = len(level.rows), queries.shape[1] // kv_heads
        padded = _padded(queries, level)
        folded = padded.view(strands, level.queries, kv_heads, repeats, head_dim).transpose(1, 2).flatten(2, 3)
        keys, values = self.cache.read(level.rows, level.length)
        mask = None if level.mask is None else level.mask.repeat_interleave(repeats, dim=2)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        unfolded = mixed.view(strands, kv_heads, level.queries, repeats, head_dim).transpose(1, 2)
        rows = unfolded.reshape(strands * level.queries, -1)
        return rows if level.places is None else rows[level.places]

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _linears(self) -> list[Linear]:
        return [self.fuse, self.qkv, self.out, self.gate_up, self.down]


def _output(head: EagleHead, decoder: Decoder) -> Linear:
    """The output matrix: the target's own where all of it is borrowed, a packed one else."""
    if head.head is not None:
        return make_linear(head.head.weight.detach())
    ids = head.draft_ids()
    return decoder.head if ids is None else make_linear(head_rows(decoder, ids))


def _padded(queries: Tensor, level: Level) -> Tensor:
    if level.places is None:
        return queries
    padded = queries.new_zeros(len(level.rows) * level.queries, *queries.shape[1:])
    return padded.index_copy_(0, level.places, queries)
