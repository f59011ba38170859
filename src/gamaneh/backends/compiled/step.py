"""One step of a decoder, compiled as a whole: rows of activations in, scores out, keys and values into the cache.

Threads run `run` side by side over the same arguments. A step is a row of stages; a stage is cut into units, which
threads claim from a counter until none is left, and the stage is over when all its units are done. A thread that comes
late finds the stages before it done. Which thread computes a unit does not matter to its bits.
"""

from __future__ import annotations

from enum import IntEnum

from numba import types

from gamaneh.backends.compiled.jit import FLAGS, compiled, inner
from gamaneh.backends.compiled.machine_ops import (
    add_atomic,
    call_3,
    call_4,
    call_6,
    call_10,
    call_12,
    call_norm,
    clock,
    floats,
    give_way,
    load_atomic,
    store,
    store_half,
)


class Args(IntEnum):
    """Places in the plan: what is the same for all layers of one step. Names that end in `at` are addresses."""

    COUNTERS_AT = 0
    THREADS = 1
    ROWS = 2
    LOGIT_ROWS = 3
    NUM_LAYERS = 4
    HIDDEN = 5
    HEADS = 6
    KV_HEADS = 7
    HEAD_DIM = 8
    VALUE_DIM = 9
    X_AT = 10
    X_STRIDE = 11
    NORMED_AT = 12
    NORMED_RECORDS_AT = 13
    RECORD_STRIDE = 14
    QKV_AT = 15
    QKV_STRIDE = 16
    QUERY_AT = 17
    MIXED_AT = 18
    MIXED_STRIDE = 19
    MIXED_RECORDS_AT = 20
    MIXED_RECORD_STRIDE = 21
    ACTED_AT = 22
    ACTED_STRIDE = 23
    ACTED_RECORDS_AT = 24
    ACTED_RECORD_STRIDE = 25
    BRANCH_AT = 26
    SCRATCH_AT = 27
    SCRATCH_BYTES = 28
    SCORES_STRIDE = 29
    LOGITS_AT = 30
    LOGITS_STRIDE = 31
    TAPS_AT = 32
    NUM_TAPS = 33
    FINAL_NORM_AT = 34
    HEAD_FIRST = 35
    HEAD_PARTS = 36
    HEAD_NEEDS = 37
    QUANTISE_AT = 38
    NORM_AT = 39
    GATE_AT = 40
    SOFTMAX_AT = 41
    SCORES_8_AT = 42
    SCORES_4_AT = 43
    SCORES_2_AT = 44
    SCORES_1_AT = 45
    MIX_4_AT = 46
    MIX_4_NARROW_AT = 47
    MIX_2_AT = 48
    MIX_2_NARROW_AT = 49
    MIX_1_AT = 50
    MIX_1_NARROW_AT = 51
    UNITS = 52
    TABLES_AT = 53
    TABLE_STRIDE = 54
    WIDE = 55
    CAP_AT = 56
    SCORES_CAP_AT = 57
    LOGITS_CAP_AT = 58
    SIZE = 59


class LayerField(IntEnum):
    """Columns of the table of layers. A norm or bias that the layer lacks is 0; `needs`: 1 records, 2 floats."""

    ATTN_NORM_AT = 0
    MLP_NORM_AT = 1
    POST_ATTN_NORM_AT = 2
    POST_MLP_NORM_AT = 3
    Q_NORM_AT = 4
    K_NORM_AT = 5
    QKV_FIRST = 6
    QKV_PARTS = 7
    QKV_BIAS_AT = 8
    QKV_NEEDS = 9
    OUT_FIRST = 10
    OUT_PARTS = 11
    OUT_BIAS_AT = 12
    OUT_NEEDS = 13
    GATE_FIRST = 14
    GATE_BIAS_AT = 15
    GATE_NEEDS = 16
    DOWN_FIRST = 17
    DOWN_PARTS = 18
    DOWN_BIAS_AT = 19
    DOWN_NEEDS = 20
    WINDOW = 21
    COS_AT = 22
    SIN_AT = 23
    KEYS_AT = 24
    VALUES_AT = 25
    SIZE = 26


