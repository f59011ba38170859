"""Which row counts leave a row's bits alone, measured on this machine with the model's own weights.

A kernel may choose its order of additions, and so its rounding, by the shape of a product. Where it
does not, rows need no padding; where it does, they are padded to a count at which it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gamaneh.kv.placing import Placed
from gamaneh.models.batch import build_batch
from gamaneh.models.decoder import Decoder
from gamaneh.models.tiling import FREE, Tiling

REFERENCE = 16
"""Rows of the product that sets the bits: what every matrix unit that we know computes at once."""

WIDEST = 64
PROMPT_TILE = 64
QUANTA = (2, 4, 8, 16)
"""One row alone is left out: it goes to kernels of its own, whose bits differ too seldom for a short test to see."""

PROBED = (2, 4, 6, 8, 10, 12, 14, 16)
"""Row counts that are tried, and in larger products as many rows beyond a multiple of `REFERENCE`."""

CONTEXTS = (40, 56, 530, 1080)
"""Cached tokens before the rows that are tried: in one block of the attention kernel, across one, in several."""


_KNOWN: WeakKeyDictionary[Decoder, dict[int, Tiling]] = WeakKeyDictionary()
"""What was measured, by number of threads: every engine over the same weights asks again."""


def measured_tiling(decoder: Decoder) -> Tiling:
    """The least padding, and the largest products, at which rows keep the bits of `REFERENCE` rows."""
    known, threads = _KNOWN.setdefault(decoder, {}), torch.get_num_threads()
    if threads not in known:
        known[threads] = _measure(decoder)
    return known[threads]


@torch.inference_mode()
def _measure(decoder: Decoder) -> Tiling:
    longest = decoder.config.max_context - REFERENCE
    products = [_ProductProbe(decoder, *part) for part in _products(decoder)]
    layers = [_LayerProbe(decoder, context) for context in CONTEXTS if context <= longest]
    probes: list[_Probe] = [*products, *layers]
    quantum = next(
        quantum for quantum in QUANTA if all(p.keeps_bits(count) for p in probes for count in _multiples(quantum))
    )
    widths = range(REFERENCE, WIDEST, REFERENCE)
    tile = next((width for width in widths if not _can_grow(products, width, quantum)), WIDEST)
    return Tiling(quantum=quantum, generated=tile, prompt=PROMPT_TILE, queries=REFERENCE)


def _multiples(quantum: int) -> list[int]:
    return [count for count in PROBED if count % quantum == 0]


def _can_grow(products: list[_ProductProbe], width: int, quantum: int) -> bool:
    """Whether products of more than `width` rows, up to the next multiple of `REFERENCE`, keep the bits."""
    return all(probe.keeps_bits(width + more) for probe in products for more in _multiples(quantum))


def _products(decoder: Decoder) -> Iterator[tuple[Callable[[Tensor], Tensor], int]]:
    """Everything that maps rows to rows, with the size of its input."""
    layer = decoder.layers[0]
    for linear in (*layer.linears, decoder.head):
        yield linear, linear.in_features
    yield decoder.normed, decoder.config.hidden_size
    yield layer.gated, 2 * decoder.config.intermediate_size


class _Probe(Protocol):
    def keeps_bits(self, count: int) -> bool: ...


class _ProductProbe:
    """Compares a product over any number of rows with products over `REFERENCE` rows."""

    def __init__(self, decoder: Decoder, product: Callable[[Tensor], Tensor], size: int) -> None:
        self.product = product
        self.rows = _random(decoder, (WIDEST, size))
        self.expected = torch.cat([product(part) for part in torch.split(self.rows, REFERENCE)])

    def keeps_bits(self, count: int) -> bool:
        starts = {0, WIDEST - count}
        return all(
            torch.equal(self.product(self.rows[at : at + count]), self.expected[at : at + count]) for at in starts
        )


class _LayerProbe:
    """Compares the first layer over a few rows, at the start and the end of a tile, with a whole tile."""

    def __init__(self, decoder: Decoder, context: int) -> None:
        self.decoder, self.context = decoder, context
        self.cache = _RandomCache(decoder, context + 2 * WIDEST)
        self.rows = _random(decoder, (REFERENCE, decoder.config.hidden_size))
        self.expected = self._run(0, REFERENCE)

    def keeps_bits(self, count: int) -> bool:
        starts = {0, REFERENCE - count}
        return all(torch.equal(self._run(at, at + count), self.expected[at : at + count]) for at in starts)

    def _run(self, start: int, stop: int) -> Tensor:
        first, decoder = self.context + start, self.decoder
        feed = Placed([0] * (stop - start), first, 0, range(self.context + stop), first_slot=0)
        batch = build_batch([feed], FREE, self.cache.num_slots, decoder.device)
        layer = decoder.layers[0]
        rotation = None if layer.spec.rope is None else decoder.ropes[layer.spec.rope].rows(batch.positions)
        return layer(self.rows[start:stop], batch, self.cache, rotation)


class _RandomCache:
    """One layer's cache as some other sequence would have left it."""

    def __init__(self, decoder: Decoder, num_slots: int) -> None:
        shape = (num_slots, decoder.config.num_kv_heads, decoder.config.head_dim)
        self.keys, self.values = _random(decoder, shape), _random(decoder, shape)

    @property
    def num_slots(self) -> int:
        return self.keys.shape[0]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _random(decoder: Decoder, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator(decoder.device).manual_seed(shape[-1])
    return torch.randn(shape, generator=generator, device=decoder.device, dtype=decoder.dtype)
