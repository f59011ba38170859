"""Where a step of the compiled backend spends its time, by part and number of rows.

`python -m tools.step_parts --model qwen2.5-coder-1.5b-instruct`. The rows are those of one request, as when a draft is
verified; `--requests` gives each row a request of its own. Parts are told apart by the processor's cycle counter, which
a step keeps at the end of each stage. What is outside of all parts is Python: the tables of the step, the embedding,
waking threads. On processors without such a counter there is only the whole.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median

from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.stored_weights import stored_weights
from gamaneh.backends.compiled.vectors import BLOCK
from gamaneh.models.loading import open_model

LAYER_PARTS = ("norm", "qkv", "rotate", "attention", "quantise", "out", "norm", "gate+up", "down")
"""Stages of a layer, in their order; those of the same name are added up."""

Parts = dict[str, float]
"""Milliseconds by part, with `whole` and `outside`."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.step_parts", description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="model of the catalogue, or a path")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of rows")
    parser.add_argument("--context", type=int, default=200, help="tokens before the rows")
    parser.add_argument("--repeats", type=int, default=15, help="steps of each number of rows, in turns")
    parser.add_argument("--requests", action="store_true", help="each row belongs to a request of its own")
    parser.add_argument("--instructions", default="auto", help="instruction set to keep to")
    parser.add_argument("--threads", type=int, help="threads; without it as many as the process has cores")
    options = parser.parse_args(arguments)
    opened = open_model(options.model)
    started = time.perf_counter()
    decoder = CompiledDecoder(
        opened.config, stored_weights(opened.tensors), instructions=options.instructions, threads=options.threads
    )
    gigabytes = decoder.nbytes() / 1e9
    print(f"{options.model}: {gigabytes:.3f} GB laid out in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    found = measure(decoder, options.rows, options.context, options.repeats, separate=options.requests)
    _show(found, gigabytes)
    print(json.dumps({"model": options.model, "gigabytes": gigabytes, "context": options.context, "ms": found}))


def measure(
    decoder: CompiledDecoder, counts: Sequence[int], context: int, repeats: int, *, separate: bool = False
) -> dict[int, Parts]:
    """Return medians by number of rows.

    Args:
        separate: each row belongs to a sequence of its own, with a context of its own.
    """
    config, most = decoder.config, max(counts)
    blocks = -(-(context + most + 1) // BLOCK)
    pages = Pages(config.num_layers, blocks * most, config.num_kv_heads, config.head_dim)
    spans = {rows: _spans(rows, context, blocks, separate) for rows in counts}
    for some in spans.values():
        decoder.step(some, pages)
    rate = _rate(decoder, pages, spans[counts[0]])
    steps: dict[int, list[Parts]] = {rows: [] for rows in counts}
    for _ in range(repeats):
        for rows in counts:
            steps[rows].append(_timed(decoder, pages, spans[rows], rate))
    return {rows: {name: median(parts[name] for parts in some) for name in some[0]} for rows, some in steps.items()}


def _spans(rows: int, context: int, blocks: int, separate: bool) -> list[FedSpan]:
    tokens = list(range(rows))
    if not separate:
        return [FedSpan(tokens, context, list(range(blocks)), logit_rows=rows)]
    return [FedSpan([token], context, list(range(token * blocks, (token + 1) * blocks))) for token in tokens]


def _rate(decoder: CompiledDecoder, pages: Pages, spans: Sequence[FedSpan]) -> float:
    """Ticks of the cycle counter in a millisecond."""
    times, ticks = [], []
    for _ in range(2):
        times.append(time.perf_counter())
        decoder.step(spans, pages)
        ticks.append(int(decoder.marks()[0]))
        time.sleep(0.2)
    return (ticks[1] - ticks[0]) / (times[1] - times[0]) / 1e3


def _timed(decoder: CompiledDecoder, pages: Pages, spans: Sequence[FedSpan], rate: float) -> Parts:
    start = time.perf_counter()
    decoder.step(spans, pages)
    whole = 1e3 * (time.perf_counter() - start)
    last, *marks = decoder.marks()
    names = [*LAYER_PARTS * decoder.config.num_layers, "norm", "head", "cap"]
    parts = dict.fromkeys(names, 0.0)
    for name, mark in zip(names, marks, strict=True):
        if mark:  # a stage that was left out keeps none
            parts[name] += float(mark - last) / rate
            last = mark
    return {"whole": whole, "outside": whole - sum(parts.values()), **{name: ms for name, ms in parts.items() if ms}}


def _show(found: Mapping[int, Parts], gigabytes: float) -> None:
    first = next(iter(found.values()))
    lines = ["ms by rows  " + "".join(f"{rows:>9}      " for rows in found)]
    for name, one in first.items():
        cells = [f"{parts[name]:9.2f} x{parts[name] / one:<4.1f}" for parts in found.values()]
        lines.append(name.ljust(12) + "".join(cells))
    lines.append("GB/s        " + "".join(f"{1e3 * gigabytes / parts['whole']:9.1f}      " for parts in found.values()))
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