class PartField(IntEnum):
    """Columns of the table of matrices. A kernel of 8 or 4 rows that the target lacks is 0."""

    KERNEL_8_AT = 0
    KERNEL_4_AT = 1
    KERNEL_2_AT = 2
    KERNEL_1_AT = 3
    TILES_AT = 4
    TILE_BYTES = 5
    PAIRS = 6
    RECORDS = 7
    OUTPUTS = 8
    FIRST_OUTPUT = 9
    FLOATS = 10
    SIZE = 11


class RowField(IntEnum):
    """Columns of the table of rows.

    A row sees the first `PREFIX` positions of its sequence, then the places that `ancestors` lists for it.
    """

    POSITION = 0
    BLOCK = 1
    LANE = 2
    SEQUENCE = 3
    PREFIX = 4
    FIRST_ANCESTOR = 5
    ANCESTORS = 6
    LOGIT = 7
    SIZE = 8


RECORDS, FLOATS = 1, 2
STORE, ADD, GATE = 0, 1, 2
STAGE_BYTES = 128
"""Of a stage's counters: units claimed at 0, when the stage ended at 8, when the step began at 16, units done at 64."""

UNIT_ROWS = 8
"""Most rows of one sequence in a unit of attention."""

UNIT_PAIRS = 8
"""Most pairs of tiles that are computed before their outputs go on."""

MOST_AT_ONCE = 8
"""Rows that a product reads its weights once for."""

CHUNK_BYTES = 1 << 18
"""Weights that are read again for the next rows: a part of the processor's second cache."""

CAP_COLUMNS = 4096
"""Logits that are capped in one unit."""

SPINS = 3000

SCRATCH_UP, SCRATCH_SUMS, SCRATCH_SCORES = 8192, 4096, 4096 + 8 * 4 * 512
"""Bytes in a thread's scratch. Products: gates of 8 pairs for 8 rows, then as many of up. Attention: totals, sums of
values (8 x 512 channels), scores."""


@inner
def _claim(plan, stage):
    return add_atomic(plan[Args.COUNTERS_AT] + stage * STAGE_BYTES, 1)


@inner
def _await(plan, stage, done, total):
    """Report `done` units, then wait until all of the stage are; give the core away when it takes long."""
    address = plan[Args.COUNTERS_AT] + stage * STAGE_BYTES + 64
    if done > 0:
        now = clock()
        if add_atomic(address, done) + done == total:
            store(address - 56, now)
    spins = 0
    while load_atomic(address) < total:
        spins += 1
        if spins > SPINS:
            give_way()


