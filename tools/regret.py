"""`python -m tools.regret`: what adapting loses beside the best fixed draft length, for each proposer.

Every proposer answers the bundled prompts adaptively and with every fixed length, 0 included, one request and several
at once, all ways in turns. The first turn of each is left out: it is where the controller finds out. Prompts come
category by category, so that the text changes its nature on the way.

    regret ratio   speed of adaptive / speed of the best fixed length: geometric mean over the turns, 95 % interval
    plain ratio    adaptive / length 0, likewise
    best           length of most tokens per second over all turns that count

The best of several noisy figures is too high a bar by some of the noise; `tests/control/test_regret.py` has the same
bounds without noise. A figure whose interval reaches the bound is no proof of a miss; it is marked `within noise`.
`--spoil ALL,ROWS,DRAFTS` multiplies the calibration. `--out FILE` merges what is measured into the results in the file,
so that long measurements can be done in parts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.bench.stats import geometric_mean
from gamaneh.core import AUTO
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import Drafting, SamplingParams, SpeculationOptions

EXIT_ERROR = 2
LENGTHS = (0, 1, 2, 4, 8)
OF_BEST, OF_PLAIN = 0.95, 0.98

Way = int | None
"""A fixed draft length; None adapts."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One group of prompts, answered in every way: tokens per second, and the share of rounds that drafted."""

    category: str
    rates: dict[Way, float]


