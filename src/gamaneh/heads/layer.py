"""One decoder layer of heads: the form that is trained, whose weights are those of `models.decoder.Layer`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.models.config import DecoderConfig, LayerSpec
from gamaneh.models.decoder import Rotary, rotate
from gamaneh.models.rope import rope_tables

_FIRST_SPREAD = 0.02


def layer_config(config: DecoderConfig, count: int, intermediate_size: int | None = None) -> DecoderConfig:
    """Plain layers of the target's width, heads and rotation, for as many positions as the target has."""
    return DecoderConfig(
        family="llama",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=intermediate_size or config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        layers=(LayerSpec(),) * count,
        max_context=config.max_context,
        ropes=config.ropes[:1],
        norm_eps=config.norm_eps,
    )


class TrainedLayer(nn.Module):
    """Attention and feed-forward with their norms and residuals, over whole texts.

    Its parameters have the names and shapes of a canonical layer. It begins as the identity: what attention and
    feed-forward put out is multiplied by zeros.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.config = config
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Linear(hidden, config.qkv_size, bias=False)
        self.out = nn.Linear(config.num_heads * config.head_dim, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        for spread, linears in ((_FIRST_SPREAD, (self.qkv, self.gate_up)), (0.0, (self.out, self.down))):
            for linear in linears:
                nn.init.normal_(linear.weight, std=spread)

    def forward(self, x: Tensor, positions: Tensor | None = None, visible: Tensor | None = None) -> Tensor:
        """`[batch, length, hidden]`, each row sees itself and those before it.

        Args:
            positions: `[length]` of the rows; None counts from 0.
            visible: `[length, length]`, true where the row sees the column; None for all up to the row itself.
        """
        x = x + self._attention(self._norm(self.attn_norm, x), positions, visible)
        gate, up = self.gate_up(self._norm(self.mlp_norm, x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)  # type: ignore[no-any-return]

    def canonical(self, index: int) -> dict[str, Tensor]:
        """The weights under the names that a decoder reads for its layer `index`."""
        return {f"layers.{index}.{name}": weight for name, weight in self.state_dict().items()}

    def _attention(self, x: Tensor, positions: Tensor | None, visible: Tensor | None) -> Tensor:
        config, (batch, length, _) = self.config, x.shape
        qkv = self.qkv(x).view(batch * length, -1, config.head_dim)
        rotated, values = torch.split(qkv, [config.num_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        rotated = rotate(rotated, *self._rotation(batch, length, x, positions))
        queries, keys = torch.split(rotated, [config.num_heads, config.num_kv_heads], dim=1)
        queries, keys, values = (
            part.reshape(batch, length, -1, config.head_dim).transpose(1, 2) for part in (queries, keys, values)
        )
        mixed = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=visible,
            is_causal=visible is None,
            scale=config.scale,
            enable_gqa=True,
        )
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _norm(self, weight: Tensor, x: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _rotation(self, batch: int, length: int, like: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        at = torch.arange(length, device=like.device) if positions is None else positions
        tables = rope_tables(self.config.ropes[0], self.config.head_dim, int(at.max()) + 1)
        rotary = Rotary(*(table.to(like.device, like.dtype) for table in tables))
        return rotary.rows(at.repeat(batch))