@inner
def _norm_row(plan, eps, x_at, weight_at, out_at):
    hidden = plan[Args.HIDDEN]
    call_norm(plan[Args.NORM_AT], x_at, weight_at, eps, floats_of(hidden), (hidden + 31) // 32, out_at)


@inner
def floats_of(value):
    return types.float32(value)


@inner
def _residual_and_norm(plan, eps, rows, stage, post_at, weight_at, needs, tap, only_logits):
    """Add the branch's output behind its own norm, show it to a tap, then norm and quantise for the next product."""
    hidden, stride, total, done = plan[Args.HIDDEN], plan[Args.X_STRIDE], plan[Args.ROWS], 0
    while True:
        row = _claim(plan, stage)
        if row >= total:
            break
        done += 1
        x_at = plan[Args.X_AT] + row * stride
        x = floats(x_at, hidden)
        if post_at != 0:
            branch_at = plan[Args.BRANCH_AT] + row * stride
            _norm_row(plan, eps, branch_at, post_at, branch_at)
            branch = floats(branch_at, hidden)
            for i in range(hidden):
                x[i] += branch[i]
        if tap >= 0:
            shown = floats(plan[Args.TAPS_AT] + (row * plan[Args.NUM_TAPS] + tap) * hidden * 4, hidden)
            for i in range(hidden):
                shown[i] = x[i]
        place = row
        if only_logits:
            place = rows[row, RowField.LOGIT]
        if place >= 0:
            out_at = plan[Args.NORMED_AT] + place * stride
            if weight_at != 0:
                _norm_row(plan, eps, x_at, weight_at, out_at)
            else:
                out = floats(out_at, hidden)
                for i in range(hidden):
                    out[i] = x[i]
            if needs & RECORDS:
                records_at = plan[Args.NORMED_RECORDS_AT] + place * plan[Args.RECORD_STRIDE]
                call_3(plan[Args.QUANTISE_AT], out_at, records_at, (hidden + 31) // 32)
    _await(plan, stage, done, total)


@inner
def _multiply(parts, part, pair, left, in_at, in_stride, out_at):
    """Up to `left` rows times two tiles; returns how many rows were taken. 3 are computed as 4, and 7 as 8."""
    kernel, took = parts[part, PartField.KERNEL_8_AT], 8
    if left < 7 or kernel == 0:
        kernel, took = parts[part, PartField.KERNEL_4_AT], 4
    if left < 3 or kernel == 0:
        took = 2 if left >= 2 else 1
        kernel = parts[part, PartField.KERNEL_2_AT if took == 2 else PartField.KERNEL_1_AT]
    size = parts[part, PartField.TILE_BYTES]
    tile_at = parts[part, PartField.TILES_AT] + 2 * pair * size
    call_6(kernel, tile_at, size, in_at, in_stride, parts[part, PartField.RECORDS], out_at)
    return min(took, left)


@inner
def _large_unit(plan, pairs):
    """Pairs in one of the first units of a product, two for each thread."""
    return pairs * 3 // (plan[Args.THREADS] * 8)


@inner
def _small_unit(plan, pairs):
    """Pairs in the units that are left then. Long runs of memory are read faster; short ones end together."""
    return max(1, pairs // (plan[Args.THREADS] * 24))


@inner
def _num_units(plan, pairs):
    large, small = 2 * plan[Args.THREADS], _small_unit(plan, pairs)
    return large + (pairs - large * _large_unit(plan, pairs) + small - 1) // small


@inner
def _first_pair(plan, pairs, unit):
    """Where a unit begins; that of the unit behind the last is where they end."""
    large, size = 2 * plan[Args.THREADS], _large_unit(plan, pairs)
    return min(pairs, min(unit, large) * size + max(0, unit - large) * _small_unit(plan, pairs))


@inner
def _chunk_pairs(parts, part, num_rows):
    """Pairs that all rows are multiplied with before the next ones: several turns read them from the cache."""
    at_once = MOST_AT_ONCE if parts[part, PartField.KERNEL_8_AT] != 0 else 2
    if num_rows <= at_once:
        return UNIT_PAIRS
    return max(1, min(UNIT_PAIRS, CHUNK_BYTES // (2 * parts[part, PartField.TILE_BYTES])))


@inner
def _product(
    plan,
    parts,
    stage,
    num_rows,
    scratch,
    first,
    count,
    in_at,
    in_stride,
    records_at,
    record_stride,
    mode,
    out_at,
    out_stride,
    bias_at,
):
    """Rows times the matrices `first` to `first + count`; their outputs are stored, or added to what is there."""
    pairs = 0
    for part in range(first, first + count):
        pairs += parts[part, PartField.PAIRS]
    total, done = _num_units(plan, pairs), 0
    while True:
        unit = _claim(plan, stage)
        if unit >= total:
            break
        done += 1
        begin, end = _first_pair(plan, pairs, unit), _first_pair(plan, pairs, unit + 1)
        # Pairs are counted through all matrices; `before` are those of the matrices before this one.
        part, before = first, 0
        while begin < end:
            while begin - before >= parts[part, PartField.PAIRS]:
                before += parts[part, PartField.PAIRS]
                part += 1
            stop = min(end, before + parts[part, PartField.PAIRS], begin + _chunk_pairs(parts, part, num_rows))
            dense = parts[part, PartField.FLOATS] != 0
            source_at, source_stride = (in_at, in_stride) if dense else (records_at, record_stride)
            row = 0
            while row < num_rows:
                took = 0
                for pair in range(begin - before, stop - before):
                    took = _multiply(
                        parts, part, pair, num_rows - row, source_at + row * source_stride, source_stride, scratch
                    )
                    output = parts[part, PartField.FIRST_OUTPUT] + pair * 32
                    width = min(32, parts[part, PartField.OUTPUTS] - pair * 32)
                    for r in range(took):
                        got = floats(scratch + r * 128, width)
                        out = floats(out_at + (row + r) * out_stride + output * 4, width)
                        if bias_at != 0:
                            bias = floats(bias_at + output * 4, width)
                            for i in range(width):
                                got[i] += bias[i]
                        if mode == ADD:
                            for i in range(width):
                                out[i] += got[i]
                        else:
                            for i in range(width):
                                out[i] = got[i]
                row += took
            begin = stop
    _await(plan, stage, done, total)


@inner
def _gated_product(plan, parts, stage, scratch, first, bias_at, needs_out):
    """Gate and up of some pairs, then activation, and the rounding of 32 outputs for the next product."""
    num_rows, inner_size = plan[Args.ROWS], parts[first, PartField.OUTPUTS]
    pairs = parts[first, PartField.PAIRS]
    total, done = _num_units(plan, pairs), 0
    while True:
        unit = _claim(plan, stage)
        if unit >= total:
            break
        done += 1
        begin, end = _first_pair(plan, pairs, unit), _first_pair(plan, pairs, unit + 1)
        while begin < end:
            stop = min(end, begin + _chunk_pairs(parts, first, num_rows))
            row = 0
            while row < num_rows:
                took = 0
                for half in range(2):
                    part = first + half
                    x_at, stride = plan[Args.NORMED_RECORDS_AT], plan[Args.RECORD_STRIDE]
                    if parts[part, PartField.FLOATS] != 0:
                        x_at, stride = plan[Args.NORMED_AT], plan[Args.X_STRIDE]
                    for pair in range(begin, stop):
                        into = scratch + half * SCRATCH_UP + (pair - begin) * 1024
                        took = _multiply(parts, part, pair, num_rows - row, x_at + row * stride, stride, into)
                        if bias_at != 0:
                            width = min(32, inner_size - pair * 32)
                            bias = floats(bias_at + (half * inner_size + pair * 32) * 4, width)
                            for r in range(took):
                                got = floats(into + r * 128, width)
                                for i in range(width):
                                    got[i] += bias[i]
                for pair in range(begin, stop):
                    acted = scratch + (pair - begin) * 1024
                    call_4(plan[Args.GATE_AT], acted, acted + SCRATCH_UP, acted, took)
                    width = min(32, inner_size - pair * 32)
                    for r in range(took):
                        if width < 32:
                            rest = floats(acted + r * 128, 32)
                            for i in range(width, 32):
                                rest[i] = types.float32(0)
                        if needs_out & RECORDS:
                            at = plan[Args.ACTED_RECORDS_AT] + (row + r) * plan[Args.ACTED_RECORD_STRIDE] + pair * 64
                            call_3(plan[Args.QUANTISE_AT], acted + r * 128, at, 1)
                        if needs_out & FLOATS:
                            got = floats(acted + r * 128, 32)
                            out = floats(plan[Args.ACTED_AT] + (row + r) * plan[Args.ACTED_STRIDE] + pair * 128, 32)
                            for i in range(32):
                                out[i] = got[i]
                row += took
            begin = stop
    _await(plan, stage, done, total)


@inner
def _norm_head(values, weight_at, size, eps):
    total = types.float32(0)
    for i in range(size):
        total += values[i] * values[i]
    factor = types.float32(1) / types.float32((total / types.float32(size) + eps) ** types.float32(0.5))
    weight = floats(weight_at, size)
    for i in range(size):
        values[i] = values[i] * factor * weight[i]


@inner
def _rotate_and_store(plan, fields, rows, eps, scale, stage):
    """Norm and rotate queries and keys of each row; keys and values go to the cache."""
    heads, kv_heads, size, num_rows = (
        plan[Args.HEADS],
        plan[Args.KV_HEADS],
        plan[Args.HEAD_DIM],
        plan[Args.ROWS],
    )
    group, half, value_dim = heads // kv_heads, size // 2, plan[Args.VALUE_DIM]
    done = 0
    while True:
        row = _claim(plan, stage)
        if row >= num_rows:
            break
        done += 1
        qkv_at = plan[Args.QKV_AT] + row * plan[Args.QKV_STRIDE]
        position, block, lane = rows[row, RowField.POSITION], rows[row, RowField.BLOCK], rows[row, RowField.LANE]
        for head in range(heads + kv_heads):
            values = floats(qkv_at + head * size * 4, size)
            norm_at = fields[LayerField.Q_NORM_AT if head < heads else LayerField.K_NORM_AT]
            if norm_at != 0:
                _norm_head(values, norm_at, size, eps)
            if fields[LayerField.COS_AT] != 0:
                cos = floats(fields[LayerField.COS_AT] + position * half * 4, half)
                sin = floats(fields[LayerField.SIN_AT] + position * half * 4, half)
                for i in range(half):
                    a, b = values[i], values[i + half]
                    values[i] = a * cos[i] - b * sin[i]
                    values[i + half] = b * cos[i] + a * sin[i]
            if head < heads:
                kv_head = head // group
                at = plan[Args.QUERY_AT] + ((kv_head * num_rows + row) * group + head % group) * size * 4
                query = floats(at, size)
                for i in range(size):
                    query[i] = values[i] * scale
            else:
                at = fields[LayerField.KEYS_AT] + ((block * kv_heads + head - heads) * size * 16 + lane) * 2
                for i in range(size):
                    store_half(at + i * 32, values[i])
        for head in range(kv_heads):
            values = floats(qkv_at + (heads + kv_heads + head) * size * 4, size)
            at = fields[LayerField.VALUES_AT] + ((block * kv_heads + head) * 16 + lane) * value_dim * 2
            for i in range(size):
                store_half(at + i * 2, values[i])
    _await(plan, stage, done, num_rows)


@inner
def _mix(plan, fields, count, weights_at, table_at, kv_head, first, last, sums_at):
    """Add the values of positions `first` to `last` to the sums of `count` queries (4, 2 or 1)."""
    if last <= first:
        return
    value_dim, kv_heads, stride = plan[Args.VALUE_DIM], plan[Args.KV_HEADS], plan[Args.SCORES_STRIDE]
    values_at = fields[LayerField.VALUES_AT] + kv_head * 16 * value_dim * 2
    kernel = Args.MIX_4_AT if count == 4 else Args.MIX_2_AT if count == 2 else Args.MIX_1_AT
    block_bytes = kv_heads * 16 * value_dim * 2
    channel = 0
    while channel < value_dim:
        wide = value_dim - channel >= plan[Args.WIDE]
        address = plan[kernel] if wide else plan[kernel + 1]
        call_10(
            address, weights_at, stride, values_at + channel * 2, table_at, first, last,
            block_bytes, value_dim * 2, sums_at + channel * 4, value_dim * 4,
        )  # fmt: skip
        channel += plan[Args.WIDE] if wide else 16


@inner
def _lowest(window, position):
    return max(0, position + 1 - window) if window > 0 else 0


@inner
def _attend_queries(plan, fields, rows, ancestors, scratch, kv_head, row0, begin, count, table_at):
    """Up to 8 queries of one key head against the cache: scores, softmax, values."""
    heads, kv_heads, size = plan[Args.HEADS], plan[Args.KV_HEADS], plan[Args.HEAD_DIM]
    group, value_dim, stride, window = (
        heads // kv_heads,
        plan[Args.VALUE_DIM],
        plan[Args.SCORES_STRIDE],
        fields[LayerField.WINDOW],
    )
    scores_at = scratch + SCRATCH_SCORES
    low, end = 1 << 60, 0
    for j in range(begin, begin + count):
        row = row0 + j // group
        low = min(low, _lowest(window, rows[row, RowField.POSITION]))
        end = max(end, rows[row, RowField.PREFIX])
        num = rows[row, RowField.ANCESTORS]
        if num > 0:
            end = max(end, ancestors[rows[row, RowField.FIRST_ANCESTOR] + num - 1] + 1)
    keys_at = fields[LayerField.KEYS_AT] + kv_head * size * 32
    values_at = fields[LayerField.VALUES_AT] + kv_head * value_dim * 32
    query_at = plan[Args.QUERY_AT] + ((kv_head * plan[Args.ROWS] + row0) * group + begin) * size * 4
    j = 0
    while j < count:
        left = count - j
        kernel, took = Args.SCORES_1_AT, 1
        if left >= 8:
            kernel, took = Args.SCORES_8_AT, 8
        elif left >= 3:
            kernel, took = Args.SCORES_4_AT, 4
        elif left >= 2:
            kernel, took = Args.SCORES_2_AT, 2
        call_12(
            plan[kernel], query_at + j * size * 4, size * 4, keys_at, table_at, low // 16, (end + 15) // 16,
            kv_heads * size * 32, size, scores_at + j * stride, stride, values_at, kv_heads * value_dim * 32,
        )  # fmt: skip
        j += took
    totals_at = scratch + 3072
    for j in range(count):
        row = row0 + (begin + j) // group
        prefix, num, first = (
            rows[row, RowField.PREFIX],
            rows[row, RowField.ANCESTORS],
            rows[row, RowField.FIRST_ANCESTOR],
        )
        start = _lowest(window, rows[row, RowField.POSITION])
        seen = prefix + num
        scores = floats(scores_at + j * stride, stride // 4)
        # Ancestors move up to where they would stand in a chain, so that sums run in the same order.
        for a in range(num):
            scores[prefix + a] = scores[ancestors[first + a]]
        vectors = (seen - start + 15) // 16
        if plan[Args.SCORES_CAP_AT] != 0:
            call_3(plan[Args.CAP_AT], scores_at + j * stride + start * 4, vectors, plan[Args.SCORES_CAP_AT])
        for t in range(seen, start + vectors * 16):
            scores[t] = types.float32(-float("inf"))
        call_3(plan[Args.SOFTMAX_AT], scores_at + j * stride + start * 4, vectors, totals_at + j * 4)
    sums_at = scratch + SCRATCH_SUMS
    sums = floats(sums_at, count * value_dim)
    for i in range(count * value_dim):
        sums[i] = types.float32(0)
    j = 0
    while j < count:
        took = 4 if count - j >= 3 else 2 if count - j >= 2 else 1
        first_common, last_common = 0, 1 << 60
        for q in range(j, min(j + took, count)):
            row = row0 + (begin + q) // group
            first_common = max(first_common, _lowest(window, rows[row, RowField.POSITION]))
            last_common = min(last_common, rows[row, RowField.PREFIX])
        last_common = max(last_common, first_common)
        for q in range(j, min(j + took, count)):
            row = row0 + (begin + q) // group
            start = _lowest(window, rows[row, RowField.POSITION])
            stop = min(first_common, rows[row, RowField.PREFIX])
            _mix(plan, fields, 1, scores_at + q * stride, table_at, kv_head, start, stop, sums_at + q * value_dim * 4)
        _mix(
            plan,
            fields,
            took,
            scores_at + j * stride,
            table_at,
            kv_head,
            first_common,
            last_common,
            sums_at + j * value_dim * 4,
        )
        for q in range(j, min(j + took, count)):
            row = row0 + (begin + q) // group
            prefix, num, first = (
                rows[row, RowField.PREFIX],
                rows[row, RowField.ANCESTORS],
                rows[row, RowField.FIRST_ANCESTOR],
            )
            sum_at = sums_at + q * value_dim * 4
            start = _lowest(window, rows[row, RowField.POSITION])
            weights_at = scores_at + q * stride
            _mix(plan, fields, 1, weights_at, table_at, kv_head, max(last_common, start), prefix, sum_at)
            a = max(0, start - prefix)
            while a < num:
                place, run = ancestors[first + a], 1
                while a + run < num and ancestors[first + a + run] == place + run:
                    run += 1
                shifted = weights_at + (prefix + a - place) * 4
                _mix(plan, fields, 1, shifted, table_at, kv_head, place, place + run, sum_at)
                a += run
        j += took
    totals = floats(totals_at, count)
    for j in range(count):
        row, head = row0 + (begin + j) // group, kv_head * group + (begin + j) % group
        out = floats(plan[Args.MIXED_AT] + row * plan[Args.MIXED_STRIDE] + head * size * 4, size)
        got = floats(sums_at + j * value_dim * 4, size)
        share = types.float32(1) / totals[j]
        for i in range(size):
            out[i] = got[i] * share


@inner
def _attention(plan, fields, rows, units, ancestors, scratch, stage):
    kv_heads, size = plan[Args.KV_HEADS], plan[Args.HEAD_DIM]
    group = plan[Args.HEADS] // kv_heads
    total = plan[Args.UNITS] * kv_heads
    done = 0
    while True:
        unit = _claim(plan, stage)
        if unit >= total:
            break
        done += 1
        kv_head, row0, count = unit % kv_heads, units[unit // kv_heads, 0], units[unit // kv_heads, 1]
        table_at = plan[Args.TABLES_AT] + rows[row0, RowField.SEQUENCE] * plan[Args.TABLE_STRIDE]
        begin = 0
        while begin < count * group:
            took = min(8, count * group - begin)
            _attend_queries(plan, fields, rows, ancestors, scratch, kv_head, row0, begin, took, table_at)
            begin += took
        if (group * size) % 32 == 0 and fields[LayerField.OUT_NEEDS] & RECORDS:
            for row in range(row0, row0 + count):
                at = plan[Args.MIXED_AT] + row * plan[Args.MIXED_STRIDE] + kv_head * group * size * 4
                records = plan[Args.MIXED_RECORDS_AT] + row * plan[Args.MIXED_RECORD_STRIDE]
                call_3(plan[Args.QUANTISE_AT], at, records + kv_head * group * size // 32 * 64, group * size // 32)
    _await(plan, stage, done, total)


@inner
def _quantise_mixed(plan, stage):
    """Round the outputs of heads that do not fill whole groups."""
    total, done = plan[Args.ROWS], 0
    while True:
        row = _claim(plan, stage)
        if row >= total:
            break
        done += 1
        at = plan[Args.MIXED_AT] + row * plan[Args.MIXED_STRIDE]
        records = plan[Args.MIXED_RECORDS_AT] + row * plan[Args.MIXED_RECORD_STRIDE]
        call_3(plan[Args.QUANTISE_AT], at, records, (plan[Args.HEADS] * plan[Args.HEAD_DIM] + 31) // 32)
    _await(plan, stage, done, total)


@inner
def _cap_logits(plan, scratch, stage):
    """Cap the logits, `CAP_COLUMNS` of a row at a time; what fills no vector goes by the scratch."""
    columns = plan[Args.LOGITS_STRIDE] // 4
    pieces = (columns + CAP_COLUMNS - 1) // CAP_COLUMNS
    total, done = plan[Args.LOGIT_ROWS] * pieces, 0
    while True:
        unit = _claim(plan, stage)
        if unit >= total:
            break
        done += 1
        first = unit % pieces * CAP_COLUMNS
        at = plan[Args.LOGITS_AT] + unit // pieces * plan[Args.LOGITS_STRIDE] + first * 4
        count = min(CAP_COLUMNS, columns - first)
        whole, rest = count // 16, count % 16
        call_3(plan[Args.CAP_AT], at, whole, plan[Args.LOGITS_CAP_AT])
        if rest > 0:
            last, spare = floats(at + whole * 64, rest), floats(scratch, 16)
            for i in range(16):
                spare[i] = last[i] if i < rest else types.float32(0)
            call_3(plan[Args.CAP_AT], scratch, 1, plan[Args.LOGITS_CAP_AT])
            for i in range(rest):
                last[i] = spare[i]
    _await(plan, stage, done, total)


_I64_1, _I64_2, _I32_1 = types.int64[::1], types.int64[:, ::1], types.int32[::1]


@compiled(
    types.void(_I64_1, _I64_2, _I64_2, _I64_2, _I64_2, _I32_1, _I64_1, types.float32, types.float32, types.int64),
    fastmath=FLAGS,
)
def run(plan, layers, parts, rows, units, ancestors, taps, eps, scale, thread):
    """One thread's part of a step.

    Args:
        taps: for the input of each layer and the output of the last, its place among the taps, or -1.
        scale: of the attention's scores.
    """
    scratch = plan[Args.SCRATCH_AT] + thread * plan[Args.SCRATCH_BYTES]
    if thread == 0:
        store(plan[Args.COUNTERS_AT] + 16, clock())
    num_rows, stage, post_at = plan[Args.ROWS], 0, 0
    x_at, x_stride = plan[Args.X_AT], plan[Args.X_STRIDE]
    normed_at, records_at, record_stride = (
        plan[Args.NORMED_AT],
        plan[Args.NORMED_RECORDS_AT],
        plan[Args.RECORD_STRIDE],
    )
    aligned = (plan[Args.HEADS] // plan[Args.KV_HEADS] * plan[Args.HEAD_DIM]) % 32 == 0
    for index in range(plan[Args.NUM_LAYERS]):
        layer = layers[index]
        _residual_and_norm(
            plan,
            eps,
            rows,
            stage,
            post_at,
            layer[LayerField.ATTN_NORM_AT],
            layer[LayerField.QKV_NEEDS],
            taps[index],
            False,
        )
        _product(
            plan, parts, stage + 1, num_rows, scratch, layer[LayerField.QKV_FIRST], layer[LayerField.QKV_PARTS],
            normed_at, x_stride, records_at, record_stride, STORE,
            plan[Args.QKV_AT], plan[Args.QKV_STRIDE], layer[LayerField.QKV_BIAS_AT],
        )  # fmt: skip
        _rotate_and_store(plan, layer, rows, eps, scale, stage + 2)
        _attention(plan, layer, rows, units, ancestors, scratch, stage + 3)
        if not aligned and layer[LayerField.OUT_NEEDS] & RECORDS:
            _quantise_mixed(plan, stage + 4)
        post_at = layer[LayerField.POST_ATTN_NORM_AT]
        _product(
            plan, parts, stage + 5, num_rows, scratch, layer[LayerField.OUT_FIRST], layer[LayerField.OUT_PARTS],
            plan[Args.MIXED_AT], plan[Args.MIXED_STRIDE], plan[Args.MIXED_RECORDS_AT], plan[Args.MIXED_RECORD_STRIDE],
            STORE if post_at != 0 else ADD, plan[Args.BRANCH_AT] if post_at != 0 else x_at, x_stride,
            layer[LayerField.OUT_BIAS_AT],
        )  # fmt: skip
        _residual_and_norm(
            plan, eps, rows, stage + 6, post_at, layer[LayerField.MLP_NORM_AT], layer[LayerField.GATE_NEEDS], -1, False
        )
        _gated_product(
            plan, parts, stage + 7, scratch, layer[LayerField.GATE_FIRST], layer[LayerField.GATE_BIAS_AT],
            layer[LayerField.DOWN_NEEDS],
        )  # fmt: skip
        post_at = layer[LayerField.POST_MLP_NORM_AT]
        _product(
            plan, parts, stage + 8, num_rows, scratch, layer[LayerField.DOWN_FIRST], layer[LayerField.DOWN_PARTS],
            plan[Args.ACTED_AT], plan[Args.ACTED_STRIDE], plan[Args.ACTED_RECORDS_AT], plan[Args.ACTED_RECORD_STRIDE],
            STORE if post_at != 0 else ADD, plan[Args.BRANCH_AT] if post_at != 0 else x_at, x_stride,
            layer[LayerField.DOWN_BIAS_AT],
        )  # fmt: skip
        stage += 9
    _residual_and_norm(
        plan,
        eps,
        rows,
        stage,
        post_at,
        plan[Args.FINAL_NORM_AT],
        plan[Args.HEAD_NEEDS],
        taps[plan[Args.NUM_LAYERS]],
        True,
    )
    if plan[Args.LOGIT_ROWS] > 0:
        _product(
            plan, parts, stage + 1, plan[Args.LOGIT_ROWS], scratch, plan[Args.HEAD_FIRST], plan[Args.HEAD_PARTS],
            normed_at, x_stride, records_at, record_stride, STORE,
            plan[Args.LOGITS_AT], plan[Args.LOGITS_STRIDE], 0,
        )  # fmt: skip
        if plan[Args.LOGITS_CAP_AT] != 0:
            _cap_logits(plan, scratch, stage + 2)