@dataclass(frozen=True, slots=True)
class Regret:
    """One proposer at one concurrency, over the turns that count.

    Args:
        rates: tokens per second by way.
    """

    proposer: str
    concurrency: int
    rates: dict[Way, float]
    turns: Sequence[Turn]

    @property
    def best(self) -> int:
        """The best fixed length."""
        return max((way for way in self.rates if way is not None), key=lambda length: self.rates[length])

    def ratio(self, length: int, turns: Sequence[Turn] | None = None) -> tuple[float, float, float]:
        """Adaptive / this length, and its interval."""
        found = geometric_mean([turn.rates[None] / turn.rates[length] for turn in turns or self.turns])
        return found.value, found.low, found.high

    @property
    def bound(self) -> float:
        """Least ratio to the best length."""
        return OF_PLAIN if self.best == 0 else OF_BEST

    def document(self, **setting: object) -> dict[str, Any]:
        """What is kept of it."""
        value, low, high = self.ratio(self.best)
        categories = {turn.category: None for turn in self.turns}
        return {
            **setting,
            "proposer": self.proposer,
            "concurrency": self.concurrency,
            "turns": len(self.turns),
            "rates": {str("adaptive" if way is None else way): round(rate, 2) for way, rate in self.rates.items()},
            "best": self.best,
            "of_best": [round(each, 3) for each in (value, low, high)],
            "of_plain": [round(each, 3) for each in self.ratio(0)],
            "of_best_by_category": {
                name: round(self.ratio(self.best, [turn for turn in self.turns if turn.category == name])[0], 3)
                for name in categories
            },
            "holds": value >= self.bound,
            "within_noise": high >= self.bound,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns 1 where a bound is missed."""
    options = _parser().parse_args(arguments)
    try:
        found = [_show(each) for each in _measured(options)]
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    if options.out is not None:
        _merge(options.out, found)
    else:
        print(json.dumps(_document(found), ensure_ascii=False, allow_nan=False))
    return 0 if all(each["holds"] for each in found) else 1


def _measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    llm = LLM(
        options.model,
        draft_model=options.draft_model,
        heads=options.heads,
        speculation=SpeculationOptions(proposer=AUTO),
    )
    _spoil(llm, options.spoil)
    for name in options.proposers or [AUTO, *llm.engine.proposers]:
        for concurrency in options.concurrency:
            found = measure(llm, name, concurrency, options.limit, options.tokens, options.lengths)
            yield found.document(
                model=options.model, draft_model=options.draft_model, spoil=options.spoil, tokens=options.tokens
            )


def measure(
    llm: LLM, proposer: str, concurrency: int, limit: int, tokens: int, lengths: Sequence[int] = LENGTHS
) -> Regret:
    """All ways in turns over `limit` groups of prompts; the first turn of each way is left out."""
    ways: list[Way] = [None, *lengths]
    emitted, seconds = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
    turns: list[Turn] = []
    for turn, group in enumerate(itertools.islice(_groups(load_prompts(), concurrency, limit), limit)):
        rates: dict[Way, float] = {}
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            count, took = _answer(llm, group, _drafting(proposer, way), tokens, f"{proposer} {way}")
            rates[way] = count / took
            if turn:
                emitted[way], seconds[way] = emitted[way] + count, seconds[way] + took
        if turn:
            turns.append(Turn(group[0].category, rates))
    if not turns:
        raise InvalidOption("limit", "must leave two turns of prompts", limit)
    return Regret(proposer, concurrency, {way: emitted[way] / seconds[way] for way in ways}, turns)


def _groups(prompts: Sequence[Prompt], size: int, limit: int) -> Iterator[list[Prompt]]:
    """Groups of one category each, as many of every category, category by category; prompts come again when used up."""
    categories = sorted({prompt.category for prompt in prompts})
    each = -(-limit // len(categories))
    for category in categories:
        own = itertools.cycle([prompt for prompt in prompts if prompt.category == category])
        for _ in range(each):
            yield list(itertools.islice(own, size))


def _drafting(proposer: str, length: Way) -> Drafting:
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
        cost.anchor_verify(size, everything * (least + rows * (seconds - least)))
    if drafts != 1.0:
        for name, each in taken.items():
            for length, seconds in zip(lengths, each, strict=True):
                for _ in range(50):  # old measurements fade
                    cost.anchor_draft(name, length, everything * drafts * seconds)


def _show(found: dict[str, Any]) -> dict[str, Any]:
    value, low, high = found["of_best"]
    plain, plain_low, plain_high = found["of_plain"]
    verdict = "" if found["holds"] else "  below the bound, within noise" if found["within_noise"] else "  BOUND MISSED"
    print(
        f"{found['proposer']:>12} x{found['concurrency']}: adaptive {found['rates']['adaptive']:7.1f} tokens/s, "
        f"best fixed length {found['best']}, ratio {value:.3f} [{low:.3f}, {high:.3f}]; "
        f"of plain {plain:.3f} [{plain_low:.3f}, {plain_high:.3f}]{verdict}",
        flush=True,
    )
    return found


def _document(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"date": date.today().isoformat(), "machine": asdict(describe_machine()), "regret": list(found)}


def _merge(file: Path, found: Sequence[dict[str, Any]]) -> None:
    """Put new results beside the others of the file, in the place of older ones of the same setting."""
    old = json.loads(file.read_text(encoding="utf-8"))["regret"] if file.is_file() else []
    merged = {_setting(each): each for each in (*old, *found)}
    document = _document(list(merged.values()))
    file.write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def _setting(entry: dict[str, Any]) -> str:
    names = ("model", "draft_model", "spoil", "proposer", "concurrency")
    return json.dumps([entry[name] for name in names])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.regret", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model")
    parser.add_argument("--heads", action="append", default=[])
    parser.add_argument("--proposers", nargs="*", help=f"{AUTO} and all that are built by default")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="fixed lengths; 0 is plain decoding")
    parser.add_argument("--limit", type=int, default=8, help="turns of each way")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--spoil", type=_factors, default=(1.0, 1.0, 1.0), metavar="ALL,ROWS,DRAFTS")
    parser.add_argument("--out", type=Path, help="JSON file that the results are merged into")
    return parser


def _factors(text: str) -> tuple[float, ...]:
    factors = tuple(float(part) for part in text.split(","))
    if len(factors) != 3 or min(factors) <= 0:
        raise argparse.ArgumentTypeError("must be three numbers above 0")
    return factors


if __name__ == "__main__":
    sys.exit(main())
