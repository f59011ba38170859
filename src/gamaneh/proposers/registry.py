"""Every proposer that can be asked for by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gamaneh.core import AUTO, PLAIN, Backend, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.eagle import load_eagle
from gamaneh.heads.eagle_runner import EagleRunner
from gamaneh.heads.medusa import load_medusa
from gamaneh.heads.mtp import load_chained, load_parallel
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.models.loading import LoadedModel
from gamaneh.options import SpeculationOptions
from gamaneh.proposers.cross.choice import choose_bridge
from gamaneh.proposers.distilled import expected_survival
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.eagle import EagleProposer
from gamaneh.proposers.early_exit import EarlyExitProposer
from gamaneh.proposers.exit_choice import choose_exit
from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.proposers.lookup import LookupProposer
from gamaneh.proposers.medusa import TREE_BRANCHING, ParallelHeadsProposer
from gamaneh.proposers.mtp import ChainedHeadsProposer
from gamaneh.proposers.plugins import load_plugin, plugin_names
from gamaneh.proposers.portfolio import PortfolioProposer
from gamaneh.proposers.suffix.build import build_suffix
from gamaneh.sampling.grammar import grammars_are_there


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model ready to run: its weights and tokenizer, and where it runs."""

    loaded: LoadedModel
    backend: Backend


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a proposer may be built from.

    Args:
        target: the model whose output is wanted; its cache may be read, and written where a draft's
            rows are reserved, but nothing may be reserved or committed.
        draft_model: None when none was given.
        heads: those that were given, at most one of each kind, all of them for this target.
    """

    options: SpeculationOptions
    target: ReadyModel
    draft_model: ReadyModel | None = None
    heads: tuple[Artifact, ...] = ()

    @property
    def vocab_size(self) -> int:
        """Of the target, padding included."""
        return self.target.backend.caps.vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """The target's tokens that are never text."""
        return self.target.loaded.tokenizer.special_ids

    def has_heads(self, kind: str) -> bool:
        """Whether heads of this kind were given."""
        return any(artifact.kind == kind for artifact in self.heads)

    def heads_of(self, kind: str) -> Artifact:
        """The heads of one kind.

        Raises:
            InvalidOption: there are none.
        """
        found = [artifact for artifact in self.heads if artifact.kind == kind]
        if not found:
            given = ", ".join(artifact.kind for artifact in self.heads) or None
            raise InvalidOption("heads", f"must be given for the proposer {kind}, of this kind", given)
        return found[0]


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
    draft, target = parts.draft_model, parts.target.loaded
    return DraftModelProposer(
        draft.backend,
        vocab_size=parts.vocab_size,
        sampling=parts.options.draft_sampling,
        min_confidence=parts.options.min_confidence,
        branching=parts.options.draft_branching or 1,
        bridge=choose_bridge(target, draft.loaded, parts.options, parts.vocab_size),
        expected=expected_survival(draft.loaded, target),
    )


def _suffix(parts: Ingredients) -> Proposer:
    return build_suffix(parts.options, parts.target.loaded.tokenizer, parts.vocab_size, parts.special_ids)


def _grammar(parts: Ingredients) -> Proposer:
    if not grammars_are_there():
        raise InvalidOption("proposer", "needs the extra gamaneh[grammar]", GrammarProposer.name)
    return GrammarProposer(parts.target.loaded.tokenizer)


def _medusa(parts: Ingredients) -> Proposer:
    artifact = parts.heads_of("medusa")
    return _parallel_heads(parts, load_medusa(artifact, parts.target.loaded), artifact)


def _mtp(parts: Ingredients) -> Proposer:
    artifact = parts.heads_of("mtp")
    if artifact.shape.get("form") == "parallel":
        return _parallel_heads(parts, load_parallel(artifact, parts.target.loaded), artifact)
    room = parts.target.backend.room()
    return ChainedHeadsProposer(
        load_chained(artifact, parts.target.loaded),
        parts.target.loaded.decoder.ropes[0],
        vocab_size=parts.vocab_size,
        num_blocks=room.total // room.unit,
        block_size=room.unit,
        sampling=parts.options.draft_sampling,
        min_confidence=parts.options.min_confidence,
        expected=artifact.survival,
    )


