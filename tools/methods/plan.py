"""What is measured: targets, the methods that each of them has, prompts, and how much of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.prompt_set import Prompt
from gamaneh.core import AUTO
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.proposers.portfolio import PortfolioProposer
from gamaneh.proposers.registry import REGISTRY
from tools.cases import Case

CATEGORIES = ("chat", "code", "editing", "summarising", "persian")
"""What the table is grouped by: categories of English prompts, and all prompts in Persian."""

PERSIAN = "fa"
SEED = 0

BRANCHING = ("draft_model", "eagle")
"""Proposers whose drafts are chains unless trees are asked for."""

TREE = 2
"""Candidates on each level of the drafts that are measured as trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        prompts: of each category.
        tokens: of each timed answer.
        fixed_tokens: of each answer with a fixed draft length, which survival and costs are taken from.
        draft_length: that length.
        temperatures: 0 is greedy.
        categories: some of `CATEGORIES`.
    """

    prompts: int = 3
    tokens: int = 48
    fixed_tokens: int = 32
    draft_length: int = 8
    temperatures: Sequence[float] = (0.0, 1.0)
    categories: Sequence[str] = CATEGORIES

    def params(self, temperature: float, tokens: int) -> SamplingParams:
        """With a seed, so that every method is to emit the tokens of plain decoding."""
        return SamplingParams(temperature=temperature, seed=SEED, max_tokens=tokens, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the methods of one target are made from.

    Args:
        drafts: draft models by name.
        heads: trained heads by kind.
    """

    target: LoadedModel
    drafts: Mapping[str, LoadedModel] = field(default_factory=dict)
    heads: Mapping[str, Artifact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    Args:
        name: as it stands in the table.
        proposer: name of the proposer.
        drafts: names of the draft models that it gets, one at most.
        heads: kinds of the heads that it gets.
        branching: candidates on each level of its drafts; None leaves it to the proposer.
    """

    name: str
    proposer: str
    drafts: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    branching: int | None = None

    def open(self, parts: Parts, draft_length: int | None) -> LLM:
        """An engine of its own, with nothing in it that the method does not need.

        Args:
            draft_length: None adapts it.

        Raises:
            GamanehError: the method cannot be had for this target.
        """
        return LLM(
            parts.target,
            draft_model=next((parts.drafts[name] for name in self.drafts), None),
            heads=[parts.heads[kind] for kind in self.heads],
            speculation=self._adaptive() if draft_length is None else self._fixed(draft_length),
            options=EngineOptions(max_batch=1),
        )

    def _adaptive(self) -> SpeculationOptions:
        own = {} if self.branching is None else {"draft_branching": self.branching}
        return SpeculationOptions(proposer=self.proposer, proposer_options=own)

    def _fixed(self, draft_length: int) -> SpeculationOptions:
        """Drafts of this length where there are any: those that end where they are unsure would survive more often."""
        adaptive, read = self._adaptive(), {option.name for option in REGISTRY[self.proposer].options}
        certain: dict[str, object] = {name: 0.0 for name in ("min_confidence", "suffix_share") if name in read}
        own: dict[str, object] = {**adaptive.proposer_options, **certain}
        return replace(adaptive, draft_length=draft_length, proposer_options=own)


def methods_of(parts: Parts) -> list[Method]:
    """All methods that may be had for a target; some may turn out to lack something when they are opened."""
    return [*_single(parts), *_combined(parts)]


def choose(methods: Sequence[Method], names: Sequence[str] | None) -> list[Method]:
    """The methods of these names or proposers; None takes all.

    Raises:
        InvalidOption: a name is none of theirs.
    """
    if names is None:
        return list(methods)
    for name in names:
        if not any(name in (method.name, method.proposer) for method in methods):
            known = ", ".join(method.name for method in methods)
            raise InvalidOption("--methods", f"must be among {known}", name)
    return [method for method in methods if method.name in names or method.proposer in names]


def choose_cases(llm: LLM, prompts: Sequence[Prompt], effort: Effort) -> list[Case]:
    """The first prompts of each category as token ids, categories in turns.

    Raises:
        InvalidOption: a category has no prompt.
    """
    groups = {category: [p for p in prompts if group_of(p) == category] for category in effort.categories}
    for category, group in groups.items():
        if not group:
            raise InvalidOption("--categories", "must be among those of the prompts", category)
    return [
        Case(group[at].id, category, as_tokens(llm.tokenizer, group[at].prompt), group[at].reference)
        for at in range(effort.prompts)
        for category, group in groups.items()
        if at < len(group)
    ]


def group_of(prompt: Prompt) -> str:
    """The line of the table that a prompt belongs to."""
    return "persian" if prompt.language == PERSIAN else prompt.category


def _single_names() -> list[str]:
    """Proposers that are asked for alone; no prompt asks for a grammar."""
    return [name for name, recipe in REGISTRY.items() if not recipe.merges and name != GrammarProposer.name]


def _single(parts: Parts) -> Iterator[Method]:
    for proposer in _single_names():
        for own in _of_proposer(proposer, parts):
            yield own
            if proposer in BRANCHING:
                yield replace(own, name=f"{own.name}, trees", branching=TREE)


def _of_proposer(proposer: str, parts: Parts) -> Iterator[Method]:
    if proposer == "draft_model":
        yield from (Method(f"draft model {name}", proposer, drafts=(name,)) for name in parts.drafts)
    else:
        yield Method(proposer, proposer, heads=(proposer,) if proposer in parts.heads else ())


def _combined(parts: Parts) -> Iterator[Method]:
    everything = tuple(parts.drafts)[:1], tuple(parts.heads)
    yield Method("auto", AUTO, *everything)
    if any(everything):
        yield Method("portfolio", PortfolioProposer.name, *everything)
