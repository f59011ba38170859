"""Scenarios through the Python door: `LLM`, `Engine` and the async engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import golden_adapter as door

from gamaneh import LLM, Engine, EngineOptions, Frame, GamanehError, Grammar, SamplingParams, SpeculationOptions
from gamaneh.core import Origin, Request, StepOutput, TokenLogprob
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.testing import EOS_ID, ByteTokenizer, PieceTokenizer, constant, fixed_output, hashed, tiny_model

Scenario = Callable[[], Any]
SCENARIOS: dict[str, dict[str, Scenario]] = {}

TEXT = b"the cat sat on the mat and the cat sat on the hat; "
PROMPTS = {"a": list(TEXT * 2), "b": list(TEXT[:9]), "c": [7], "d": list(TEXT * 3)[5:130]}
TEMPERATURES = {"greedy": {}, "seeded": {"temperature": 1.0, "seed": 5}}
VOCAB = 260


def scenario(area: str, name: str) -> Callable[[Scenario], Scenario]:
    """Record what the function returns under this name."""

    def keep(function: Scenario) -> Scenario:
        SCENARIOS.setdefault(area, {})[name] = function
        return function

    return keep


def params(max_tokens: int | None = 32, ignore_eos: bool = True, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **options)


# How an answer is written down


def answer_of(outputs: Sequence[StepOutput]) -> dict[str, Any]:
    """Everything that one request brought, step borders left out."""
    answer: dict[str, Any] = {
        "tokens": [token for output in outputs for token in output.tokens],
        "text": "".join(output.text for output in outputs),
        "end": next((str(output.finish_reason) for output in outputs if output.finish_reason), None),
    }
    logprobs = [entry for output in outputs for entry in output.logprobs]
    prompt = next((output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None), None)
    extra = {
        "logprobs": [_logprob(entry) for entry in logprobs],
        "prompt_logprobs": prompt and [_logprob(entry) for entry in prompt],
        "error": next((output.error for output in outputs if output.error), None),
    }
    return answer | {key: value for key, value in extra.items() if value}


def _logprob(entry: TokenLogprob | None) -> list[Any] | None:
    return entry and [entry.token, entry.logprob, *([token, value] for token, value in entry.top)]


def origins_of(outputs: Sequence[StepOutput]) -> str:
    """Where each token came from: plain, accepted, correction or bonus."""
    letters = {origin: str(origin)[0] for origin in Origin}
    return "".join(letters[origin] for output in outputs for origin in output.origins)


def counts_of(stats: SpeculationStats) -> dict[str, int]:
    """The counts that metrics expose, without what is measured in seconds."""
    return {name: getattr(stats, name) for name in ("rounds", "drafts", "drafted", "accepted", "emitted")}


class Ledger:
    """Watches an engine: rounds by request, and sums over its steps."""

    def __init__(self, engine: Engine) -> None:
        self.rounds: dict[str, SpeculationStats] = {}
        self.steps: Counter[str] = Counter()
        self.rules: dict[str, set[str]] = {}
        door.watch(engine, self._round, self._step)

    def _round(self, report: Any) -> None:
        self.rounds.setdefault(report.request_id, SpeculationStats()).add(report)
        self.rules.setdefault(report.request_id, set()).add(report.rule)

    def _step(self, report: Any) -> None:
        self.steps["steps"] += 1
        for name in ("prompt_rows", "draft_rows", "rows", "preempted"):
            self.steps[name] += getattr(report, name)


Question = tuple[Sequence[int], SamplingParams, dict[str, Any]]


def run(
    engine: Engine, requests: Mapping[str, Request], *, origins: bool = True, counts: bool = True
) -> dict[str, dict[str, Any]]:
    """Each request's answer, all of them at once; nothing may be held afterwards."""
    ledger = Ledger(engine)
    outputs: dict[str, list[StepOutput]] = {}
    for name, (prompt, own, options) in requests.items():
        door.add(engine, prompt, own, request_id=name, **options)
        outputs[name] = []
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    assert door.held_blocks(engine) == 0
    answers = {}
    for name, own_outputs in outputs.items():
        answers[name] = answer_of(own_outputs)
        if origins:
            answers[name]["origins"] = origins_of(own_outputs)
        if counts and name in ledger.rounds:
            answers[name]["counts"] = list(counts_of(ledger.rounds[name]).values())
    return answers


