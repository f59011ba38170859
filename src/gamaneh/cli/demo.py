"""`gamaneh demo`: the main job on a small real model, where guessing helps and where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag, ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import count_bar, output, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from gamaneh.bench.comparison import Comparison
    from gamaneh.engine.llm import LLM, Generation
    from gamaneh.options import SamplingParams

MODEL = "smollm2-135m-instruct"
TOKENS = 96
_REPEATS = 3
_NO_DIFFERENCE = 0.05

_PASSAGE = (
    "The old ferry left the harbour every morning at six. It carried bread, letters and two sleepy passengers "
    "to the island, and it came back at noon with fish, wool and the same two passengers. The captain had made "
    "the trip for thirty years. He knew every rock by name, and he said that the rocks knew him too."
)


@dataclass(frozen=True, slots=True)
class Scene:
    """One prompt of the demonstration, who guesses, and what it stands for."""

    id: str
    title: str
    prompt: str
    proposer: str


HEADS = "medusa"
_QUESTION = "What should I think about before I move to a small island?"

SCENES = (
    Scene(
        "quoting",
        "An answer that repeats the prompt: lookup finds its guesses there",
        f"Repeat this text word for word.\n\n{_PASSAGE}",
        "lookup",
    ),
    Scene("open", "An open question: there is little to look up", _QUESTION, "lookup"),
    Scene("heads", "The same question: small heads, trained on the model's own answers, guess", _QUESTION, HEADS),
)


@command
def show_demo(
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of each answer.")] = TOKENS,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Colour tokens by origin.", show_default="at a terminal"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Answer prompts plain and speculatively with SmolLM2-135M, fetching it first if need be."""
    from gamaneh.bench.engines import describe_setup
    from gamaneh.cli.session import open_llm

    llm = open_llm(ModelChoice(model=MODEL), ProposerChoice(heads=[f"{MODEL}/{HEADS}"]))
    params = SamplingChoice(max_tokens=max_tokens).params()
    console = output(color)
    setup = describe_setup(llm, params, MODEL)
    console.print(f"{MODEL}, {setup.dtype} on {setup.device}; rule {setup.rule}, greedy")
    outcomes = [_play(console, llm, scene, params) for scene in SCENES]
    console.print(closing(*outcomes), style="bold")
    if as_json:
        print_json({scene.id: outcome.to_json() for scene, outcome in zip(SCENES, outcomes, strict=True)})


def _play(console: Console, llm: LLM, scene: Scene, params: SamplingParams) -> Comparison:
    """Show one scene: title, coloured answer, numbers."""
    from gamaneh.cli.painting import Painter, legend

    console.print(f"\n{scene.title}", style="bold")
    console.print(scene.prompt, style="dim")
    outcome, answer = _measure(llm, scene, params)
    console.print(legend())
    console.print(Painter(llm.tokenizer.decode).paint(answer.tokens, answer.origins, answer.text))
    console.print(numbers(outcome))
    return outcome


def _measure(llm: LLM, scene: Scene, params: SamplingParams) -> tuple[Comparison, Generation]:
    from gamaneh.bench.comparison import compare
    from gamaneh.bench.engines import as_tokens
    from gamaneh.bench.prompt_set import Prompt
    from gamaneh.options import SpeculationOptions

    prompt = Prompt(scene.id, "demo", "en", scene.prompt)
    guessing = llm.with_speculation(SpeculationOptions(proposer=scene.proposer))
    with count_bar("plain and speculative, alternated") as tick:
        outcome = compare(guessing, [prompt], params, model=MODEL, chat=True, rounds=_REPEATS, tick=tick)
    (answer,) = guessing.generate([as_tokens(llm.tokenizer, scene.prompt, chat=True)], params)
    return outcome, answer


def numbers(outcome: Comparison) -> str:
    """The measured outcome of one scene in one line each for sameness, speed and guessing."""
    return (
        f"identical: {'yes' if outcome.identical else 'no'}\n"
        f"plain {outcome.plain_tokens_per_second:.1f} tokens/s, "
        f"speculative {outcome.speculative_tokens_per_second:.1f} tokens/s, "
        f"speed-up {outcome.speedup or 1.0:.2f}x "
        f"(95 % interval {outcome.speedup_low or 1.0:.2f} to {outcome.speedup_high or 1.0:.2f})\n"
        f"acceptance rate {outcome.acceptance_rate:.1%}, tokens per round {outcome.tokens_per_round:.2f}"
    )


def closing(quoting: Comparison, open_question: Comparison, heads: Comparison) -> str:
    """What the scenes showed, and no more than that."""
    same = all(outcome.identical for outcome in (quoting, open_question, heads))
    return (
        f"\nThe tokens were {'the same' if same else 'NOT the same'} with and without guessing. "
        f"Lookup was {_faster(quoting)} where the answer repeats the prompt, and {_faster(open_question)} on the open "
        f"question: what it gains depends on how much there is to look up. "
        f"The trained heads were {_faster(heads)} there."
    )


def _faster(outcome: Comparison) -> str:
    speedup = outcome.speedup or 1.0
    if abs(speedup - 1.0) < _NO_DIFFERENCE:
        return f"neither faster nor slower ({speedup:.2f}x)"
    return f"{speedup:.2f} times as fast" if speedup > 1.0 else f"slower ({speedup:.2f}x)"
