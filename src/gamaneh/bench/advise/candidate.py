"""The proposers that may be advised: those that need nothing, and those that come with a draft model or heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gamaneh.backends.choose import beside, load
from gamaneh.core import AUTO, Needs
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError
from gamaneh.kv.cache import bytes_per_block
from gamaneh.models.loading import DRAFT, LoadedModel
from gamaneh.models.tokenizer import tokenizer_difference
from gamaneh.options import EngineOptions, SpeculationOptions

SAME_TOKENIZER = "same"
OTHER_TOKENIZER = "other"
NO_TOKENIZER = "none"


@dataclass(frozen=True, slots=True)
class CandidateParts:
    """What a proposer is made of beside the target, as the user named it; at most one of the two."""

    draft_model: str | None = None
    heads: str | None = None

    @property
    def title(self) -> str:
        """The name of the part; empty for none."""
        return self.draft_model or self.heads or ""


NO_PARTS = CandidateParts()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One proposer with its parts, ready to be measured.

    Args:
        proposer: its name in the registry.
        llm: an engine that has it, and nothing that was made of other parts.
        asked: it is there only when it is asked for by name.
        weight_bytes, token_bytes: memory whatever is served, and for each token in the cache.
        tokenizer: whether the draft model has the target's; `none` without a draft model.
    """

    proposer: str
    parts: CandidateParts
    llm: LLM
    asked: bool
    weight_bytes: int
    token_bytes: int
    tokenizer: str

    @property
    def title(self) -> str:
        return f"{self.proposer} ({self.parts.title})" if self.parts.title else self.proposer

    @property
    def needs(self) -> Needs:
        """What the proposer declares."""
        return self.llm.engine.proposers[self.proposer].needs

    @property
    def served(self) -> SpeculationOptions:
        """How `gamaneh serve` speculates with these parts: draft lengths adapt, by whichever proposer pays."""
        return SpeculationOptions(proposer=self.proposer if self.asked else AUTO)

    def serve_options(self, k: int | None) -> list[str]:
        """Options of `gamaneh serve` for this candidate, with a fixed draft length or (None) as `served` has it."""
        named = {"--draft-model": self.parts.draft_model, "--heads": self.parts.heads}
        options = [word for flag, value in named.items() if value is not None for word in (flag, value)]
        if self.asked or k is not None:
            options += ["--proposer", self.proposer]
        if k is not None:
            options += ["--draft-length", str(k)]
        if k is not None and k > SpeculationOptions().max_draft_length:
            options += ["--max-draft-length", str(k)]
        return options


@dataclass(frozen=True, slots=True)
class Unusable:
    """A proposer that cannot be used, or failed, and why."""

    title: str
    reason: str


class CandidateWorkshop:
    """Builds engines over one target, each with one part beside it or none.

    Args:
        options: of every engine.
    """

    def __init__(self, target: LoadedModel, options: EngineOptions) -> None:
        self.target, self.options = target, options
        self._drafts: dict[str, LoadedModel] = {}

    def build(
        self,
        parts: CandidateParts,
        speculation: SpeculationOptions,
        options: EngineOptions | None = None,
        *,
        leaves_out_slow: bool = False,
    ) -> LLM:
        """A new engine.

        Args:
            leaves_out_slow: as in service; a measurement has to bear with slow proposers.

        Raises:
            GamanehError: the part cannot be found, read or used with this target.
        """
        llm = LLM(
            self.target,
            draft_model=self._draft(parts),
            heads=() if parts.heads is None else (parts.heads,),
            speculation=speculation,
            options=options or self.options,
        )
        llm.engine.quarantine.leaves_out_slow = leaves_out_slow
        return llm

    def candidates(self, parts: Sequence[CandidateParts], only: Sequence[str] = ()) -> Iterator[Candidate | Unusable]:
        """Every proposer that the target and these parts allow.

        Args:
            only: names of proposers; empty takes all that are built by themselves.

        Raises:
            InvalidOption: a name in `only` is not that of a proposer, or needs something that is missing.
        """
        bare = self.build(NO_PARTS, SpeculationOptions())
        own = set(bare.engine.proposers)
        found = [*self._of(bare, NO_PARTS, own), *(one for part in parts for one in self._with(part, own))]
        wanted = [one for one in found if not only or isinstance(one, Unusable) or one.proposer in only]
        yield from wanted
        if any(isinstance(one, Unusable) for one in wanted):
            return  # a name that is not there may be that of what could not be used
        there = {one.proposer for one in wanted if isinstance(one, Candidate)}
        for name in dict.fromkeys(name for name in only if name not in there):
            yield from self._asked(name)

    def _with(self, parts: CandidateParts, own: set[str]) -> Iterator[Candidate | Unusable]:
        """The proposers that are there because of these parts."""
        try:
            llm = self.build(parts, SpeculationOptions())
        except GamanehError as error:
            yield Unusable(parts.title, str(error))
            return
        yield from self._of(llm, parts, set(llm.engine.proposers) - own)

    def _asked(self, name: str) -> Iterator[Candidate | Unusable]:
        """A proposer that is not considered by itself."""
        llm = self.build(NO_PARTS, asking_for(name))
        if llm.engine.proposers[name].needs.grammar:
            yield Unusable(name, "it drafts for requests with a grammar only, and recorded ones have none")
        yield from self._of(llm, NO_PARTS, {name}, asked=True)

    def _of(self, llm: LLM, parts: CandidateParts, names: set[str], *, asked: bool = False) -> Iterator[Candidate]:
        for name, proposer in llm.engine.proposers.items():
            if name in names and not proposer.needs.grammar:  # no recorded request has one
                yield Candidate(
                    proposer=name,
                    parts=parts,
                    llm=llm,
                    asked=asked,
                    weight_bytes=_weights(llm, name),
                    token_bytes=0 if llm.draft is None else token_bytes(llm.draft),
                    tokenizer=_compared(llm),
                )

    def _draft(self, parts: CandidateParts) -> LoadedModel | None:
        name = parts.draft_model
        if name is None:
            return None
        if name not in self._drafts:
            device = str(self.target.device)
            self._drafts[name] = load(name, precision=beside(self.target), device=device, role=DRAFT)
        return self._drafts[name]


def asking_for(proposer: str) -> SpeculationOptions:
    """Options that have this proposer built, and nothing calibrated."""
    return SpeculationOptions(proposer=proposer, draft_length=1)


def token_bytes(model: LoadedModel) -> int:
    """Bytes of one token in the model's KV cache."""
    config = model.config
    return bytes_per_block(config.num_layers, 1, config.num_kv_heads, config.head_dim, model.decoder.dtype)


def _weights(llm: LLM, proposer: str) -> int:
    """Of a draft model its weights; of other proposers all that they hold."""
    return llm.engine.proposers[proposer].memory_bytes() if llm.draft is None else llm.draft.weight_bytes


def _compared(llm: LLM) -> str:
    if llm.draft is None:
        return NO_TOKENIZER
    same = tokenizer_difference(llm.tokenizer, llm.draft.tokenizer) is None
    return SAME_TOKENIZER if same else OTHER_TOKENIZER
