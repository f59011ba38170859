"""`python -m tools.regret`: what adapting loses beside the best fixed draft length, for each proposer.

Every proposer answers the bundled prompts adaptively and with every fixed length, 0 included, one request and several
at once, all ways in turns. The first turn of each is left out: it is where the controller finds out.

    regret ratio   tokens per second, adaptive / best fixed length
    plain ratio    adaptive / length 0

The best of several noisy figures is too high a bar by some of the noise; `tests/control/test_regret.py` has the same
bounds without noise. `--spoil ALL,ROWS,DRAFTS` multiplies the calibration; prompts are ordered by category, so that the
text changes its nature on the way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.core import AUTO
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import Drafting, SamplingParams, SpeculationOptions

EXIT_ERROR = 2
LENGTHS = (0, 1, 2, 4, 8)
OF_BEST, OF_PLAIN = 0.95, 0.98


@dataclass(frozen=True, slots=True)
class Regret:
    """One proposer at one concurrency; rates are tokens per second."""

    proposer: str
    concurrency: int
    adaptive: float
    fixed: dict[int, float]

    @property
    def best(self) -> int:
        """The best fixed length."""
        return max(self.fixed, key=lambda length: self.fixed[length])

    @property
    def holds(self) -> bool:
        """Whether adapting keeps its bounds."""
        if self.best == 0:
            return self.adaptive >= OF_PLAIN * self.fixed[0]
        return self.adaptive >= OF_BEST * self.fixed[self.best]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns 1 where a bound is missed."""
    options = _parser().parse_args(arguments)
    try:
        llm = LLM(
            options.model,
            draft_model=options.draft_model,
            heads=options.heads,
            speculation=SpeculationOptions(proposer=AUTO),
        )
        _spoil(llm, options.spoil)
        names = options.proposers or [AUTO, *llm.engine.proposers]
        found = [
            _show(measure(llm, name, concurrency, options.limit, options.tokens))
            for name in names
            for concurrency in options.concurrency
        ]
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    document = {"machine": asdict(describe_machine()), "regret": [asdict(each) for each in found]}
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0 if all(each.holds for each in found) else 1


def measure(llm: LLM, proposer: str, concurrency: int, limit: int, tokens: int) -> Regret:
    """All ways in turns over the prompts; the first turn of each way is left out."""
    ways: list[int | None] = [None, *LENGTHS]
    emitted, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    prompts = sorted(load_prompts(), key=lambda prompt: prompt.category)[: limit * concurrency]
    for turn, group in enumerate(_groups(prompts, concurrency)):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            count, took = _answer(llm, group, _drafting(proposer, way), tokens, f"{proposer} {way}")
            if turn:
                emitted[way], seconds[way] = emitted[way] + count, seconds[way] + took
    if not seconds[None]:
        raise InvalidOption("limit", "must leave two turns of prompts", limit)
    rates = {way: emitted[way] / seconds[way] for way in ways}
    return Regret(proposer, concurrency, rates[None], {length: rates[length] for length in LENGTHS})


def _groups(prompts: Sequence[Prompt], size: int) -> Iterator[list[Prompt]]:
    for at in range(0, len(prompts) - size + 1, size):
        yield list(itertools.islice(prompts, at, at + size))


def _drafting(proposer: str, length: int | None) -> Drafting:
    return Drafting() if length == 0 else Drafting(proposer=proposer, draft_length=length)


def _answer(llm: LLM, prompts: Sequence[Prompt], drafting: Drafting, tokens: int, salt: str) -> tuple[int, float]:
    """Tokens and seconds of these prompts together; ways share neither prefixes nor answers to guess from."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    questions = [as_tokens(llm.loaded.tokenizer, each.prompt) for each in prompts]
    references = [each.reference for each in prompts]
    started = time.perf_counter()
    answers = llm.generate(questions, params, references=references, speculation=drafting, salt=salt)
    return sum(len(answer.tokens) for answer in answers), time.perf_counter() - started


def _spoil(llm: LLM, factors: Sequence[float]) -> None:
    """Make the calibration wrong: all costs, those of additional rows, those of drafts."""
    everything, rows, drafts = factors
    cost = llm.engine.cost
    points = cost.verify.shape.points()
    least = min(points.values(), default=0.0)
    lengths = (1, 8)
    taken = {name: [cost.draft_seconds(name, length) for length in lengths] for name in cost.draft_points()}
    for size, seconds in points.items():
        cost.verify.anchor(size, everything * (least + rows * (seconds - least)))
    if drafts != 1.0:
        for name, each in taken.items():
            for length, seconds in zip(lengths, each, strict=True):
                for _ in range(50):  # old measurements fade
                    cost.anchor_draft(name, length, everything * drafts * seconds)


def _show(found: Regret) -> Regret:
    best = found.best
    print(
        f"{found.proposer:>12} x{found.concurrency}: adaptive {found.adaptive:7.1f} tokens/s, best fixed length {best} "
        f"{found.fixed[best]:7.1f}, ratio {found.adaptive / found.fixed[best]:.2f}; "
        f"of plain {found.adaptive / found.fixed[0]:.2f} {'' if found.holds else '  BOUND MISSED'}"
    )
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.regret", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model")
    parser.add_argument("--heads", action="append", default=[])
    parser.add_argument("--proposers", nargs="*", help=f"{AUTO} and all that are built by default")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--limit", type=int, default=6, help="turns of each way")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--spoil", type=_factors, default=(1.0, 1.0, 1.0), metavar="ALL,ROWS,DRAFTS")
    return parser


def _factors(text: str) -> tuple[float, ...]:
    factors = tuple(float(part) for part in text.split(","))
    if len(factors) != 3 or min(factors) <= 0:
        raise argparse.ArgumentTypeError("must be three numbers above 0")
    return factors


if __name__ == "__main__":
    sys.exit(main())
