"""Many rows of logits at once, of many requests: the tokens and probabilities that `RequestSampler` gives row by row.

The device is asked a few times for all rows together, not once for each. Row by row is the reference, which tests hold
this against, bit for bit. Whatever is summed is summed within one row in an order of its own, so that a row comes
to the same whatever is computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gamaneh.core import Use
from gamaneh.options import SamplingParams
from gamaneh.sampling import noise
from gamaneh.sampling.blocks import BLOCK
from gamaneh.sampling.filters import DISTANCES, LEAST_TEMPERATURE, has_filters
from gamaneh.sampling.pipeline import RequestSampler

ROWS_AT_ONCE = 8
"""Rows that sampling has temporary copies of."""


@dataclass(frozen=True, slots=True)
class LogitRow:
    """One row whose token is asked for.

    Args:
        at: its index among the stacked logits.
        sampler: the sampling of its request.
        path: draft tokens between the committed ones and this token.
        position: absolute index of this token.
    """

    at: int
    sampler: RequestSampler
    path: tuple[int, ...]
    position: int


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """`[num_rows, vocab]` of all parts together; neighbours in memory are not copied."""
    first, rows = parts[0], 0
    for part in parts:
        apart = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if apart or part.stride() != first.stride() or part.storage_offset() != _offset(first, rows):
            return torch.cat(list(parts))
        rows += part.shape[0]
    return first.as_strided((rows, first.shape[1]), first.stride(), first.storage_offset())


def _offset(first: Tensor, rows: int) -> int:
    return int(first.storage_offset() + rows * first.stride(0))


def picks(logits: Tensor, rows: Sequence[LogitRow]) -> list[int | None]:
    """The target's token of each row, as `RequestSampler.pick` draws it with `Use.TARGET`.

    Args:
        logits: `[num_rows, vocab]` of the whole step, padding cut off.

    Returns:
        None for a row from which nothing can be chosen: row by row it raises `BadLogits`.
    """
    found: dict[LogitRow, int | None] = {}
    for group in _groups(rows):
        if _gains_nothing(logits, group):
            found |= {row: _pick(logits, row) for row in group}
            continue
        for members, values in _parts(logits, group):
            params = members[0].sampler.params
            tokens = argmax(values) if params.greedy else _drawn(values, members, params)
            found |= zip(members, [token if token >= 0 else None for token in tokens.tolist()], strict=True)
    return [found.get(row) for row in rows]


def probabilities(logits: Tensor, rows: Sequence[LogitRow]) -> list[Tensor | None]:
    """The target's probabilities `[vocab]` of each row, as `RequestSampler.probs` gives them; None as in `picks`."""
    found: dict[LogitRow, Tensor | None] = {}
    for members, values in (part for group in _groups(rows) for part in _parts(logits, group)):
        params = members[0].sampler.params
        probs = _certain(values) if params.greedy else _scored(values, params).softmax(1)
        bad = probs[:, 0].isnan().tolist()
        found |= {row: None if bad[at] else probs[at] for at, row in enumerate(members)}
    return [found.get(row) for row in rows]


def argmax(rows: Tensor) -> Tensor:
    """The lowest id of the highest value of each row `[num_rows]`; -1 where that is not a finite number."""
    if rows.device.type == "cpu" and rows.dtype == torch.float32:
        # On one thread: to wake the others takes longer than to read the rows.
        array = rows.numpy()
        places = array.argmax(1)
        finite = np.isfinite(array[np.arange(len(places)), places])
        return torch.from_numpy(np.where(finite, places, -1))
    ids = _members(_maxima(rows).argmax(1, keepdim=True), rows.shape[1]).squeeze(1)
    values = rows.gather(1, ids)
    best = values.argmax(1, keepdim=True)  # the first of equals
    return _valid(ids.gather(1, best).squeeze(1), values.gather(1, best).squeeze(1))


def _groups(rows: Sequence[LogitRow]) -> list[list[LogitRow]]:
    """Rows that are treated alike."""
    groups: dict[object, list[LogitRow]] = {}
    for row in rows:
        groups.setdefault(_kind(row.sampler), []).append(row)
    return list(groups.values())


def _kind(sampler: RequestSampler) -> object:
    params = sampler.params
    filters = (params.top_k, params.top_p, params.min_p)
    settings = () if params.greedy else (params.temperature, *filters)
    return sampler.edits_logits, settings


def _gains_nothing(logits: Tensor, group: Sequence[LogitRow]) -> bool:
    """Where there is no round trip to save, and an argmax costs less than putting its rows together."""
    sampler = group[0].sampler
    apart = sampler.edits_logits or not _are_neighbours(group)
    return logits.device.type == "cpu" and (len(group) == 1 or (sampler.greedy and apart))


def _are_neighbours(rows: Sequence[LogitRow]) -> bool:
    return [row.at for row in rows] == list(range(rows[0].at, rows[0].at + len(rows)))


