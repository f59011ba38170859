"""A decoder over weights in their stored formats: the tables and buffers that `step.run` works on."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gamaneh.backends.compiled import processor, step
from gamaneh.backends.compiled.assemble import Assembler, IrFunction
from gamaneh.backends.compiled.jit import announce, code_folder
from gamaneh.backends.compiled.kernels import Kind, product
from gamaneh.backends.compiled.layout import Laid, aligned, check_finite, kind_of, lay_groups, lay_out
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.step import Args, LayerField, PartField, RowField
from gamaneh.backends.compiled.vectors import BLOCK, NARROW, functions, wide
from gamaneh.backends.compiled.workers import Workers, usable_cores
from gamaneh.errors import CorruptModel
from gamaneh.models.canonical import ModelTensors
from gamaneh.models.config import DecoderConfig
from gamaneh.models.formats.stored import Floats, StoredTensor
from gamaneh.models.rope import rope_tables

Matrix = tuple[StoredTensor, ...]
"""Tensors whose rows are stacked."""

Weights = Mapping[str, "Matrix | Floats"]
"""Matrices, norms and biases by the names that `DecoderConfig` documents."""

_SPARE_ROWS = 8  # kernels of several rows may read, not write, beyond the last one


@dataclass(slots=True)
class FedSpan:
    """Rows of one sequence in one step.

    Args:
        tokens: what is fed: pending tokens, then the draft's.
        start: positions that are in the cache.
        parents: of the draft's nodes; -1 is the last pending token.
        blocks: the sequence's blocks of 16 positions; node i lies at position `start` + pending + i.
        logit_rows: how many of the last rows need scores.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    parents: Sequence[int] = ()
    logit_rows: int = 1

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - len(self.parents)


@dataclass(slots=True, eq=False)
class StepOutcome:
    """Scores `[logit rows, vocab]` and tapped layers `[rows, taps, hidden]`, both float32."""

    logits: Tensor
    hidden: Tensor | None