def batch(names: str, **options: Any) -> dict[str, Request]:
    return {name: (PROMPTS[name], params(**options), {}) for name in names}


def against(plain: Mapping[str, dict[str, Any]], answers: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The answers, where they are those of plain decoding only by saying so."""
    told = {}
    for name, answer in answers.items():
        same = all(answer.get(key) == plain[name].get(key) for key in ("tokens", "text", "end", "error"))
        near = all(_near(answer.get(key), plain[name].get(key)) for key in ("logprobs", "prompt_logprobs"))
        own = {key: value for key, value in answer.items() if key in ("origins", "counts")}
        told[name] = {"answer": "as plain", **own} if same and near else answer
    return told


def _near(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_near, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) < 1e-4
    return bool(left == right)


# Proposers

LETTERS = [chr(byte) for byte in range(128)]
OURS = PieceTokenizer(
    [*LETTERS, " t", " th", " the", " c", " ca", " cat", "at", "س", "ل", "ا", "م", b"\xf0\x9f", b"\x91\x8b", b"\xd8"],
    special=("<end>", "<|user|>"),
)
THEIRS = PieceTokenizer(
    ["the ", "cat", " s", "سل", "a ", "qu", *(bytes([byte]) for byte in range(256))], special=("<eos>", "<|user|>")
)

PROPOSERS: dict[str, Callable[[], LLM]] = {
    "lookup": lambda: door.tiny_llm(proposer="lookup", draft_length=4),
    "suffix": lambda: door.tiny_llm(proposer="suffix", draft_length=4),
    "draft model, the same": lambda: door.tiny_llm(draft_seed=0, **_model()),
    "draft model, hostile": lambda: door.tiny_llm(draft_seed=1, **_model()),
    "draft model, confident": lambda: door.tiny_llm(draft_seed=0, **_model(min_confidence=0.3)),
    "draft model, greedy": lambda: door.tiny_llm(draft_seed=0, **_model(draft_sampling="greedy")),
    "draft model, trees": lambda: door.tiny_llm(draft_seed=1, **_model(draft_branching=3)),
    "medusa": lambda: door.tiny_llm(heads=["medusa"], **_heads("medusa", draft_branching=1)),
    "medusa, trees": lambda: door.tiny_llm(heads=["medusa"], **_heads("medusa")),
    "mtp, parallel": lambda: door.tiny_llm(heads=["mtp_parallel"], **_heads("mtp")),
    "mtp, chained": lambda: door.tiny_llm(heads=["mtp_chained"], **_heads("mtp")),
    "eagle": lambda: door.tiny_llm(heads=["eagle"], **_heads("eagle")),
    "eagle, trees": lambda: door.tiny_llm(heads=["eagle"], **_heads("eagle", draft_branching=2)),
    "early exit": lambda: door.tiny_llm(**_heads("early_exit", exit_layer=1)),
    "early exit, trained": lambda: door.tiny_llm(heads=["early_exit"], **_heads("early_exit")),
    "portfolio": lambda: door.tiny_llm(heads=["medusa"], draft_seed=1, **_heads("portfolio")),
}


def _model(**options: Any) -> dict[str, Any]:
    return {"proposer": "draft_model", "draft_length": 4, "min_confidence": 0.0, **options}


def _heads(proposer: str, **options: Any) -> dict[str, Any]:
    return {"proposer": proposer, "draft_length": 3, "min_confidence": 0.0, **options}


@cache
def plain(names: str, temperature: str, family: str = "llama") -> dict[str, dict[str, Any]]:
    return run(door.engine_of(door.tiny_llm(family)), batch(names, **TEMPERATURES[temperature]), origins=False)


for _temperature in TEMPERATURES:

    @scenario("proposers", f"none, {_temperature}")
    def _plain(temperature: str = _temperature) -> Any:
        return plain("abcd", temperature)

    for _name, _make in PROPOSERS.items():

        @scenario("proposers", f"{_name}, {_temperature}")
        def _proposer(make: Callable[[], LLM] = _make, temperature: str = _temperature) -> Any:
            """One request alone, then four at once in an engine that has seen the first."""
            engine = door.engine_of(make())
            alone = run(engine, batch("a", **TEMPERATURES[temperature]))
            together = run(engine, batch("abcd", **TEMPERATURES[temperature]))
            expected = plain("abcd", temperature)
            return {"alone": against(expected, alone), "together": against(expected, together)}


@scenario("proposers", "auto, where only the tokens are certain")
def _auto() -> Any:
    engine = door.engine_of(door.tiny_llm(heads=["medusa", "eagle"], draft_seed=0, **_heads("auto")))
    answers = run(engine, batch("abcd", **TEMPERATURES["seeded"]), origins=False, counts=False)
    return against(plain("abcd", "seeded"), answers)


for _bridge in ("text", "vocabulary"):

    @scenario("proposers", f"draft model with another tokenizer, bridge {_bridge}")
    def _crossed(bridge: str = _bridge) -> Any:
        texts = {"a": "the cat sat on the mat; " * 4, "b": "سلام 👋 the", "c": " "}
        requests: dict[str, Request] = {
            name: (OURS.encode(text), params(24, **TEMPERATURES["seeded"]), {}) for name, text in texts.items()
        }
        expected = run(door.engine_of(door.crossed_llm(OURS, THEIRS)), requests, origins=False)
        engine = door.engine_of(door.crossed_llm(OURS, THEIRS, **_model(bridge=bridge)))
        return {"plain": expected, "drafted": against(expected, run(engine, requests))}


@scenario("proposers", "families")
def _families() -> Any:
    """Windows, biases, norms and rope of other decoders, under a draft model."""
    told = {}
    for family in ("mistral", "qwen2", "qwen3", "smollm3", "gemma3"):
        engine = door.engine_of(door.tiny_llm(family, draft_seed=0, **_model()))
        told[family] = {
            "plain": plain("ac", "seeded", family),
            "drafted": against(plain("ac", "seeded", family), run(engine, batch("ac", **TEMPERATURES["seeded"]))),
        }
    return told


@contextmanager
def plugin() -> Iterator[None]:
    """A package with a proposer, installed as far as entry points are concerned."""
    with TemporaryDirectory() as folder:
        info = Path(folder) / "golden_counting-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: golden-counting\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[gamaneh.proposers]\ngolden_counting = golden_counting:recipe\n")
        (Path(folder) / "golden_counting.py").write_text(door.PLUGIN_MODULE)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            sys.modules.pop("golden_counting", None)


@scenario("proposers", "plug-in")
def _plugin() -> Any:
    with plugin():
        engine = door.engine_of(door.tiny_llm(proposer="golden_counting", draft_length=3))
    return against(plain("abcd", "seeded"), run(engine, batch("abcd", **TEMPERATURES["seeded"])))


@scenario("proposers", "fixed drafts: chains, trees, faults")
def _scripted() -> Any:
    """A scripted target over a real cache; each accuracy, with and without wrong siblings."""

    def fault() -> None:
        raise MemoryError("no room for the draft")

    requests: dict[str, Request] = {
        name: ([1, 2, 3, at], params(20, **TEMPERATURES["greedy"]), {}) for at, name in enumerate("abcd")
    }
    script = hashed(32)
    expected = run(door.scripted(script, 32), requests, origins=False)
    told: dict[str, Any] = {"plain": expected}
    for accuracy in (1.0, 0.7, 0.0):
        for branches in (0, 2):
            engine = door.scripted(script, 32, draft_length=5, accuracy=accuracy, branches=branches)
            told[f"accuracy {accuracy}, {branches} siblings"] = against(expected, run(engine, requests))
    broken = door.scripted(script, 32, draft_length=5, fault=fault)
    told["a proposer that raises"] = against(expected, run(broken, requests))
    return told


# Rules

RULES = ("match", "rejection", "block", "typical")

for _rule in RULES:
    for _drafts in ("the same", "hostile"):

        @scenario("rules", f"{_rule}, draft model {_drafts}")
        def _ruled(rule: str = _rule, drafts: str = _drafts) -> Any:
            told = {}
            for sampling in ("request", "greedy"):
                engine = door.engine_of(
                    door.tiny_llm(draft_seed=int(drafts == "hostile"), **_model(rule=rule, draft_sampling=sampling))
                )
                for name, options in TEMPERATURES.items():
                    answers = run(engine, batch("abcd", **options))
                    told[f"drafts sampled as {sampling}, {name}"] = against(plain("abcd", name), answers)
            return told


@scenario("rules", "trees of heads")
def _tree_rules() -> Any:
    told = {}
    for rule in ("match", "typical"):
        engine = door.engine_of(door.tiny_llm(heads=["medusa"], **_heads("medusa", rule=rule)))
        told[rule] = against(plain("ab", "seeded"), run(engine, batch("ab", **TEMPERATURES["seeded"])))
    return told


@scenario("rules", "thresholds of typical")
def _thresholds() -> Any:
    told = {}
    for epsilon, delta in ((0.001, 0.001), (0.5, 0.9)):
        engine = door.engine_of(door.tiny_llm(draft_seed=1, **_model(rule="typical", epsilon=epsilon, delta=delta)))
        told[f"{epsilon}, {delta}"] = run(engine, batch("a", **TEMPERATURES["seeded"]))
    return told


@scenario("rules", "filters and penalties under the rules of the papers")
def _filtered_rules() -> Any:
    told = {}
    for rule in ("rejection", "block"):
        engine = door.engine_of(door.tiny_llm(draft_seed=0, **_model(rule=rule)))
        requests: dict[str, Request] = {
            name: (PROMPTS["a"], params(**{"seed": 9, "temperature": 1.0, "max_tokens": 24, **options}), {})
            for name, options in PROCESSORS.items()
        }
        told[rule] = run(engine, requests)
    return told


@scenario("rules", "which rule auto takes")
def _automatic() -> Any:
    kinds = {"greedy": params(4), "seeded": params(4, temperature=1.0, seed=1), "unseeded": params(4, temperature=1.0)}
    told = {}
    for name, make in {
        "draft model": lambda: door.tiny_llm(draft_seed=0, **_model()),
        "greedy draft model": lambda: door.tiny_llm(draft_seed=0, **_model(draft_sampling="greedy")),
        "lookup": lambda: door.tiny_llm(proposer="lookup", draft_length=2),
        "eagle": lambda: door.tiny_llm(heads=["eagle"], **_heads("eagle")),
    }.items():
        engine = door.engine_of(make())
        ledger = Ledger(engine)
        run(engine, {kind: (PROMPTS["a"], own, {}) for kind, own in kinds.items()})
        told[name] = {kind: sorted(ledger.rules[kind]) for kind in kinds}
    return told


# Sampling parameters

PROCESSORS: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.0, "top_k": 20},
    "top_p": {"temperature": 1.3, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "all filters": {"temperature": 1.5, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "low temperature": {"temperature": 0.01},
    "high temperature": {"temperature": 100.0},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"temperature": 0.8, "presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2},
    "all penalties": {"repetition_penalty": 0.9, "presence_penalty": -1.0, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {32: -100.0, 101: 3.0}},
    "forced token": {"logit_bias": {65: 100.0}},
    "bad words": {"bad_words": ((256,), (77, 46), (77, 164, 112))},
    "min tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(120))},
    "stop tokens": {"stop_token_ids": tuple(range(120))},
    "end tokens": {"ignore_eos": False, "logit_bias": {EOS_ID: 6.0}},
    "end tokens late": {"ignore_eos": False, "logit_bias": {EOS_ID: 6.0}, "min_tokens": 9},
    "logprobs": {"temperature": 1.0, "logprobs": 3, "max_tokens": 8},
    "logprobs of the token alone": {"logprobs": 0, "max_tokens": 8},
    "logprobs under a bias": {"logprobs": 2, "max_tokens": 6, "logit_bias": {65: 100.0}},
    "stop": {"stop": ("\ufffd\ufffd", "a", "e")},
    "one token": {"max_tokens": 1},
}

for _option, _values in PROCESSORS.items():

    @scenario("sampling", _option)
    def _sampled(options: dict[str, Any] = _values) -> Any:
        requests: dict[str, Request] = {"a": (PROMPTS["a"], params(**{"seed": 9, "max_tokens": 32, **options}), {})}
        expected = run(door.engine_of(door.tiny_llm()), requests, origins=False)
        told = {"plain": expected["a"]}
        for name, speculation in {"lookup": {"proposer": "lookup", "draft_length": 4}, "draft model": _model()}.items():
            draft = None if name == "lookup" else 0
            engine = door.engine_of(door.tiny_llm(draft_seed=draft, **speculation))
            told[name] = against(expected, run(engine, requests))["a"]
        return told


@scenario("sampling", "all of them in one batch")
def _mixed() -> Any:
    requests: dict[str, Request] = {
        name: (PROMPTS["a"], params(**{"seed": 9, "max_tokens": 24, **options}), {})
        for name, options in PROCESSORS.items()
    }
    engines = [door.tiny_llm(options=_limits(max_batch=32, kv_blocks=512), **own) for own in ({}, _lookup())]
    expected, drafted = (run(door.engine_of(llm), requests, counts=False, origins=False) for llm in engines)
    return against(expected, drafted)


@scenario("sampling", "seeds")
def _seeds() -> Any:
    requests: dict[str, Request] = {
        str(seed): (PROMPTS["b"], params(16, temperature=1.0, seed=seed), {}) for seed in (0, 1, -1, 2**64 - 1)
    }
    return run(door.engine_of(door.tiny_llm()), requests, counts=False)


@scenario("sampling", "ties go to the lowest id")
def _ties() -> Any:
    return run(door.scripted(constant([0.1, 0.3, 0.3, 0.3]), 4), {"a": ([1], params(4), {})})


@scenario("sampling", "prompt logprobs")
def _prompt_logprobs() -> Any:
    told = {}
    for name, options in {"whole": {}, "in chunks": {"step_tokens": 8}}.items():
        engine = door.engine_of(door.tiny_llm(options=_limits(**options)))
        told[name] = run(engine, {"b": (PROMPTS["b"], params(2, prompt_logprobs=2, logprobs=1), {})})
    alone: dict[str, Request] = {"b": (PROMPTS["b"], params(0, prompt_logprobs=0), {})}
    told["without an answer"] = run(door.engine_of(door.tiny_llm()), alone)
    return told


STOPS: dict[str, tuple[str, ...]] = {
    "at once": ("H",),
    "in the middle": ("lo, w",),
    "the first of two": ("world", "lo"),
    "half of it at the end": ("again and again",),
    "over a character of two bytes": ("é!",),
    "never": ("absent",),
}

for _stopped, _texts in STOPS.items():

    @scenario("sampling", f"stop text, {_stopped}")
    def _stop(texts: tuple[str, ...] = _texts) -> Any:
        said = [*"Hello, world é! again".encode(), EOS_ID]
        requests: dict[str, Request] = {"a": (list(b"x"), params(64, False, stop=texts, logprobs=0), {})}
        told = {}
        for name, own in {"plain": {}, "drafted": {"draft_length": 4, "accuracy": 1.0}}.items():
            told[name] = run(door.scripted(fixed_output(said, VOCAB, 1), VOCAB, **own), requests)["a"]
        return told


# Scheduling, cache and order


def _limits(**options: Any) -> EngineOptions:
    return EngineOptions(**{"max_batch": 8, "step_tokens": 256, "invariant": True, "kv_blocks": 64, **options})


def _lookup() -> dict[str, Any]:
    return {"proposer": "lookup", "draft_length": 4}


def _watched(llm: LLM, names: str = "abcd", temperature: str = "seeded") -> dict[str, Any]:
    engine = door.engine_of(llm)
    ledger = Ledger(engine)
    answers = run(engine, batch(names, **TEMPERATURES[temperature]))
    return {"steps": dict(ledger.steps), **against(plain("abcd", temperature), answers)}


@scenario("scheduling", "prefill in chunks")
def _chunks() -> Any:
    return {
        f"{tokens} rows a step, {name}": _watched(door.tiny_llm(options=_limits(step_tokens=tokens), **own))
        for tokens in (8, 33)
        for name, own in {"plain": {}, "draft model": {"draft_seed": 0, **_model()}}.items()
    }


@scenario("scheduling", "preemption")
def _preemption() -> Any:
    makers: dict[str, dict[str, Any]] = {
        "plain": {},
        "lookup": _lookup(),
        "draft model": {"draft_seed": 0, **_model()},
        "medusa": {"heads": ["medusa"], **_heads("medusa")},
        "eagle": {"heads": ["eagle"], **_heads("eagle")},
    }
    return {
        name: _watched(door.tiny_llm(options=_limits(kv_blocks=20), **own), temperature="greedy")
        for name, own in makers.items()
    }


@scenario("scheduling", "prefixes that are read once")
def _prefixes() -> Any:
    """The same prompts twice; then another salt; then without the prefix cache."""
    told = {}
    for name, own in {"plain": {}, "draft model": {"draft_seed": 0, **_model()}}.items():
        llm = door.tiny_llm(**own)
        told[name] = {run: _watched(llm) for run in ("cold", "warm")}
        engine = door.engine_of(llm)
        ledger = Ledger(engine)
        salted: dict[str, Request] = {"a": (PROMPTS["a"], params(4), {"salt": "other"})}
        told[name]["salted"] = {**run(engine, salted), "steps": dict(ledger.steps)}
    told["without"] = [_watched(llm) for llm in [door.tiny_llm(options=_limits(prefix_cache=False))] for _ in range(2)]
    return told


@scenario("scheduling", "the order in which requests end")
def _order() -> Any:
    """One at a time: by priority, then by arrival."""
    engine = door.scripted(hashed(32), 32, options=EngineOptions(max_batch=1, step_tokens=64))
    order = []
    for name, priority in {"first": 0, "second": 0, "urgent": 5, "later": -5}.items():
        door.add(engine, [1, 2, len(name)], params(4), request_id=name, priority=priority)
    while engine.has_work:
        order += [output.request_id for output in engine.step() if output.finish_reason]
    return order


@scenario("scheduling", "abort")
def _abort() -> Any:
    """Text that was held back comes with the last output; the neighbour goes on; an unknown id is nothing."""
    engine = door.scripted(fixed_output(list(b"Hello, world"), VOCAB, 1), VOCAB, draft_length=3, accuracy=1.0)
    outputs: dict[str, list[StepOutput]] = {"a": [], "b": []}
    for name in outputs:
        door.add(engine, [65], params(12, stop=("o, x",)), request_id=name)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
        if len(outputs["a"]) == 2 and (last := engine.abort("a")) is not None:
            outputs["a"].append(last)
    return {
        "held": door.held_blocks(engine),
        "unknown": engine.abort("c"),
        **{name: answer_of(own) for name, own in outputs.items()},
    }


@scenario("scheduling", "the end of the context")
def _context() -> Any:
    told = {}
    for name, own in {"plain": {}, "drafted": {"draft_length": 4, "accuracy": 1.0}}.items():
        engine = door.scripted(hashed(32), 32, max_context=16, **own)
        told[name] = run(engine, {"a": ([1, 2, 3], params(None), {}), "b": ([4] * 15, params(None), {})})
    return told


@scenario("scheduling", "a reference for lookup")
def _reference() -> Any:
    expected = plain("c", "greedy")
    reference = [*PROMPTS["c"], *expected["c"]["tokens"]]
    engine = door.engine_of(door.tiny_llm(**_lookup()))
    return {
        name: against(expected, run(engine, {"c": (PROMPTS["c"], params(), options)}))
        for name, options in {"without": {}, "with": {"reference": reference}}.items()
    }


@scenario("scheduling", "options of one request")
def _per_request() -> Any:
    engine = door.engine_of(door.tiny_llm(draft_seed=0, **_model()))
    choices = {
        "a": SpeculationOptions(proposer="none"),
        "b": SpeculationOptions(proposer="lookup", draft_length=2),
        "c": SpeculationOptions(proposer="draft_model", draft_length=1),
        "d": SpeculationOptions(proposer="draft_model", draft_length=6, rule="rejection"),
    }
    requests: dict[str, Request] = {
        name: (PROMPTS[name], params(**TEMPERATURES["greedy"]), {"speculation": own}) for name, own in choices.items()
    }
    return against(plain("abcd", "greedy"), run(engine, requests))


# Grammars

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 8}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TO_THE_END = {**dict.fromkeys(map(ord, " \n\r\t"), -8.0), ord(","): 3.0, ord("]"): -5.0, ord("}"): 6.0, EOS_ID: 12.0}
NEAR_JSON = list(b'{"a": 12, "b": ["x", "y"]}, {"a": 7, "b": ["x", "z"], "c": 1} {"a": "b"} {"a": 1, "b": []} ')

GRAMMAR_PROPOSERS: dict[str, dict[str, Any]] = {
    "grammar": {"proposer": "grammar", "draft_length": 6},
    "lookup": {"proposer": "lookup", "draft_length": 4},
    "draft model": {"draft_seed": 0, "proposer": "draft_model", "draft_length": 4, "min_confidence": 0.0},
    "rejection": {"draft_seed": 0, "proposer": "draft_model", "draft_length": 4, "rule": "rejection"},
    "medusa": {"heads": ["medusa"], "proposer": "medusa", "draft_length": 3},
}


@scenario("grammar", "a JSON schema")
def _json_schema() -> Any:
    mask = door.json_grammar(SCHEMA)
    requests: dict[str, Request] = {
        str(seed): (NEAR_JSON, params(160, False, temperature=float(seed > 0), seed=seed, logit_bias=TO_THE_END),
                    {"mask": mask})
        for seed in range(3)
    }  # fmt: skip
    expected = run(door.engine_of(door.tiny_llm(options=_limits(kv_blocks=256))), requests, origins=False)
    told: dict[str, Any] = {"plain": expected}
    for answer in expected.values():
        json.loads(answer["text"])
    for name, own in GRAMMAR_PROPOSERS.items():
        engine = door.engine_of(door.tiny_llm(options=_limits(kv_blocks=256), **own))
        told[name] = against(expected, run(engine, requests))
    return told


@scenario("grammar", "a frame around the value")
def _frame() -> Any:
    frame = Frame(before="<tool>", after="</tool>")
    mask = Grammar.from_json_schema({"enum": ["yes", "no"]}, ByteTokenizer(), frame=frame)
    requests: dict[str, Request] = {"a": (PROMPTS["a"], params(60, False), {"mask": mask})}
    told = {}
    for name, own in {"plain": {}, "grammar": GRAMMAR_PROPOSERS["grammar"]}.items():
        told[name] = run(door.engine_of(door.tiny_llm(**own)), requests)["a"]
    return told


# `LLM` and the async engine


@scenario("doors", "LLM.generate and LLM.stream")
def _llm() -> Any:
    llm = door.tiny_llm(**_lookup())
    own = params(16, temperature=1.0, seed=3, logprobs=1, stop=("zzz",))
    generated = llm.generate(["abcabcabc", list(b"xyzxyz")], own, references=["abcabcabcabc", None])
    stats = [SpeculationStats() for _ in generated]
    for answer, sums in zip(generated, stats, strict=True):
        for report in answer.reports:
            sums.add(report)
    streamed = list(llm.stream("abcabcabc", own))
    refused = llm.generate([[1], [1], []], [own, SamplingParams(stop_token_ids=(400,)), own])
    return {
        "generated": [
            {
                "prompt": answer.prompt_tokens,
                "tokens": answer.tokens,
                "text": answer.text,
                "end": str(answer.finish_reason),
                "origins": "".join(str(origin)[0] for origin in answer.origins),
                "logprobs": [_logprob(entry) for entry in answer.logprobs],
                "counts": list(counts_of(sums).values()),
            }
            for answer, sums in zip(generated, stats, strict=True)
        ],
        "streamed as generated": answer_of(streamed)["tokens"] == generated[0].tokens,
        "refused": [[str(answer.finish_reason), answer.error, len(answer.tokens)] for answer in refused],
    }


@scenario("doors", "the async engine")
def _async() -> Any:
    """Requests at once, one of them aborted after its first tokens, one refused."""
    return asyncio.run(_several())


async def _several() -> Any:
    engine = door.scripted(hashed(32), 32, draft_length=3)
    own = params(12, temperature=0.8, seed=2)

    async with door.running(engine) as shell:

        async def one(name: str) -> dict[str, Any]:
            return answer_of([out async for out in await shell.submit([1, 2, len(name)], own, request_id=name)])

        async def cut() -> dict[str, Any]:
            """How far it comes is a matter of time; that what came is the beginning of the answer is not."""
            outputs = []
            stream = await shell.submit([1, 2, 1], params(200, temperature=0.8, seed=2), request_id="cut")
            async for out in stream:
                outputs.append(out)
                shell.abort("cut")
            answer = answer_of(outputs)
            return {"end": answer["end"], "first": answer["tokens"][:1]}

        async def refused() -> str:
            try:
                await shell.submit([], own, request_id="refused")
            except GamanehError as error:
                return str(error)
            return "accepted"

        first, second, cut_off, error = await asyncio.gather(one("a"), one("bb"), cut(), refused())
    return {"a": first, "bb": second, "cut": cut_off, "refused": error}


# Refusals


def told(action: Callable[[], object]) -> str:
    """What an action that has to fail says."""
    try:
        action()
    except GamanehError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


BAD_SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": -0.5},
    "temperature, not a number": {"temperature": "hot"},
    "temperature, infinite": {"temperature": float("inf")},
    "top_k": {"top_k": -1},
    "top_p": {"top_p": 0.0},
    "min_p": {"min_p": 1.5},
    "repetition_penalty": {"repetition_penalty": 0.0},
    "presence_penalty": {"presence_penalty": 3.0},
    "frequency_penalty": {"frequency_penalty": -3.0},
    "logit_bias": {"logit_bias": {-1: 1.0}},
    "seed": {"seed": 2**64},
    "stop": {"stop": ("",)},
    "stop_token_ids": {"stop_token_ids": (-1,)},
    "max_tokens": {"max_tokens": -1},
    "min_tokens": {"min_tokens": 9, "max_tokens": 5},
    "logprobs": {"logprobs": 101},
    "prompt_logprobs": {"prompt_logprobs": -1},
    "bad_words": {"bad_words": ((),)},
}
BAD_SPECULATION: dict[str, dict[str, Any]] = {
    "proposer": {"proposer": ""},
    "draft_length": {"draft_length": 129},
    "draft_length above the maximum": {"draft_length": 20},
    "max_draft_length": {"max_draft_length": 0},
    "rule": {"rule": "luck"},
    "draft_sampling": {"draft_sampling": "random"},
    "epsilon": {"rule": "typical", "epsilon": 0.0},
}
BAD_ENGINE: dict[str, dict[str, Any]] = {
    "max_batch": {"max_batch": 0},
    "step_tokens": {"step_tokens": 3, "max_batch": 4},
    "max_context": {"max_context": 1},
    "block_size": {"block_size": 0},
    "kv_blocks": {"kv_blocks": 0},
    "invariant": {"invariant": "yes"},
}


@scenario("refusals", "options")
def _bad_options() -> Any:
    kinds = ((SamplingParams, BAD_SAMPLING), (SpeculationOptions, BAD_SPECULATION), (EngineOptions, BAD_ENGINE))
    return {
        f"{kind.__name__}: {name}": told(lambda kind=kind, options=options: kind(**options))
        for kind, cases in kinds
        for name, options in cases.items()
    }


@scenario("refusals", "requests")
def _bad_requests() -> Any:
    engine = door.engine_of(door.tiny_llm(options=_limits(max_context=32), **_lookup()))
    door.add(engine, [1], params(1), request_id="taken")
    cases: dict[str, tuple[Sequence[int], SamplingParams, dict[str, Any]]] = {
        "an empty prompt": ([], params(), {}),
        "an id that is too large": ([1, 260], params(), {}),
        "a negative id": ([-1], params(), {}),
        "longer than the context": ([1] * 33, params(), {}),
        "stop_token_ids": ([1], params(stop_token_ids=(260,)), {}),
        "logit_bias": ([1], params(logit_bias={260: 1.0}), {}),
        "bad_words": ([1], params(bad_words=((260,),)), {}),
        "a seed that would not be kept": (
            [1],
            params(temperature=1.0, seed=3),
            {"speculation": SpeculationOptions(proposer="lookup", rule="rejection")},
        ),
        "an id in use": ([1], params(), {"request_id": "taken"}),
        "an unknown proposer": ([1], params(), {"speculation": SpeculationOptions(proposer="luck")}),
        "a proposer that was not built": ([1], params(), {"speculation": SpeculationOptions(proposer="draft_model")}),
    }
    return {
        name: told(lambda prompt=prompt, own=own, options=options: door.add(engine, prompt, own, **options))
        for name, (prompt, own, options) in cases.items()
    }


@scenario("refusals", "models and proposers")
def _bad_models() -> Any:
    cases: dict[str, Callable[[], object]] = {
        "a draft model that is missing": lambda: door.tiny_llm(proposer="draft_model"),
        "heads that are missing": lambda: door.tiny_llm(proposer="medusa"),
        "heads of another kind": lambda: door.tiny_llm(proposer="eagle", heads=["medusa"]),
        "an unknown proposer": lambda: door.tiny_llm(proposer="luck"),
        "a device without a draft model": lambda: LLM(tiny_model(), draft_device="cpu"),
        "an exit beyond the last layer": lambda: door.tiny_llm(proposer="early_exit", exit_layer=9),
    }
    return {name: told(action) for name, action in cases.items()}


@scenario("refusals", "logits that are no numbers")
def _bad_logits() -> Any:
    """The request with the bad row ends; its neighbour is served."""
    good = hashed(32)

    def script(history: Sequence[int]) -> Any:
        return good(history) * (float("nan") if history[0] == 9 and len(history) > 5 else 1.0)

    requests: dict[str, Request] = {"bad": ([9, 1], params(12), {}), "good": ([8, 1], params(12), {})}
    return run(door.scripted(script, 32), requests)
