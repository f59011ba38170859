"""Measures one configuration."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from transformers import PreTrainedModel

from gamaneh.bench.comparison import compare
from gamaneh.bench.engines import describe_setup
from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.engine.llm import LLM
from gamaneh.metrics.memory import peak_resident_bytes
from gamaneh.options import SamplingParams, SpeculationOptions
from tools.speed.configuration import (
    Configuration,
    Effort,
    fixed_length,
    make_cases,
    open_llm,
)
from tools.speed.figures import Figures, Memory, Speculation
from tools.speed.overhead import Overhead, measure_overhead
from tools.speed.peer import Peer, load_peer
from tools.speed.race import Race, Runner, race
from tools.speed.verify import VerifyTime, verify_times

T = TypeVar("T")

CODE, EDITING = "code", "editing"
FIXED_DRAFT_LENGTH = 4
MOST_OVERHEAD_CASES = 2


def measure(configuration: Configuration, effort: Effort) -> Figures:
    """Load the models, measure everything, and tell standard error how far it is.

    Raises:
        ModelError: a model cannot be found, read or used.
    """

    def say(what: str) -> None:
        print(f"{configuration.title}: {what}", file=sys.stderr, flush=True)

    say("loading")
    llm = open_llm(configuration)
    bench = SpeedBench(llm, load_prompts(), effort, lambda: load_peer(llm.loaded.path, llm.loaded.dtype))
    return bench.run(configuration.title, say)


class SpeedBench:
    """The measurements of one target.

    Args:
        llm: its models, for one request at a time.
        prompts: with the categories `code` and `editing`.
        make_peer: loads the same model into `transformers`; called last.
    """

    def __init__(
        self, llm: LLM, prompts: Sequence[Prompt], effort: Effort, make_peer: Callable[[], PreTrainedModel]
    ) -> None:
        self.llm, self.prompts, self.effort, self.make_peer = llm, prompts, effort, make_peer
        self.setup = describe_setup(llm, SamplingParams())
        self.cases = make_cases(llm, prompts, CODE, EDITING, limit=effort.prompts)

    @property
    def proposer(self) -> str:
        return "lookup" if self.llm.draft is None else "draft_model"

    def run(self, title: str, say: Callable[[str], None]) -> Figures:
        """All measurements, one after the other."""

        def measured(what: str, measurement: Callable[[], T]) -> T:
            gc.collect()  # engines of the one before may lie in reference cycles
            say(what)
            return measurement()

        return Figures(
            title=title,
            setup=self.setup,
            memory=measured("memory", self.memory),
            verify=measured("time of one verify", self.verify),
            invariance=measured("cost of shape-invariant execution", self.invariance),
            overhead=measured("overhead of a round", self.overhead),
            speculation=measured("speculation against plain", self.speculation),
            peer=measured("plain against transformers", self.peer),
        )

    def memory(self) -> Memory:
        """After one answer with the proposer in use, and before anything that only a benchmark needs."""
        self.llm.generate(self.cases[0].prompt, fixed_length(self.effort.tokens))
        backend = self.llm.engine.backend
        kv_bytes = backend.memory_bytes() - backend.caps.weight_bytes
        slots = backend.room().total + backend.room().unit  # a block for padding rows comes on top
        draft_weights = 0 if self.llm.draft is None else self.llm.draft.weight_bytes
        draft_bytes = 0 if self.llm.draft is None else self.llm.engine.proposers["draft_model"].memory_bytes()
        return Memory(
            peak_resident=peak_resident_bytes(),
            target_weights=self.llm.loaded.weight_bytes,
            target_kv=kv_bytes,
            target_kv_per_token=kv_bytes // slots,
            draft_weights=draft_weights,
            draft_kv=draft_bytes - draft_weights,
        )

    def verify(self) -> tuple[VerifyTime, ...]:
        """In the execution in use, and in the other."""
        tokens = [int(token) for case in self.cases for token in case.prompt]
        context = list(itertools.islice(itertools.cycle(tokens), self.effort.context))
        engines = {invariant: self._plain(invariant=invariant).engine for invariant in (True, False)}
        return tuple(verify_times(engines, context, self.effort.repeats))

    def invariance(self) -> Race:
        tiled, free = (self._plain(invariant=invariant) for invariant in (True, False))
        return race(Runner("free", free), Runner("invariant", tiled), self.cases, self.effort, self.setup)

    def overhead(self) -> tuple[Overhead, ...]:
        """Plain, with a fixed draft length, and with one that adapts."""
        category = EDITING if self.llm.draft is None else CODE
        cases = make_cases(self.llm, self.prompts, category, limit=min(self.effort.prompts, MOST_OVERHEAD_CASES))
        ways = [
            SpeculationOptions(),
            SpeculationOptions(proposer=self.proposer, draft_length=FIXED_DRAFT_LENGTH),
            SpeculationOptions(proposer=self.proposer),
        ]
        params = fixed_length(self.effort.tokens)
        return tuple(measure_overhead(self.llm, way, cases, params) for way in ways)

    def speculation(self) -> tuple[Speculation, ...]:
        """Lookup on text editing; the draft model, if there is one, on code."""
        ways = [("lookup", EDITING), *([] if self.llm.draft is None else [("draft_model", CODE)])]
        return tuple(self._speculate(proposer, category) for proposer, category in ways)

    def peer(self) -> Race:
        peer = Peer(self.make_peer())
        ours = Runner("gamaneh", self._plain(invariant=self.setup.invariant))
        return race(ours, Runner("transformers", peer), self.cases, self.effort, self.setup)

    def _plain(self, *, invariant: bool) -> LLM:
        options = replace(self.llm.options, invariant=invariant)
        return LLM(self.llm.loaded, speculation=SpeculationOptions(), options=options)

    def _speculate(self, proposer: str, category: str) -> Speculation:
        speculative = self.llm.with_speculation(SpeculationOptions(proposer=proposer))
        chosen = [prompt for prompt in self.prompts if prompt.category == category][: self.effort.prompts]
        params = SamplingParams(max_tokens=self.effort.tokens)
        return Speculation(category, compare(speculative, chosen, params))
