"""`python -m tools.methods.instant`: what drafts without a model cost in a long context, beside a forward."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import cast

from gamaneh.bench.prompt_set import load_set
from gamaneh.core import ProposalRow, Proposer, Sampler
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import EngineOptions, SpeculationOptions
from tools.speed.verify import verify_times

MODEL = "smollm2-135m-instruct"
CONTEXT = 8000
STEPS = 200
EMITTED = 3
"""Tokens that the text grows by from one draft to the next."""

DEPTH = 15
FORWARDS = 5
EXIT_ERROR = 2


@dataclass(frozen=True, slots=True)
class InstantCost:
    """Seconds of one proposer: of reading the whole text at first, and of one draft later on, the median."""

    proposer: str
    read_seconds: float
    step_seconds: float


def instant_costs(proposers: Mapping[str, Proposer], text: Sequence[int], context: int) -> Iterator[InstantCost]:
    """Draft behind `context` tokens of `text`, which then grows, for every instant proposer without a grammar."""
    for name, proposer in proposers.items():
        if proposer.needs.instant and not proposer.needs.grammar:
            tokens = list(text[:context])
            read, *steps = (_seconds(proposer, tokens, text) for _ in range(1 + STEPS))
            yield InstantCost(name, read, statistics.median(steps))


def text_of(llm: LLM, length: int) -> list[int]:
    """Tokens of the prompts that come along, over and over."""
    tokens = [token for prompt in load_set("full") for token in llm.tokenizer.encode(prompt.prompt, special=False)]
    return list(islice(cycle(tokens), length))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.methods.instant", description=__doc__)
    parser.add_argument("--model", default=MODEL, help="path or catalogue name")
    parser.add_argument("--context", type=int, default=CONTEXT, help=f"tokens before the first draft ({CONTEXT})")
    options = parser.parse_args(arguments)
    try:
        if options.context < 1:
            raise InvalidOption("--context", "must be at least 1", options.context)
        speculation, limits = SpeculationOptions(proposer="suffix", draft_length=1), EngineOptions(max_batch=1)
        _report(LLM(options.model, speculation=speculation, options=limits), options.context)
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def _report(llm: LLM, context: int) -> None:
    text = text_of(llm, context + EMITTED * (STEPS + 1))
    costs = list(instant_costs(llm.engine.proposers, text, context))
    forward = verify_times({llm.engine.invariant: llm.engine}, text[:context], FORWARDS)[0].seconds
    print(f"{context} tokens of context: a forward of one position takes {forward * 1e3:.2f} ms")
    for cost in costs:
        share = cost.step_seconds / forward
        print(
            f"{cost.proposer}: a draft takes {cost.step_seconds * 1e3:.3f} ms, {share:.2%} of it;"
            f" reading the text took {cost.read_seconds * 1e3:.0f} ms"
        )


def _seconds(proposer: Proposer, tokens: list[int], text: Sequence[int]) -> float:
    """Of one draft; then the text grows."""
    row = ProposalRow("text", tokens, DEPTH, DEPTH, cast(Sampler, None))  # instant proposers do not sample
    started = time.perf_counter()
    proposer.propose([row])
    seconds = time.perf_counter() - started
    tokens += text[len(tokens) : len(tokens) + EMITTED]
    return seconds


if __name__ == "__main__":
    sys.exit(main())
