"""The flat batch: pending tokens, chains and trees of many requests in one forward, without padding.

Rows come in two lanes. *Prompt rows* stand at positions of the prompt, *generated rows* at those
after it. In shape-invariant execution each lane is computed in fixed tiles, so that the bits of a
row do not depend on which rows are computed beside it; the lane of a row is decided by its
position in the request and never by scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gamaneh.kv.placing import TRASH_SLOT, Placed
from gamaneh.models.tiling import Tiling, round_up

KV_MULTIPLE = 64
"""Keys and values are padded to a multiple of this, with a mask."""


@dataclass(slots=True)
class Span:
    """Query rows that share one view of the cache: one row of an attention group.

    Args:
        rows: flat rows of the batch.
        ends: for each row, how many of the first `slots` it may see.
        reach: for each row, its position plus one: sliding windows are counted back from it.
        slots: cache slots in the order of their positions.
        first_slot: the first of them, when they are consecutive.
        visible: `[len(rows), num_nodes]`, which of the last slots each row sees beyond `ends`.
    """

    rows: list[int]
    ends: list[int]
    reach: list[int]
    slots: Sequence[int]
    first_slot: int | None = None
    visible: Tensor | None = None


@dataclass(slots=True)
class AttentionGroup:
    """Spans computed by one attention call.

    Args:
        rows: `[num_spans * query_rows]` flat rows to read queries from; None when they are the
            first rows of the batch in order.
        query_rows: query rows per span, padding included.
        kv_rows: keys per span, padding included.
        kv_index: `[num_spans * kv_rows]` cache slots; None when they are consecutive from `first_slot`.
        ends, reach: `[num_spans, query_rows]`, as in `Span`.
        trees: masks of trees by span.
        masks: additive masks by (window, repeats, dtype), built once per forward.
    """

    rows: Tensor | None
    query_rows: int
    kv_rows: int
    kv_index: Tensor | None
    first_slot: int
    ends: Tensor
    reach: Tensor
    trees: list[tuple[int, int, Tensor]] = field(default_factory=list)
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)

    @property
    def num_spans(self) -> int:
        return self.ends.shape[0]

    def mask(self, window: int | None, repeats: int, dtype: torch.dtype) -> Tensor:
        """Additive mask `[num_spans, 1, query_rows * repeats, kv_rows]`."""
        key = (window, repeats, dtype)
        if key not in self.masks:
            self.masks[key] = self._build_mask(window, repeats, dtype)
        return self.masks[key]

    def _build_mask(self, window: int | None, repeats: int, dtype: torch.dtype) -> Tensor:
        columns = torch.arange(self.kv_rows, device=self.ends.device)
        seen = columns < self.ends[..., None]
        if window is not None:
            seen &= columns >= self.reach[..., None] - window
        for span, end, visible in self.trees:
            seen[span, : visible.shape[0], end - visible.shape[1] : end] |= visible
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
        return mask.repeat_interleave(repeats, dim=1)[:, None]


@dataclass(slots=True)
class FlatBatch:
    """One forward's rows.

    Args:
        token_ids, positions, slots: `[num_rows]`, padding included.
        splits: rows of each matrix product, in order.
        groups: attention calls.
        merge: `[num_rows]` index of each row in the concatenated outputs of the groups; None when
            it is the identity.
        logit_index: `[num_logit_rows]` rows that need logits, feed by feed.
        logit_counts: how many of them belong to each feed.
        feed_rows: flat rows of each feed, in the order of its tokens.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    splits: list[int]
    groups: list[AttentionGroup]
    merge: Tensor | None
    logit_index: Tensor
    logit_counts: list[int]
    feed_rows: list[list[int]]


