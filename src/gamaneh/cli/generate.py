"""`gamaneh generate`: one prompt, one answer, as it comes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag, ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import LiveText, notices, output, print_json, read_prompt
from gamaneh.errors import GamanehError, InvalidOption

if TYPE_CHECKING:
    from gamaneh.core import Origin, StepOutput, StepReport, TokenLogprob
    from gamaneh.engine.llm import LLM
    from gamaneh.options import SamplingParams


@command
def generate_text(
    model: ModelChoice,
    proposer: ProposerChoice,
    sampling: SamplingChoice,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads standard input.", show_default=False)
    ],
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Colour tokens by origin.", show_default="at a terminal"),
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="With --json: this many likely tokens beside each one.", show_default="none")
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="With --json: the same for the prompt.", show_default="none")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Continue a prompt. The text is the one that the model alone would write; guessing only makes it come sooner."""
    # Everything that can be wrong is looked at before a model is loaded.
    for name, value in (("--logprobs", logprobs), ("--prompt-logprobs", prompt_logprobs)):
        if value is not None and not as_json:
            raise InvalidOption(name, "needs --json", value)
    proposer.speculation().verify_seed(sampling.params(logprobs=logprobs, prompt_logprobs=prompt_logprobs))
    text = read_prompt(prompt)
    from gamaneh.bench.engines import as_tokens
    from gamaneh.cli.session import open_llm

    llm = open_llm(model, proposer)
    params = sampling.params(
        lambda word: llm.tokenizer.encode(word, special=False), logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )
    ids = as_tokens(llm.tokenizer, text, chat)
    if as_json:
        print_json({"model": model.model, **_answer(llm, ids, params)})
    else:
        _stream(llm, ids, params, color)


def _answer(llm: LLM, ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    from gamaneh.metrics.collector import SpeculationStats

    answer = llm.generate([ids], params)[0]
    if answer.error is not None:
        raise GamanehError(answer.error)
    stats = SpeculationStats()
    for report in answer.reports:
        stats.add(report)
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": len(answer.prompt_tokens),
        "tokens": list(answer.tokens),
        "origins": list(answer.origins),
        "logprobs": _logprobs(answer.logprobs),
        "prompt_logprobs": _logprobs(answer.prompt_logprobs),
        "seconds": answer.seconds,
        "first_token_seconds": answer.first_token_seconds,
        "acceptance_rate": stats.acceptance_rate,
        "tokens_per_round": stats.tokens_per_round,
        **_exactness(answer.reports),
    }


def _exactness(reports: Sequence[StepReport]) -> dict[str, Any]:
    """Which rules judged, and whether the answer is the target's own or approximate."""
    from gamaneh.sampling.rules import is_exact

    rules = sorted({report.rule for report in reports})
    return {"rules": rules, "exact": all(map(is_exact, rules))}


def _logprobs(entries: Sequence[TokenLogprob | None] | None) -> list[dict[str, Any] | None] | None:
    return [None if entry is None else asdict(entry) for entry in entries] if entries else None


def _stream(llm: LLM, ids: Sequence[int], params: SamplingParams, color: bool | None) -> None:
    from gamaneh.cli.painting import Painter, legend
    from gamaneh.sampling.rules import is_exact

    console = output(color)
    colored = console.is_terminal and not console.no_color
    painter = Painter(llm.tokenizer.decode)
    if colored:
        notices().print(legend())
    meter = Meter()
    exact = llm.speculation.rule == "auto" or is_exact(llm.speculation.rule)
    try:
        with LiveText(console, meter.live) as live:
            for step in meter.watch(llm.stream(ids, params)):
                live.add(painter.paint(step.tokens, step.origins, step.text) if colored else step.text)
    except KeyboardInterrupt:
        notices().print(meter.summary(), style="dim")
        raise
    notices().print(meter.summary(), style="dim")
    if not exact:
        notices().print(f"The rule {llm.speculation.rule} is approximate: another text than the model's own may come.")


class Meter:
    """Counts and times a stream."""

    def __init__(self) -> None:
        self.tokens = self.rounds = self.accepted = 0
        self._started = self._first = self._last = time.perf_counter()

    def watch(self, steps: Iterator[StepOutput]) -> Iterator[StepOutput]:
        self._started = time.perf_counter()
        for step in steps:
            self.count(step.emitted)
            if step.error is not None:
                raise GamanehError(step.error)
            yield step

    def count(self, origins: Iterable[Origin]) -> None:
        """Take in the tokens that a step brought."""
        origins = tuple(origins)
        self._last = time.perf_counter()
        if self.tokens == 0:
            self._first = self._last
        self.tokens += len(origins)
        self.rounds += bool(origins)
        self.accepted += sum(origin == "accepted" for origin in origins)

    def live(self) -> str:
        """How it goes, in less than a line of 80 columns."""
        now = time.perf_counter()
        if self.tokens < 2 or self._last == self._first:
            return f"{self.tokens} tokens, {now - self._started:.0f} s"
        rate = (self.tokens - 1) / (self._last - self._first)
        return (
            f"{self.tokens} tokens, {rate:.1f} tokens/s, {self.accepted / self.tokens:.0%} of them drafted, "
            f"{now - self._started:.0f} s"
        )

    def summary(self) -> str:
        if self.tokens < 2 or self._last == self._first:
            return f"{self.tokens} tokens in {self._last - self._started:.2f} s"
        return (
            f"{self.tokens} tokens, the first after {self._first - self._started:.2f} s, "
            f"then {(self.tokens - 1) / (self._last - self._first):.1f} tokens/s; "
            f"{self.tokens / self.rounds:.2f} tokens per round"
        )
