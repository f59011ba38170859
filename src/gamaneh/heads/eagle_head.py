"""An EAGLE head as it is trained: one decoder layer that continues the target's own features.

Li et al. 2025, "EAGLE-3". The row of token t fuses the target's hidden states of token t with the embedding
of token t + 1 and guesses token t + 2. Drafting goes on with the head's own output in place of hidden states that
the target has not computed yet, and so does training, for `depth` positions (the paper's training-time test).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.artifact import DRAFT_IDS, Artifact, load_tensors
from gamaneh.heads.borrowed import head_rows, target_embedding
from gamaneh.heads.eagle_shape import EagleShape, shape_for, stored_eagle_shape
from gamaneh.heads.trainable import Embed, TrainBatch
from gamaneh.models.decoder import Decoder, rotate
from gamaneh.models.loading import LoadedModel
from gamaneh.models.rope import rope_tables

INITIAL_SPREAD = 0.02

Keys = tuple[Tensor, Tensor]
"""Keys and values of one position of the unroll, `[batch, num_kv_heads, length, head_dim]` each."""


class EagleHead(nn.Module):
    """The trainable head; implements `DraftHeads`.

    Args:
        decoder: the target's, of which it borrows the embedding and, with `share_head`, the output matrix.
        draft_ids: `[draft_vocab]` tokens that it can draft; None for all.

    Raises:
        InvalidOption: the shape does not fit the target.
    """

    kind = "eagle"
    _draft_ids: Tensor | None
    _borrowed: Tensor | None

    def __init__(self, shape: EagleShape, decoder: Decoder, draft_ids: Tensor | None) -> None:
        super().__init__()
        _check_fit(shape, decoder)
        hidden, inner, taps = shape.hidden_size, shape.intermediate_size, len(shape.hidden_layers)
        vocab = decoder.config.vocab_size if draft_ids is None else len(draft_ids)
        self.shape, self.hidden_layers, self.depth = shape, shape.hidden_layers, shape.depth
        self.fuse = nn.Linear(taps * decoder.config.hidden_size, hidden, bias=False)
        self.fuse_norm = None if shape.fuse_norm == "none" else _norm_weight(taps * decoder.config.hidden_size)
        self.embed_norm, self.hidden_norm = _norm_weight(hidden), _norm_weight(hidden)
        self.qkv = nn.Linear(2 * hidden, shape.qkv_size, bias=False)
        self.out = nn.Linear(shape.num_heads * shape.head_dim, hidden, bias=False)
        self.mlp_norm = _norm_weight(hidden)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.norm = _norm_weight(hidden)
        self.head = None if shape.share_head else nn.Linear(hidden, vocab, bias=False)
        self.embedding = nn.Embedding(decoder.config.vocab_size, hidden) if shape.own_embedding else None
        self.register_buffer("_draft_ids", draft_ids, persistent=False)
        self.register_buffer("_borrowed", head_rows(decoder, draft_ids) if shape.share_head else None, persistent=False)
        self._target_embedding = target_embedding(decoder)

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """As `DraftHeads` says; at position i, rows attend to what the positions before left in the cache."""
        features = self.fused(batch.hidden)
        embedded = self.embedder()(batch.tokens).to(features.dtype)
        unroll = _Unroll(self, batch.tokens.shape[1])
        logits = []
        for step in range(self.depth):
            # Row t of this position stands for token t + step and sees the embedding of the token behind it.
            features = unroll.layer(features, _ahead(embedded, step + 1), step)
            normed = self.rms(features, self.norm)
            logits.append(F.linear(normed, self.output_matrix().to(normed.dtype)))
            features = normed if self.shape.norm_output else features
        return logits

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        return self._draft_ids

    def module(self) -> nn.Module:
        """What is trained."""
        return self

    def fused(self, hidden: Tensor) -> Tensor:
        """`[..., num_layers, target_hidden]` hidden states -> `[..., hidden]` features."""
        fused: Tensor = self.fuse(fuse_input(self.shape, self.fuse_norm, hidden.to(self.fuse.weight.dtype)))
        return fused

    def output_matrix(self) -> Tensor:
        """`[draft_vocab, hidden]`."""
        matrix = self._borrowed if self.head is None else self.head.weight
        assert matrix is not None, "a head either borrows its output matrix or has one"
        return matrix

    def embedder(self) -> Embed:
        """The embedding that it reads tokens with."""
        return self._target_embedding if self.embedding is None else self.embedding

    def rms(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        return F.rms_norm(x, weight.shape, weight, self.shape.norm_eps)

    @torch.no_grad()
    def start(self, decoder: Decoder) -> None:
        """Small weights, the last of the target's layers as fused feature, the target's own norm and output matrix.

        The layer passes the feature on, so that training starts from what the target itself had to say.
        """
        generator = torch.Generator().manual_seed(0)
        for linear in (self.fuse, self.qkv, self.out, self.gate_up, self.down):
            linear.weight.normal_(std=INITIAL_SPREAD, generator=generator)
        if self.shape.hidden_size == decoder.config.hidden_size:
            self.fuse.weight[:, -self.shape.hidden_size :] += torch.eye(self.shape.hidden_size)
            self.norm.copy_(decoder.norm)
            if self.embedding is not None:
                self.embedding.weight.copy_(decoder.embedding)
        if self.head is not None and self.head.in_features == decoder.config.hidden_size:
            self.head.weight.copy_(head_rows(decoder, self._draft_ids))


class _Unroll:
    """The head's layer over a whole text, position after position of the draft.

    At position i, row t attends to the features of all tokens up to t, which the target computed, and to the
    rows that positions 1 to i - 1 left behind at t: these are what a draft that begins at t has in its cache.
    """

    def __init__(self, head: EagleHead, length: int) -> None:
        self.head, self.shape, self.length = head, head.shape, length
        self.rotation = rope_tables(self.shape.rope, self.shape.head_dim, length + self.shape.depth)
        self.past: list[Keys] = []

    def layer(self, features: Tensor, embedded: Tensor, step: int) -> Tensor:
        """`[batch, length, hidden]` features and embeddings of the tokens behind them -> `[batch, length, hidden]`."""
        head = self.head
        normed = head.rms(features, head.hidden_norm)
        x: Tensor = normed if self.shape.norm_before_residual else features
        x = x + self._attention(torch.cat([head.rms(embedded, head.embed_norm), normed], dim=-1), step)
        gate, up = head.gate_up(head.rms(x, head.mlp_norm)).chunk(2, dim=-1)
        inner: Tensor = head.down(F.silu(gate) * up)
        return x + inner

    def _attention(self, x: Tensor, step: int) -> Tensor:
        shape = self.shape
        qkv: Tensor = self.head.qkv(x).view(*x.shape[:2], -1, shape.head_dim)
        queries, keys, values = torch.split(qkv, [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=-2)
        self.past.append((self._rotated(keys, step).transpose(1, 2), values.transpose(1, 2)))
        heads = self._rotated(queries, step).transpose(1, 2)
        grouped = heads.reshape(len(heads), shape.num_kv_heads, -1, *heads.shape[2:])
        mixed = self._mixed(grouped) if step else self._causal(grouped)
        projected: Tensor = self.head.out(mixed.flatten(1, 2).transpose(1, 2).flatten(2))
        return projected

    def _rotated(self, x: Tensor, step: int) -> Tensor:
        """`[batch, length, heads, head_dim]`, row t rotated to the position t + `step`."""
        cos, sin = (part[step : step + self.length, None].to(x) for part in self.rotation)
        half = sin.shape[-1] // 2
        return rotate(x, cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1))

    def _causal(self, queries: Tensor) -> Tensor:
        """`[batch, num_kv_heads, repeats, length, head_dim]` of the first position: plain attention."""
        repeats, scale = queries.shape[2], self.shape.head_dim**-0.5
        keys, values = (part.repeat_interleave(repeats, dim=1) for part in self.past[0])
        mixed = F.scaled_dot_product_attention(queries.flatten(1, 2), keys, values, is_causal=True, scale=scale)
        return mixed.reshape_as(queries)

    def _mixed(self, queries: Tensor) -> Tensor:
        """The same of a later position, with its own past beside the text."""
        keys, values = self.past[0]
        queries = queries * self.shape.head_dim**-0.5
        later = torch.ones(self.length, self.length, dtype=torch.bool, device=queries.device).triu(1)
        text = (queries @ keys[:, :, None].transpose(-1, -2)).masked_fill(later, float("-inf"))
        own = [(queries * past_keys[:, :, None]).sum(-1, keepdim=True) for past_keys, _ in self.past[1:]]
        weights = torch.cat([text, *own], dim=-1).softmax(-1)
        mixed = weights[..., : self.length] @ values[:, :, None]
        for at, (_, past_values) in enumerate(self.past[1:], start=self.length):
            mixed = mixed + weights[..., at : at + 1] * past_values[:, :, None]
        return mixed


def fuse_input(shape: EagleShape, weight: Tensor | None, hidden: Tensor) -> Tensor:
    """`[..., num_layers, target_hidden]` hidden states -> `[..., fused]`, normalised as the shape says."""
    if weight is None:
        return hidden.flatten(-2)
    if shape.fuse_norm == "joint":
        return F.rms_norm(hidden.flatten(-2), weight.shape, weight, shape.norm_eps)
    return F.rms_norm(hidden, hidden.shape[-1:], None, shape.norm_eps).flatten(-2) * weight


def blank_eagle(values: Mapping[str, Any], loaded: LoadedModel, draft_ids: Tensor | None) -> EagleHead:
    """A head to be trained, in float32.

    Args:
        values: what of `EagleShape` differs from the target's own sizes and the defaults.

    Raises:
        InvalidOption: a key is unknown, or a value breaks a rule.
    """
    head = EagleHead(shape_for(loaded.config, values), loaded.decoder, draft_ids)
    head.start(loaded.decoder)
    return head.to(loaded.device, torch.float32)


def load_eagle(artifact: Artifact, loaded: LoadedModel) -> EagleHead:
    """A head to draft with, in the target's type.

    Raises:
        CorruptModel: shape or tensors are wrong.
    """
    try:
        head = EagleHead(stored_eagle_shape(artifact.shape), loaded.decoder, artifact.tensors.get(DRAFT_IDS))
    except InvalidOption as error:
        raise CorruptModel(f"shape of eagle heads must fit {loaded.name}: {error}") from error
    load_tensors(head, artifact)
    return head.to(loaded.device, loaded.dtype).requires_grad_(False)


def _check_fit(shape: EagleShape, decoder: Decoder) -> None:
    config = decoder.config
    if not all(layer <= config.num_layers for layer in shape.hidden_layers):
        raise InvalidOption("hidden_layers", f"must be from 0 to {config.num_layers}", shape.hidden_layers)
    borrows = shape.share_head or not shape.own_embedding
    if borrows and shape.hidden_size != config.hidden_size:
        rule = f"must be the target's ({config.hidden_size}) where its embedding or output matrix is borrowed"
        raise InvalidOption("hidden_size", rule, shape.hidden_size)


def _norm_weight(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size))


def _ahead(rows: Tensor, count: int) -> Tensor:
    """`[batch, length, hidden]` moved `count` rows to the front; the last ones are zero."""
    return F.pad(rows[:, count:], (0, 0, 0, min(count, rows.shape[1])))