def _eagle(parts: Ingredients) -> Proposer:
    loaded, artifact = parts.target.loaded, parts.heads_of("eagle")
    return EagleProposer(
        EagleRunner(load_eagle(artifact, loaded), loaded.decoder),
        vocab_size=parts.vocab_size,
        sampling=parts.options.draft_sampling,
        min_confidence=parts.options.min_confidence,
        branching=parts.options.draft_branching or 1,
        expected=artifact.survival,
    )


def _early_exit(parts: Ingredients) -> Proposer:
    target, options = parts.target, parts.options
    heads = parts.heads_of("early_exit") if parts.has_heads("early_exit") else None
    exit_, about = choose_exit(target.loaded, target.backend, options.exit_layer, heads)
    return EarlyExitProposer(
        exit_,
        sampling=options.draft_sampling,
        min_confidence=options.min_confidence,
        about=about,
        expected=heads.survival if heads is not None else (),
    )


def _parallel_heads(parts: Ingredients, heads: ParallelHeads, artifact: Artifact) -> Proposer:
    return ParallelHeadsProposer(
        heads,
        vocab_size=parts.vocab_size,
        shares=artifact.quality.get("ranks", ()),
        branching=parts.options.draft_branching or TREE_BRANCHING,
        sampling=parts.options.draft_sampling,
        expected=artifact.survival,
    )


REGISTRY: Mapping[str, Recipe] = {
    "lookup": Recipe(_lookup, lambda parts: True),
    "suffix": Recipe(_suffix, lambda parts: True),
    "grammar": Recipe(_grammar, lambda parts: grammars_are_there()),
    "draft_model": Recipe(_draft_model, lambda parts: parts.draft_model is not None),
    "medusa": Recipe(_medusa, lambda parts: parts.has_heads("medusa")),
    "mtp": Recipe(_mtp, lambda parts: parts.has_heads("mtp")),
    "eagle": Recipe(_eagle, lambda parts: parts.has_heads("eagle")),
    "early_exit": Recipe(_early_exit, lambda parts: parts.has_heads("early_exit")),
}


ALL_OF_THEM = (AUTO, PortfolioProposer.name)
"""Names that ask for every proposer: for whichever pays, or for all at once."""


def build_proposers(parts: Ingredients) -> dict[str, Proposer]:
    """The proposers that these ingredients allow, among them the one that the options ask for.

    `auto` asks for no single one: the router takes whichever pays in each round. Plug-ins are loaded when they
    or all proposers are asked for.

    Raises:
        InvalidOption: it is unknown, or something that it needs is missing.
    """
    wanted = parts.options.proposer
    recipes = {**REGISTRY, **_plugins(wanted)}
    if wanted not in (PLAIN, *ALL_OF_THEM, *recipes):
        known = ", ".join([PLAIN, *ALL_OF_THEM, *REGISTRY, *plugin_names()])
        raise InvalidOption("proposer", f"must be one of {known}", wanted)
    names = {name for name, recipe in recipes.items() if recipe.ready(parts)} | ({wanted} - {PLAIN, *ALL_OF_THEM})
    built = {name: _built(name, recipes[name], parts) for name in sorted(names)}
    if wanted == PortfolioProposer.name or (wanted == AUTO and parts.options.merge):
        built[PortfolioProposer.name] = PortfolioProposer(built)
    return built


def _built(name: str, recipe: Recipe, parts: Ingredients) -> Proposer:
    proposer = recipe.build(parts)
    if proposer.name != name:
        raise InvalidOption(f"proposer {name}", "must have the name under which it is asked for", proposer.name)
    return proposer


def _plugins(wanted: str) -> dict[str, Recipe]:
    """Recipes of other packages that are asked for."""
    names = [name for name in plugin_names() if wanted in (name, *ALL_OF_THEM)]
    return {name: load_plugin(name, Recipe, taken=(PLAIN, *ALL_OF_THEM, *REGISTRY)) for name in names}
