"""Every proposer that can be asked for by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gamaneh.core import AUTO, PLAIN, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.kv.manager import KVManager
from gamaneh.models.runner import Runner
from gamaneh.options import SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.lookup import LookupProposer


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A draft model ready to run: its runner and the cache that belongs to it."""

    runner: Runner
    kv: KVManager


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a proposer may be built from.

    Args:
        vocab_size: of the target, padding included.
        special_ids: tokens that are never text.
        draft_model: None when none was given.
    """

    options: SpeculationOptions
    vocab_size: int
    special_ids: frozenset[int] = frozenset()
    draft_model: DraftModel | None = None


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


REGISTRY: Mapping[str, Callable[[Ingredients], Proposer]] = {"lookup": _lookup, "draft_model": _draft_model}


def build_proposers(parts: Ingredients) -> dict[str, Proposer]:
    """The proposers that these ingredients allow, among them the one that the options ask for.

    `auto` asks for no single one: the router takes whichever pays in each round.

    Raises:
        InvalidOption: it is unknown, or something that it needs is missing.
    """
    wanted = parts.options.proposer
    if wanted not in (PLAIN, AUTO, *REGISTRY):
        raise InvalidOption("proposer", f"must be one of {', '.join([PLAIN, AUTO, *REGISTRY])}", wanted)
    names = {"lookup", *([] if parts.draft_model is None else ["draft_model"]), *({wanted} - {PLAIN, AUTO})}
    return {name: REGISTRY[name](parts) for name in sorted(names)}