def _parts(logits: Tensor, group: Sequence[LogitRow]) -> Iterator[tuple[Sequence[LogitRow], Tensor]]:
    """A few rows at a time, with their logits `[num_rows, vocab]` after edits."""
    sampler = group[0].sampler
    size = len(group) if sampler.greedy and not sampler.edits_logits else ROWS_AT_ONCE
    for start in range(0, len(group), size):
        rows = group[start : start + size]
        edited = _edited(logits, rows) if sampler.edits_logits else {}
        if edited:
            yield list(edited), torch.stack(list(edited.values()))
        elif not sampler.edits_logits:
            yield rows, _selected(logits, rows)


def _edited(logits: Tensor, rows: Sequence[LogitRow]) -> dict[LogitRow, Tensor]:
    edited: dict[LogitRow, Tensor] = {}
    for row in rows:
        # A mask may raise what it likes; it does so again where the row is reached, and ends that request alone.
        with suppress(Exception):
            edited[row] = row.sampler.edited(logits[row.at], row.path)
    return edited


def _selected(logits: Tensor, rows: Sequence[LogitRow]) -> Tensor:
    if _are_neighbours(rows):
        return logits[rows[0].at : rows[0].at + len(rows)]
    return logits[torch.tensor([row.at for row in rows], device=logits.device)]


def _pick(logits: Tensor, row: LogitRow) -> int | None:
    with suppress(Exception):
        return row.sampler.pick(row.sampler.scores(logits[row.at], row.path), row.position, Use.TARGET)
    return None


# Draws


def _drawn(values: Tensor, rows: Sequence[LogitRow], params: SamplingParams) -> Tensor:
    """Argmax of scores + noise in each row of edited logits, -1 where no score is finite."""
    signed = [noise.signed(noise.key(row.sampler.seed_for(Use.TARGET), row.position, Use.TARGET)) for row in rows]
    keys = torch.tensor(signed, device=values.device).unsqueeze(1)
    if has_filters(params, values.shape[1]):
        return _best(*_survivors(_tempered(values, params), params), keys)
    shift, scale = _temper(values, params)
    return _draw_all(values, keys, lambda part, owners: (part.float() - shift[owners]) / scale)