def build_batch(feeds: Sequence[Placed], tiling: Tiling, num_slots: int, device: torch.device) -> FlatBatch:
    """Lay the feeds out as one flat batch."""
    feed_rows, generated, prompt = _assign_rows(feeds)
    generated_pad = tiling.padded(generated)
    for rows, feed in zip(feed_rows, feeds, strict=True):
        head = feed.num_prompt_rows
        rows[:head] = [row + generated_pad for row in rows[:head]]
    num_rows = generated_pad + round_up(prompt, tiling.prompt)

    token_ids, positions, slots = [0] * num_rows, [0] * num_rows, [TRASH_SLOT] * num_rows
    logit_index: list[int] = []
    for rows, feed in zip(feed_rows, feeds, strict=True):
        for row, token, position, slot in zip(
            rows, feed.tokens, feed.positions(), feed.slots[feed.start :], strict=True
        ):
            token_ids[row], positions[row], slots[row] = token, position, slot
        if feed.logit_rows:
            logit_index += rows[-feed.logit_rows :]

    groups = _attention_groups(feeds, feed_rows, tiling, num_slots, num_rows, device)
    return FlatBatch(
        token_ids=torch.tensor(token_ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        splits=tiling.splits(generated_pad, num_rows - generated_pad),
        groups=[group for group, _ in groups],
        merge=_merge_index([rows for _, rows in groups], num_rows, device),
        logit_index=torch.tensor(logit_index, dtype=torch.long, device=device),
        logit_counts=[feed.logit_rows for feed in feeds],
        feed_rows=feed_rows,
    )


def _assign_rows(feeds: Sequence[Placed]) -> tuple[list[list[int]], int, int]:
    """Number the rows of each lane from zero."""
    feed_rows: list[list[int]] = []
    generated = prompt = 0
    for feed in feeds:
        head, tail = feed.num_prompt_rows, len(feed.tokens) - feed.num_prompt_rows
        feed_rows.append([*range(prompt, prompt + head), *range(generated, generated + tail)])
        prompt, generated = prompt + head, generated + tail
    return feed_rows, generated, prompt


def _attention_groups(
    feeds: Sequence[Placed],
    feed_rows: list[list[int]],
    tiling: Tiling,
    num_slots: int,
    num_rows: int,
    device: torch.device,
) -> list[tuple[AttentionGroup, list[int]]]:
    """Generated rows of all feeds share one call; prompt rows have one call per tile."""
    generated: list[Span] = []
    groups: list[tuple[AttentionGroup, list[int]]] = []
    for feed, rows in zip(feeds, feed_rows, strict=True):
        head = feed.num_prompt_rows
        generated += _generated_spans(feed, rows, tiling)
        prompt = _chain_spans(feed, rows, 0, head, tiling.prompt)
        groups += [_group([span], tiling.prompt, num_slots, num_rows, device) for span in prompt]
    if generated:
        groups.insert(0, _group(generated, tiling.quantum, num_slots, num_rows, device))
    return groups


def _generated_spans(feed: Placed, rows: list[int], tiling: Tiling) -> list[Span]:
    head, pending = feed.num_prompt_rows, feed.num_pending
    if feed.is_chain:
        return _chain_spans(feed, rows, head, len(rows), tiling.queries)
    if not tiling.invariant:
        return [_tree_span(feed, rows, head)]
    return [*_chain_spans(feed, rows, head, pending, tiling.queries), *_path_spans(feed, rows, tiling.queries)]


def _chain_spans(feed: Placed, rows: list[int], first: int, last: int, tile: int) -> list[Span]:
    spans = []
    for done in range(first, last, tile or max(last - first, 1)):
        stop = min(done + tile, last) if tile else last
        ends = list(range(feed.start + done + 1, feed.start + stop + 1))
        spans.append(Span(rows[done:stop], ends, ends, feed.slots[: feed.start + stop], feed.first_slot))
    return spans


def _tree_span(feed: Placed, rows: list[int], head: int) -> Span:
    """Pending tokens from `head` on, and all nodes at once: a node sees what is pending and, by a mask, its path."""
    pending, num_nodes = feed.num_pending, len(feed.parents)
    visible = torch.zeros(len(rows) - head, num_nodes, dtype=torch.bool)
    nodes = visible[pending - head :]
    nodes.fill_diagonal_(True)
    for node, parent in enumerate(feed.parents):
        if parent >= 0:
            nodes[node] |= nodes[parent]
    reach = [position + 1 for position in feed.positions()[head:]]
    ends = [min(end, feed.start + pending) for end in reach]
    return Span(rows[head:], ends, reach, feed.slots, feed.first_slot, visible)


def _path_spans(feed: Placed, rows: list[int], tile: int) -> list[Span]:
    """One span per leaf, its keys in the order of the path: the same sums as a chain would make.

    A mask over the whole tree would leave zeros between the keys of a path, and so change the
    order of the additions and with it the bits.
    """
    pending, base = feed.num_pending, feed.start + feed.num_pending
    done: set[int] = set()
    spans = []
    for leaf in _leaves(feed.parents):
        path = _path(feed.parents, leaf)
        slots = [*feed.slots[:base], *(feed.slots[base + node] for node in path)]
        fresh = [(depth, node) for depth, node in enumerate(path, 1) if node not in done]
        done.update(path)
        for first in range(0, len(fresh), tile):
            part = fresh[first : first + tile]
            ends = [base + depth for depth, _ in part]
            spans.append(Span([rows[pending + node] for _, node in part], ends, ends, slots))
    return spans


def _leaves(parents: tuple[int, ...]) -> list[int]:
    inner = set(parents)
    return [node for node in range(len(parents)) if node not in inner]


def _path(parents: tuple[int, ...], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def _group(
    spans: list[Span], quantum: int, num_slots: int, num_rows: int, device: torch.device
) -> tuple[AttentionGroup, list[int]]:
    """Stack the spans; also returns the flat row of each query row, -1 for padding."""
    query_rows = round_up(max(len(span.rows) for span in spans), quantum)
    kv_rows = round_up(max(len(span.slots) for span in spans), KV_MULTIPLE)
    rows = [row for span in spans for row in _padded(span.rows, query_rows, -1)]
    ends = [_padded(span.ends, query_rows, 1) for span in spans]
    reach = [_padded(span.reach, query_rows, 1) for span in spans]
    first_slot = spans[0].first_slot if len(spans) == 1 else None
    in_run = first_slot is not None and first_slot + kv_rows <= num_slots
    index = None
    if not in_run:
        index = torch.tensor([slot for span in spans for slot in _padded(span.slots, kv_rows, TRASH_SLOT)])
    in_order = len(rows) <= num_rows and all(row in (-1, at) for at, row in enumerate(rows))
    group = AttentionGroup(
        rows=None if in_order else torch.tensor([max(row, 0) for row in rows], device=device),
        query_rows=query_rows,
        kv_rows=kv_rows,
        kv_index=None if index is None else index.to(device),
        first_slot=first_slot if in_run and first_slot is not None else 0,
        ends=torch.tensor(ends, device=device),
        reach=torch.tensor(reach, device=device),
        trees=[
            (at, len(span.slots), span.visible.to(device)) for at, span in enumerate(spans) if span.visible is not None
        ],
    )
    return group, rows


def _padded(values: Sequence[int], length: int, filler: int) -> list[int]:
    return [*values, *[filler] * (length - len(values))]


def _merge_index(group_rows: list[list[int]], num_rows: int, device: torch.device) -> Tensor | None:
    """Where each flat row's attention output stands among the concatenated group outputs."""
    merge = [0] * num_rows
    outputs = [row for rows in group_rows for row in rows]
    for at, row in enumerate(outputs):
        if row >= 0:
            merge[row] = at
    if len(outputs) == num_rows and all(row in (-1, at) for at, row in enumerate(outputs)):
        return None
    return torch.tensor(merge, device=device)
