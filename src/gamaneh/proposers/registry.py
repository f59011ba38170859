"""Every proposer that can be asked for by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gamaneh.core import AUTO, PLAIN, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.kv.manager import KVManager
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.lookup import LookupProposer


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model ready to run: its weights and tokenizer, its runner, and the cache that belongs to it."""

    loaded: LoadedModel
    runner: DecoderRunner
    kv: KVManager


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a proposer may be built from.

    Args:
        target: the model whose output is wanted; its cache may be read, and written where a draft's
            rows are reserved, but nothing may be reserved or committed.
        draft_model: None when none was given.
    """

    options: SpeculationOptions
    target: ReadyModel
    draft_model: ReadyModel | None = None

    @property
    def vocab_size(self) -> int:
        """Of the target, padding included."""
        return self.target.runner.vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """The target's tokens that are never text."""
        return self.target.loaded.tokenizer.special_ids


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a proposer is made.

    Args:
        build: makes it; raises `InvalidOption` where something that it needs is missing.
        ready: everything is there that it needs, so that it is built whether asked for or not.
    """

    build: Callable[[Ingredients], Proposer]
    ready: Callable[[Ingredients], bool]


def _lookup(parts: Ingredients) -> Proposer:
    return LookupProposer(
        max_ngram=parts.options.max_ngram, min_ngram=parts.options.min_ngram, forbidden=parts.special_ids
    )


def _draft_model(parts: Ingredients) -> Proposer:
    if parts.draft_model is None:
        raise InvalidOption("draft_model", "must be given for the proposer draft_model", None)
    return DraftModelProposer(
        parts.draft_model.runner,
        parts.draft_model.kv,
        vocab_size=parts.vocab_size,
        sampling=parts.options.draft_sampling,
        min_confidence=parts.options.min_confidence,
    )


REGISTRY: Mapping[str, Recipe] = {
    "lookup": Recipe(_lookup, lambda parts: True),
    "draft_model": Recipe(_draft_model, lambda parts: parts.draft_model is not None),
}


def build_proposers(parts: Ingredients) -> dict[str, Proposer]:
    """The proposers that these ingredients allow, among them the one that the options ask for.

    `auto` asks for no single one: the router takes whichever pays in each round.

    Raises:
        InvalidOption: it is unknown, or something that it needs is missing.
    """
    wanted = parts.options.proposer
    if wanted not in (PLAIN, AUTO, *REGISTRY):
        raise InvalidOption("proposer", f"must be one of {', '.join([PLAIN, AUTO, *REGISTRY])}", wanted)
    names = {name for name, recipe in REGISTRY.items() if recipe.ready(parts)} | ({wanted} - {PLAIN, AUTO})
    return {name: REGISTRY[name].build(parts) for name in sorted(names)}