def _draw_all(rows: Tensor, keys: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """A draw from each row whose tokens may all be drawn.

    A block can hold the winner only if its highest score plus its highest noise reaches the best sum known; the
    blocks with the highest bounds give a best sum that few others reach.

    Args:
        score: values and the numbers of their rows -> scores; a value that is not lower gets no lower score.
    """
    size, everyone = rows.shape[1], torch.arange(rows.shape[0], device=rows.device)
    highest = score(_maxima(rows), everyone)

    def best(owners: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        values = score(rows[owners.unsqueeze(1), ids], owners)
        return _best_sum(values, ids, keys[owners])

    if size <= noise.SMALL_ROW:
        tokens = best(everyone, torch.arange(size, device=rows.device).expand(rows.shape))[1]
        return _valid(tokens, highest.amax(1))
    bounds = highest.double() + noise.highest_gumbel(_maxima(noise.coarse_bits(keys, size, rows.device)))
    first = bounds.topk(min(noise.FIRST_BLOCKS, bounds.shape[1])).indices
    sums, tokens = best(everyone, _members(first, size).flatten(1))
    bounds.scatter_(1, first, -math.inf)
    owners, others = (bounds >= sums.unsqueeze(1) - noise.SLACK).nonzero(as_tuple=True)
    more_sums, more = best(owners, _members(others, size))
    top = sums.scatter_reduce(0, owners, more_sums, "amax")
    tokens = tokens.masked_fill(sums < top, size)
    return _valid(
        tokens.scatter_reduce(0, owners, more.masked_fill(more_sums < top[owners], size), "amin"), highest.amax(1)
    )


def _best(values: Tensor, ids: Tensor, keys: Tensor) -> Tensor:
    return _valid(_best_sum(values, ids, keys)[1], values.amax(1))


def _best_sum(values: Tensor, ids: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The highest score + noise in each row `[num_rows]`, and the lowest id that has it."""
    sums = values.double() + noise.gumbel_of(keys, ids)
    best = sums.amax(1, keepdim=True)
    return best.squeeze(1), ids.masked_fill(sums != best, torch.iinfo(torch.long).max).amin(1)


def _valid(tokens: Tensor, highest: Tensor) -> Tensor:
    return torch.where(highest.isfinite(), tokens, -1)


# Scores


def _certain(values: Tensor) -> Tensor:
    """All probability on the highest value of each row; NaN where it is not finite."""
    best = argmax(values).unsqueeze(1)
    probs = torch.zeros(values.shape, device=values.device).scatter_(1, best.clamp(min=0), 1.0)
    return probs.masked_fill_(best < 0, math.nan)


def _scored(values: Tensor, params: SamplingParams) -> Tensor:
    """Scores `[num_rows, vocab]` of edited logits: temperature and filters."""
    scores = _tempered(values, params)
    if not has_filters(params, values.shape[1]):
        return scores
    kept, ids = _survivors(scores, params)
    # Filled up places have the id 0 and the score -inf, which must not replace that of token 0.
    return torch.full_like(scores, -math.inf).scatter_reduce_(1, ids, kept, "amax")


def _tempered(values: Tensor, params: SamplingParams) -> Tensor:
    shift, scale = _temper(values, params)
    return (values.float() - shift) / scale


def _temper(values: Tensor, params: SamplingParams) -> tuple[Tensor, float]:
    """What is subtracted from each row `[num_rows, 1]`, and what it is divided by then."""
    highest = _maxima(values).amax(1, keepdim=True).float()
    if params.temperature == 1.0 and not has_filters(params, values.shape[1]):
        return torch.zeros_like(highest), 1.0
    return highest, max(params.temperature, LEAST_TEMPERATURE)


def _survivors(rows: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Scores that pass the filters, and their ids, `[num_rows, width]`; -inf for those that do not, and to fill up.

    Args:
        rows: `[num_rows, vocab]`, the highest score of each is 0.
    """
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < rows.shape[1]:
        values, ids = _largest(rows, params.top_k)
        if params.top_p < 1.0:
            values = _nucleus(values, _totals(values), params.top_p)[0]
    elif params.top_p < 1.0:
        values, ids = _head(rows, _totals(rows), params.top_p)
    else:
        return _from(rows, floor)
    return values.masked_fill(values < floor, -math.inf), ids


def _totals(rows: Tensor) -> Tensor:
    """Logarithm of the sum of exp of each row `[num_rows, 1]`: one call for each, whose order of summing is its own."""
    return torch.stack([row.logsumexp(0) for row in rows]).unsqueeze(1)


def _head(rows: Tensor, totals: Tensor, top_p: float, distances: Sequence[float] = DISTANCES) -> tuple[Tensor, Tensor]:
    """The nucleus of each row, looked for among the highest scores and farther down where it is not complete."""
    values, ids = _everything(rows) if distances[0] == math.inf else _from(rows, -distances[0])
    values, order = values.sort(dim=1, descending=True, stable=True)
    ids = ids.gather(1, order)
    values, found = _nucleus(values, totals, top_p)
    short = (found <= top_p).nonzero().squeeze(1)
    if len(distances) == 1 or len(short) == 0:
        return values, ids
    more, more_ids = _head(rows[short], totals[short], top_p, distances[1:])
    width = max(values.shape[1], more.shape[1])
    values, ids = F.pad(values, (0, width - values.shape[1]), value=-math.inf), F.pad(ids, (0, width - ids.shape[1]))
    values[short] = F.pad(more, (0, width - more.shape[1]), value=-math.inf)
    ids[short] = F.pad(more_ids, (0, width - more_ids.shape[1]))
    return values, ids


def _nucleus(values: Tensor, totals: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Of descending values those before which there is less than `top_p`; and the probability of all `[num_rows]`."""
    probs = (values - totals).double().exp()
    sums = probs.cumsum(1)
    return values.masked_fill(sums - probs >= top_p, -math.inf), sums[:, -1]


def _largest(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row, descending, and their ids; among equals the lowest id first."""
    maxima = _maxima(rows)
    if count < maxima.shape[1]:
        # That many blocks hold a value at least as large, so no smaller value is needed.
        values, ids = _from(rows, maxima.topk(count).values[:, -1:])
    else:
        values, ids = _everything(rows)
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :count], ids.gather(1, order[:, :count])


# Blocks


def _maxima(rows: Tensor) -> Tensor:
    """The highest value of each block `[num_rows, num_blocks]`; NaN is the highest of all. The last may be short."""
    whole = rows.shape[1] // BLOCK
    maxima = rows[:, : whole * BLOCK].reshape(rows.shape[0], whole, BLOCK).amax(2)
    return maxima if whole * BLOCK == rows.shape[1] else torch.cat((maxima, rows[:, whole * BLOCK :].amax(1, True)), 1)


def _members(blocks: Tensor, size: int) -> Tensor:
    """Ids `[..., BLOCK]` of the members of blocks `[...]`; the last id stands for those that a short block lacks."""
    return (blocks.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=blocks.device)).clamp_(max=size - 1)


def _everything(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows, torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)


def _from(rows: Tensor, floors: Tensor | float) -> tuple[Tensor, Tensor]:
    """Values that are at least as large as the floor `[num_rows, 1]`, by ascending id; filled up with -inf and id 0."""
    owners, blocks = (_maxima(rows) >= floors).nonzero(as_tuple=True)
    ids = blocks.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=rows.device)
    values = rows[owners.unsqueeze(1), ids.clamp(max=rows.shape[1] - 1)]
    hits = (ids < rows.shape[1]) & (values >= (floors[owners] if isinstance(floors, Tensor) else floors))
    owners = owners.unsqueeze(1).expand(ids.shape)[hits]
    counts = owners.bincount(minlength=rows.shape[0])
    places = torch.arange(owners.shape[0], device=rows.device) - (counts.cumsum(0) - counts)[owners]
    width = max(int(counts.max()), 1)
    kept = rows.new_full((rows.shape[0], width), -math.inf)
    kept_ids = torch.zeros(kept.shape, dtype=torch.long, device=rows.device)
    kept[owners, places], kept_ids[owners, places] = values[hits], ids[hits]
    return kept, kept_ids
