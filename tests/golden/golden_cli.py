"""Scenarios through the command line, over tiny models that are read from files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import golden_adapter as door

Scenario = Callable[[], Any]
SCENARIOS: dict[str, dict[str, Scenario]] = {"cli": {}}
PROMPT = "the cat sat on the mat and the cat sat on the"
COMMON = ("-n", "16", "--ignore-eos")
ANSWER = ("text", "finish_reason", "prompt_tokens", "tokens", "logprobs", "prompt_logprobs")

_OPEN = ExitStack()


@cache
def files() -> tuple[Path, ...]:
    """The target's file and the draft model's; they last as long as the process."""
    return tuple(door.model_files(Path(_OPEN.enter_context(TemporaryDirectory()))))


def target() -> tuple[str, ...]:
    """Options that choose the target, in float32: rounding of bfloat16 depends on the machine."""
    return "--model", str(files()[0]), "--weights", "float32", "--invariant"


def ran(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """Exit code and outputs, without the folder, times and progress."""
    code, out, err = door.command(*arguments, stdin=stdin)
    return {key: value for key, value in (("exit", code), ("out", _timeless(out)), ("err", _timeless(err))) if value}


def _timeless(text: str) -> str:
    lines = (line for line in text.splitlines(keepends=True) if not line.startswith("loading "))
    text = "".join(lines).replace(str(files()[0].parent), "FOLDER")
    return re.sub(r"\d+\.\d+ s\b|\d+\.\d+ tokens/s", "TIME", text)


def generated(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
    """The JSON of `gamaneh generate`, without what depends on time: a slow proposer may be left out."""
    code, out, err = door.command("generate", *target(), *COMMON, "--json", *arguments, stdin=stdin)
    assert code == 0, err
    answer = json.loads(out.splitlines()[-1])
    return {key: answer[key] for key in ANSWER if answer[key] is not None}


def told(answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The answers, where they are those of `plain` only by saying so."""
    plain = answers["plain"]
    return {name: "as plain" if name != "plain" and own == plain else own for name, own in answers.items()}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def keep(function: Scenario) -> Scenario:
        SCENARIOS["cli"][name] = function
        return function

    return keep


@scenario("generate: what guesses, and what decides")
def _proposers() -> Any:
    draft = ("--draft-model", str(files()[1]), "--min-confidence", "0")
    choices: dict[str, Sequence[str]] = {
        "plain": ("--plain",),
        "lookup": ("-k", "4"),
        "suffix": ("--proposer", "suffix", "-k", "4"),
        "draft model": (*draft, "-k", "3"),
        "draft model, trees": (*draft, "-k", "3", "--draft-branching", "2"),
        "early exit": ("--proposer", "early_exit", "--exit-layer", "1", "-k", "3"),
        "portfolio": ("--proposer", "portfolio", "-k", "3"),
    }
    return {
        name: told({choice: generated(*arguments, *sampling, PROMPT) for choice, arguments in choices.items()})
        for name, sampling in {"greedy": (), "seeded": ("--temperature", "1", "--seed", "4")}.items()
    }


@scenario("generate: rules of the papers")
def _rules() -> Any:
    draft = ("--draft-model", str(files()[1]), "--min-confidence", "0", "-k", "3")
    return {
        rule: generated(*draft, "--rule", rule, "-t", "0", PROMPT)
        for rule in ("match", "rejection", "block", "typical")
    }


@scenario("generate: sampling")
def _sampling() -> Any:
    choices: dict[str, Sequence[str]] = {
        "filters": ("-t", "1.2", "--seed", "1", "--top-k", "30", "--top-p", "0.9", "--min-p", "0.01"),
        "penalties": ("--repetition-penalty", "1.3", "--presence-penalty", "0.5", "--frequency-penalty", "0.5"),
        "bias": ("--logit-bias", "5=100", "--logit-bias", "6=-5"),
        "bad word": ("--bad-word", "he", "--stop-token-id", "3"),
        "logprobs": ("-n", "3", "--logprobs", "2", "--prompt-logprobs", "0"),
        "chat": ("--chat",),
    }
    return {name: generated(*arguments, "hello he") for name, arguments in choices.items()} | {
        "standard input": generated("-", stdin="hello")
    }


@scenario("generate: text alone")
def _text() -> Any:
    return ran("generate", *target(), *COMMON, "-k", "2", "hello hello hello")


@scenario("compare")
def _compare() -> Any:
    prompts = files()[0].parent / "set.jsonl"
    rows = [{"id": str(at), "category": "c", "language": "en", "prompt": "abcabcabc" * at} for at in (1, 2)]
    prompts.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    asked = ("--no-chat", "--prompts", str(prompts), "-k", "3", "--batch", "2", "--json")
    code, out, err = door.command("compare", *target(), *COMMON, *asked)
    assert code == 0, err
    outcome = json.loads(out.splitlines()[-1])
    keys = ("dtype", "proposer", "k", "rule", "exact", "identical", "prompts", "batch_mismatches")
    return {key: outcome[key] for key in keys}


REFUSED: dict[str, Sequence[str]] = {
    "two choices": ("--lookup", "--plain"),
    "a length for nothing": ("--plain", "-k", "4"),
    "a rule for nothing": ("--plain", "--rule", "match"),
    "an option of another": ("--suffix-depth", "9"),
    "an unknown proposer": ("--proposer", "luck"),
    "an unknown rule": ("--rule", "luck"),
    "a length above the maximum": ("-k", "99"),
    "temperature": ("--temperature", "-1"),
    "top-p": ("--top-p", "0"),
    "min-tokens": ("--min-tokens", "9", "-n", "5"),
    "a seed that would not be kept": ("--rule", "block", "-t", "1", "--seed", "3"),
    "logit-bias": ("--logit-bias", "7:1"),
    "logprobs": ("--logprobs", "3"),
    "max-context": ("--max-context", "1"),
    "a prompt that is too long": ("--max-context", "4"),
    "heads that are none": ("--heads", "absent"),
    "a missing draft model": ("--proposer", "draft_model"),
    "an exit that is none": ("--proposer", "early_exit", "--exit-layer", "7", "-k", "2"),
}


@scenario("refusals")
def _refused() -> Any:
    refused = {name: ran("generate", *target(), *arguments, "Hello there") for name, arguments in REFUSED.items()}
    return {**refused, "a missing model": ran("generate", "--model", "absent.gguf", "Hello")}