class CompiledDecoder:
    """Runs steps of one model.

    Args:
        instructions: an instruction set to keep to, or `auto`.
        threads: None takes the cores that the process may use.
        progress: called with the number of matrices laid out and their total.

    Raises:
        InvalidOption: the processor does not have the instructions.
        CorruptModel: weights are not finite.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
        *,
        instructions: str = "auto",
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.config = config
        self.target = processor.host(instructions)
        self.workers = Workers(threads or usable_cores())
        weakref.finalize(self, self.workers.close)
        self._assembler = Assembler(self.target, code_folder())
        self._products: dict[Kind, dict[int, int]] = {}
        self._keep: list[npt.NDArray[np.generic]] = []
        self._parts: list[list[int]] = []
        self._laid: dict[int, Laid] = {}
        self._small = _compile_small(self._assembler)
        embedding = weights["embedding"]
        assert isinstance(embedding, tuple)
        self.embedding = embedding[0]
        with ThreadPoolExecutor(self.workers.threads) as pool:
            self._lay_out(weights, pool, progress)
        self.parts = np.array(self._parts, dtype=np.int64)
        self._caps = np.array([config.attention_softcap or 0, config.logit_softcap or 0], dtype=np.float32)
        self._rope_capacity = 0
        self._buffers = _Buffers(0, 0)
        self._counters = aligned((9 * config.num_layers + 3, step.STAGE_BYTES // 8), np.int64)

    def nbytes(self) -> int:
        """Return the bytes of the weights in memory; an embedding that lies in the file's pages is left out."""
        return sum(laid.nbytes for laid in self._laid.values())

    def step(
        self, spans: Sequence[FedSpan], pages: Pages, *, taps: Sequence[int] = (), num_layers: int | None = None
    ) -> StepOutcome:
        """Run one step.

        Args:
            taps: layers whose outputs are returned; 0 is the embedding.
            num_layers: leave after this many layers; None runs all.
        """
        layout = _RowLayout(spans)
        depth = self.config.num_layers if num_layers is None else num_layers
        self._start(layout.num_rows, layout.reach)
        self._buffers.x[: layout.num_rows, : self.config.hidden_size] = self.embed(layout.tokens)
        self._place_cache(pages)
        return self._run(layout, depth, taps, self._final_norm, pages)

    def last_hidden(self, count: int) -> Floats:
        """Return what the last layer of the last step put out, `[count, hidden]`, to read until the next step.

        A norm behind the last layer's feed-forward is still to come.
        """
        return self._buffers.x[:count, : self.config.hidden_size]

    def scores(self, hidden: Tensor, *, norm: bool = True) -> Tensor:
        """Return rows of hidden states times the output matrix, `[rows, vocab]`.

        Args:
            norm: the final norm comes first, and a cap of the logits last.
        """
        count = hidden.shape[0]
        layout = _RowLayout([FedSpan([0] * count, 0, [0] * (count // BLOCK + 1), logit_rows=count)])
        self._start(count, layout.reach)
        self._buffers.x[:count, : self.config.hidden_size] = hidden.float().numpy()
        return self._run(layout, 0, (), self._final_norm if norm else 0, None).logits

    def embed(self, tokens: npt.ArrayLike) -> Floats:
        """Return rows of the embedding, scaled as the family does, `[num_tokens, hidden]`."""
        rows = self.embedding.take(np.asarray(tokens, dtype=np.intp)).expand()[:, : self.config.hidden_size]
        if self.config.embedding_scale != 1.0:
            rows = rows * np.float32(self.config.embedding_scale)
        return rows

    def marks(self) -> npt.NDArray[np.int64]:
        """Return the processor's cycle counter at the start of the last step and at the end of each stage.

        A stage that was left out has 0; on processors without such a counter all are 0.
        """
        self.workers.settle()
        return np.concatenate([self._counters[0, 2:3], self._counters[:, 1]])

    def close(self) -> None:
        self.workers.settle()
        self.workers.close()

    # -- tables ---------------------------------------------------------------------------------

    def _lay_out(self, weights: Weights, pool: ThreadPoolExecutor, progress: Callable[[int, int], None] | None) -> None:
        config = self.config
        total, done = 4 * config.num_layers + 1, 0
        self.layers = np.zeros((config.num_layers, LayerField.SIZE), dtype=np.int64)
        for index, spec in enumerate(config.layers):
            prefix, fields = f"layers.{index}.", self.layers[index]
            for name, field in _NORMS.items():
                fields[field] = self._vector(weights.get(prefix + name))
            for name, first, parts, bias, needs in _MATRICES:
                matrix = weights[prefix + name + ".weight"]
                assert isinstance(matrix, tuple)
                if name == "gate_up":
                    matrix = _halves(matrix, config.intermediate_size)
                with _naming(f"{prefix}{name}"):
                    fields[first], count, fields[needs] = self._matrix(matrix, pool)
                if parts is not None:
                    fields[parts] = count
                fields[bias] = self._vector(weights.get(prefix + name + ".bias"))
                done += 1
                if progress is not None:
                    progress(done, total)
            fields[LayerField.WINDOW] = spec.window or 0
        head = weights["embedding" if config.tied_embedding else "head"]
        assert isinstance(head, tuple)
        with _naming("embedding" if config.tied_embedding else "head"):
            self._head = self._matrix(head, pool)
        if not config.tied_embedding:  # its rows are expanded as they are needed
            with _naming("embedding"):
                check_finite(self.embedding, pool)
                _advise(self.embedding, _DONT_NEED)
        self._final_norm = self._vector(weights["norm"])
        if progress is not None:
            progress(total, total)

    def _vector(self, values: Matrix | Floats | None) -> int:
        """Keep a norm or a bias, with zeros behind it; returns its address, 0 for none."""
        if values is None:
            return 0
        assert isinstance(values, np.ndarray)
        kept = aligned((_whole(values.size),), np.float32)
        kept[: values.size] = values
        self._keep.append(kept)
        return kept.ctypes.data

    def _matrix(self, tensors: Matrix, pool: ThreadPoolExecutor) -> tuple[int, int, int]:
        """Lay tensors out; returns the first entry in the table of parts, their number, and what they read."""
        first, output, needs = len(self._parts), 0, 0
        for tensor in tensors:
            _advise(tensor, _POPULATE_READ)
            laid = lay_out(tensor, pool)
            _advise(tensor, _DONT_NEED)
            entry = [0] * PartField.SIZE
            kernels = self._kernels(laid.kind)
            entry[PartField.KERNEL_8_AT] = kernels.get(8, 0)
            entry[PartField.KERNEL_4_AT] = kernels.get(4, 0)
            entry[PartField.KERNEL_2_AT] = kernels[2]
            entry[PartField.KERNEL_1_AT] = kernels[1]
            entry[PartField.TILES_AT] = laid.tiles.ctypes.data
            entry[PartField.TILE_BYTES] = laid.tiles.shape[1]
            entry[PartField.PAIRS] = laid.tiles.shape[0] // 2
            entry[PartField.RECORDS] = laid.records
            entry[PartField.OUTPUTS], entry[PartField.FIRST_OUTPUT] = laid.shape[0], output
            entry[PartField.FLOATS] = int(bool(laid.kind.floats))
            output += laid.shape[0]
            needs |= step.FLOATS if laid.kind.floats else step.RECORDS
            self._laid[len(self._parts)] = laid
            self._parts.append(entry)
        return first, len(self._parts) - first, needs

    def _kernels(self, kind: Kind) -> dict[int, int]:
        if kind not in self._products:
            self._products[kind] = _compile_products(self._assembler, kind)
        return self._products[kind]

    def _place_cache(self, pages: Pages) -> None:
        keys, values = pages.keys, pages.values
        at = np.arange(self.config.num_layers, dtype=np.int64)
        self.layers[:, LayerField.KEYS_AT] = keys.ctypes.data + at * keys.strides[0]
        self.layers[:, LayerField.VALUES_AT] = values.ctypes.data + at * values.strides[0]

    # -- one step -------------------------------------------------------------------------------

    def _start(self, rows: int, reach: int) -> None:
        self.workers.settle()
        self._grow(rows, reach)

    def _run(
        self, layout: _RowLayout, depth: int, taps: Sequence[int], final_norm: int, pages: Pages | None
    ) -> StepOutcome:
        config = self.config
        logits = torch.empty(layout.num_logits, config.vocab_size)
        hidden = torch.empty(layout.num_rows, len(taps), config.hidden_size) if taps else None
        places = np.full(config.num_layers + 1, -1, dtype=np.int64)
        for place, layer in enumerate(taps):
            places[layer] = place
        plan = self._plan(layout, self._buffers, depth)
        plan[Args.FINAL_NORM_AT] = final_norm
        caps_at = self._caps.ctypes.data
        plan[Args.SCORES_CAP_AT] = caps_at if config.attention_softcap else 0
        plan[Args.LOGITS_CAP_AT] = caps_at + 4 if config.logit_softcap and final_norm else 0
        plan[Args.LOGITS_AT], plan[Args.LOGITS_STRIDE] = logits.data_ptr(), 4 * config.vocab_size
        plan[Args.TAPS_AT], plan[Args.NUM_TAPS] = 0 if hidden is None else hidden.data_ptr(), len(taps)
        self._counters[:] = 0
        self.workers.run(
            step.run.build(),
            plan,
            self.layers,
            self.parts,
            layout.rows,
            layout.units,
            layout.ancestors,
            places,
            np.float32(config.norm_eps),
            np.float32(config.scale),
            keep=(self, layout, pages, logits, hidden),
        )
        return StepOutcome(logits, hidden)

    def _grow(self, rows: int, reach: int) -> None:
        """Make buffers and rotations large enough for so many rows, and for positions below `reach`."""
        held = self._buffers
        if rows > held.rows or reach > held.reach:
            # Each only as it is exceeded: a request that decodes reaches one position further in every step.
            more_rows = held.rows if rows <= held.rows else max(rows, 2 * held.rows if rows <= 64 else rows)
            further = held.reach if reach <= held.reach else max(reach, 2 * held.reach, 1024)
            grown = _Buffers(more_rows, further)
            grown.allocate(self.config, self.workers.threads, self._floats_needed())
            self._buffers = grown
        if reach > self._rope_capacity:
            self._rotations(min(max(2 * reach, 4096), max(self.config.max_context, reach)))

    def _floats_needed(self) -> bool:
        return bool((self.layers[:, LayerField.DOWN_NEEDS] & step.FLOATS).any())

    def _rotations(self, positions: int) -> None:
        config, half = self.config, self.config.head_dim // 2
        self._ropes = []
        for spec in config.ropes:
            tables = []
            for table in rope_tables(spec, config.head_dim, positions):
                kept = aligned((positions, half), np.float32)
                kept[:] = table[:, :half].numpy()
                tables.append(kept)
            self._ropes.append(tables)
        for index, layer in enumerate(config.layers):
            if layer.rope is not None:
                cos, sin = self._ropes[layer.rope]
                self.layers[index, LayerField.COS_AT] = cos.ctypes.data
                self.layers[index, LayerField.SIN_AT] = sin.ctypes.data
        self._rope_capacity = positions

    def _plan(self, layout: _RowLayout, buffers: _Buffers, depth: int) -> npt.NDArray[np.int64]:
        config = self.config
        plan = buffers.plan.copy()
        plan[Args.COUNTERS_AT], plan[Args.THREADS] = self._counters.ctypes.data, self.workers.threads
        plan[Args.ROWS], plan[Args.LOGIT_ROWS], plan[Args.NUM_LAYERS] = (
            layout.num_rows,
            layout.num_logits,
            depth,
        )
        plan[Args.HIDDEN], plan[Args.HEADS], plan[Args.KV_HEADS] = (
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
        )
        plan[Args.HEAD_DIM], plan[Args.VALUE_DIM] = config.head_dim, -(-config.head_dim // BLOCK) * BLOCK
        plan[Args.HEAD_FIRST], plan[Args.HEAD_PARTS], plan[Args.HEAD_NEEDS] = self._head
        plan[Args.GATE_AT] = self._small[f"gate_{config.activation}"]
        for field, name in _KERNELS.items():
            plan[field] = self._small[name]
        plan[Args.WIDE] = wide(self.target)
        for queries, field in ((4, Args.MIX_4_AT), (2, Args.MIX_2_AT), (1, Args.MIX_1_AT)):
            plan[field] = self._small[f"mix_{queries}_{plan[Args.WIDE]}"]
            plan[field + 1] = self._small[f"mix_{queries}_{NARROW}"]
        plan[Args.UNITS] = len(layout.units)
        plan[Args.TABLES_AT], plan[Args.TABLE_STRIDE] = layout.tables.ctypes.data, layout.tables.strides[0]
        return plan


def compile_ahead(tensors: ModelTensors) -> None:
    """Compile what the steps of a model are made of, so that its first load finds it on disk."""
    assembler = Assembler(processor.host(), code_folder())
    _compile_small(assembler)
    lay_groups.build()
    matrices = [name for name, shape in tensors.shapes.items() if len(shape) > 1]
    for kind in {kind_of(part) for name in matrices for part in tensors.stored(name)}:
        _compile_products(assembler, kind)


def _compile_small(assembler: Assembler) -> Mapping[str, int]:
    """Compile the step and everything that is the same for all models; returns addresses of the small kernels."""
    announce(Path(step.__file__).read_text(), str(assembler.target))
    step.run.build()
    return assembler.addresses(functions(assembler.target))


def _compile_products(assembler: Assembler, kind: Kind) -> dict[int, int]:
    """Rows -> address of the product kernel for so many."""
    wanted: dict[int, IrFunction] = {rows: product(kind, rows, assembler.target) for rows in assembler.target.rows}
    found = assembler.addresses(list(wanted.values()))
    return {rows: found[function.name] for rows, function in wanted.items()}


class _RowLayout:
    """The arrays that tell the compiled step what each row is."""

    def __init__(self, spans: Sequence[FedSpan]) -> None:
        counts = [len(span.tokens) for span in spans]
        self.num_rows = sum(counts)
        self.num_logits = sum(span.logit_rows for span in spans)
        self.rows = np.zeros((self.num_rows, RowField.SIZE), dtype=np.int64)
        self.tokens = np.fromiter((token for span in spans for token in span.tokens), np.intp, self.num_rows)
        self.tables = np.zeros((len(spans), max(len(span.blocks) for span in spans) + 1), dtype=np.int32)
        self.reach = max(span.start + count for span, count in zip(spans, counts, strict=True)) + 1
        ancestors: list[int] = []
        units: list[tuple[int, int]] = []
        first = logit = 0
        for number, (span, count) in enumerate(zip(spans, counts, strict=True)):
            part = self.rows[first : first + count]
            table = self.tables[number]
            table[: len(span.blocks)] = span.blocks
            places = np.arange(span.start, span.start + count)
            part[:, RowField.POSITION] = places
            part[:, RowField.BLOCK], part[:, RowField.LANE] = table[places // BLOCK], places % BLOCK
            part[:, RowField.SEQUENCE] = number
            part[:, RowField.PREFIX] = places + 1
            part[:, RowField.LOGIT] = -1
            if span.logit_rows:
                part[count - span.logit_rows :, RowField.LOGIT] = np.arange(logit, logit + span.logit_rows)
            logit += span.logit_rows
            _tree_rows(span, part, ancestors)
            units += [
                (at, min(step.UNIT_ROWS, first + count - at)) for at in range(first, first + count, step.UNIT_ROWS)
            ]
            first += count
        self.ancestors = np.array([*ancestors, 0], dtype=np.int32)
        self.units = np.array(units, dtype=np.int64).reshape(-1, 2)


def _tree_rows(span: FedSpan, part: npt.NDArray[np.int64], ancestors: list[int]) -> None:
    """Nodes of a draft that branches see what was pending, and by a list their own path."""
    if all(parent == node - 1 for node, parent in enumerate(span.parents)):
        return
    pending, base = span.num_pending, span.start + span.num_pending
    paths: list[list[int]] = []
    for node, parent in enumerate(span.parents):
        path = [*(paths[parent] if parent >= 0 else ()), base + node]
        paths.append(path)
        row = part[pending + node]
        row[RowField.POSITION], row[RowField.PREFIX] = base + len(path) - 1, base
        row[RowField.FIRST_ANCESTOR], row[RowField.ANCESTORS] = len(ancestors), len(path)
        ancestors += path


class _Buffers:
    """What a step of up to `rows` rows, over positions below `reach`, writes in between."""

    def __init__(self, rows: int, reach: int) -> None:
        self.rows, self.reach = rows, reach
        self.plan = np.zeros(Args.SIZE, dtype=np.int64)
        self.x: Floats = np.zeros((0, 0), np.float32)
        self._kept: list[npt.NDArray[np.generic]] = []

    def allocate(self, config: DecoderConfig, threads: int, acted_floats: bool) -> None:
        plan, rows = self.plan, self.rows + _SPARE_ROWS
        hidden, mixed = _whole(config.hidden_size), _whole(config.num_heads * config.head_dim)
        acted, qkv = _whole(config.intermediate_size), _whole(config.qkv_size)
        self.x = self._new((rows, hidden), np.float32)
        plan[Args.X_AT], plan[Args.X_STRIDE] = self.x.ctypes.data, hidden * 4
        for field, size in ((Args.NORMED_AT, hidden), (Args.BRANCH_AT, hidden)):
            plan[field] = self._new((rows, size), np.float32).ctypes.data
        plan[Args.NORMED_RECORDS_AT] = self._new((rows, hidden * 2), np.uint8).ctypes.data
        plan[Args.RECORD_STRIDE] = hidden * 2
        plan[Args.QKV_AT], plan[Args.QKV_STRIDE] = self._new((rows, qkv), np.float32).ctypes.data, qkv * 4
        plan[Args.QUERY_AT] = self._new((rows, mixed), np.float32).ctypes.data
        plan[Args.MIXED_AT], plan[Args.MIXED_STRIDE] = (
            self._new((rows, mixed), np.float32).ctypes.data,
            mixed * 4,
        )
        plan[Args.MIXED_RECORDS_AT] = self._new((rows, mixed * 2), np.uint8).ctypes.data
        plan[Args.MIXED_RECORD_STRIDE] = mixed * 2
        if acted_floats:
            plan[Args.ACTED_AT] = self._new((rows, acted), np.float32).ctypes.data
        plan[Args.ACTED_STRIDE] = acted * 4
        plan[Args.ACTED_RECORDS_AT] = self._new((rows, acted * 2), np.uint8).ctypes.data
        plan[Args.ACTED_RECORD_STRIDE] = acted * 2
        stride = _whole(self.reach + 64) * 4
        size = step.SCRATCH_SCORES + 8 * stride
        plan[Args.SCRATCH_AT] = self._new((threads, size), np.uint8).ctypes.data
        plan[Args.SCRATCH_BYTES], plan[Args.SCORES_STRIDE] = size, stride

    def _new(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        made = aligned(shape, dtype)
        self._kept.append(made)
        return made


@contextlib.contextmanager
def _naming(tensor: str) -> Iterator[None]:
    """Let errors say which tensor they are about."""
    try:
        yield
    except CorruptModel as error:
        raise CorruptModel(f"tensor {tensor}: {error}") from error


def _whole(size: int) -> int:
    """The next multiple of 256: whole records of every layout."""
    return -(-size // 256) * 256


def _halves(matrix: Matrix, rows: int) -> Matrix:
    """Gate and up apart."""
    return (matrix[0].rows(0, rows), matrix[0].rows(rows, 2 * rows)) if len(matrix) == 1 else matrix


def _advise(tensor: StoredTensor, advice: int) -> None:
    """Tell the system about the whole pages of a mapped file that a tensor lies in; nothing for other memory."""
    base: object = tensor.raw
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap.mmap) or not hasattr(base, "madvise"):
        return
    origin = np.frombuffer(base, np.uint8).ctypes.data
    first = tensor.raw.ctypes.data - origin
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (first + tensor.raw.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        with contextlib.suppress(OSError):  # older systems do not know every advice
            base.madvise(advice, start, length)


_POPULATE_READ = 22
"""Linux: map the pages all at once, many times cheaper than at their first touch one by one."""

_DONT_NEED = 4

_NORMS = {
    "attn_norm": LayerField.ATTN_NORM_AT,
    "mlp_norm": LayerField.MLP_NORM_AT,
    "post_attn_norm": LayerField.POST_ATTN_NORM_AT,
    "post_mlp_norm": LayerField.POST_MLP_NORM_AT,
    "q_norm": LayerField.Q_NORM_AT,
    "k_norm": LayerField.K_NORM_AT,
}

_L = LayerField
_MATRICES = (
    ("qkv", _L.QKV_FIRST, _L.QKV_PARTS, _L.QKV_BIAS_AT, _L.QKV_NEEDS),
    ("out", _L.OUT_FIRST, _L.OUT_PARTS, _L.OUT_BIAS_AT, _L.OUT_NEEDS),
    ("gate_up", _L.GATE_FIRST, None, _L.GATE_BIAS_AT, _L.GATE_NEEDS),
    ("down", _L.DOWN_FIRST, _L.DOWN_PARTS, _L.DOWN_BIAS_AT, _L.DOWN_NEEDS),
)

_KERNELS = {
    Args.QUANTISE_AT: "quantise",
    Args.NORM_AT: "norm",
    Args.SOFTMAX_AT: "softmax",
    Args.CAP_AT: "cap",
    Args.SCORES_8_AT: "scores_8",
    Args.SCORES_4_AT: "scores_4",
    Args.SCORES_2_AT: "scores_2",
    Args.SCORES_1_AT: "scores_1",
}
