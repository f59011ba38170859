"""What a proposer's own file says of it: its name, its options, what it is built from and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gamaneh.checks import Check
from gamaneh.core import Backend, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.options import SpeculationOptions

if TYPE_CHECKING:
    from gamaneh.heads.artifact import Artifact
    from gamaneh.models.loading import LoadedModel

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class ProposerOption(Generic[_T]):
    """One option that a proposer is built with; flags, help and refusals of all commands come from it.

    Args:
        name: as in Python; on the command line with `-` for `_`. Proposers may share an option, never a name.
        kind: what is read from the command line: `bool`, `int`, `float` or `str`.
        default: the value where none is given.
        check: the rule, and whether a value keeps it.
        help: the meaning in one short line.
        shown_default: the default in words, where the value itself does not say it.
    """

    name: str
    kind: type[Any]
    default: _T
    check: Check
    help: str
    shown_default: str | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def verify(self, value: object) -> None:
        """
        Raises:
            InvalidOption: the value breaks the rule.
        """
        rule, holds = self.check
        if not holds(value):
            raise InvalidOption(self.name, rule, value)


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
        members: the other proposers, for one that is made of them.
    """

    options: SpeculationOptions
    target: ReadyModel
    draft_model: ReadyModel | None = None
    heads: tuple[Artifact, ...] = ()
    members: Mapping[str, Proposer] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Of the target, padding included."""
        return self.target.backend.caps.vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """The target's tokens that are never text."""
        return self.target.loaded.tokenizer.special_ids

    def value(self, option: ProposerOption[_T]) -> _T:
        """The value that was given for an option, or its default."""
        given: _T = self.options.proposer_options.get(option.name, option.default)
        return given

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


def _always(parts: Ingredients) -> bool:
    return True


def _nothing(options: Mapping[str, Any]) -> None:
    """No rule ties the options to each other."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a proposer is made, and everything that commands, reports and docs say of it.

    Args:
        name: under which it is asked for; the proposer has the same.
        build: makes it; raises `InvalidOption` where something that it needs is missing.
        ready: everything is there that it needs, so that it is built whether asked for or not.
        options: that it reads.
        titles: its name in reports by language, `en` and `fa`; a language that is missing shows the name.
        about: how it drafts, in one line.
        given: options of a command that make it ready: `draft_model`, `heads`; empty where it needs neither.
        check: raises `InvalidOption` where options, all of them with their defaults, contradict each other.
        merges: it is made of all others, and built last.
    """

    name: str
    build: Callable[[Ingredients], Proposer]
    ready: Callable[[Ingredients], bool] = _always
    options: tuple[ProposerOption[Any], ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    given: tuple[str, ...] = ()
    check: Callable[[Mapping[str, Any]], None] = _nothing
    merges: bool = False

    def title(self, language: str) -> str:
        """Return its name in reports."""
        return self.titles.get(language, self.name)

    def verify(self, given: Mapping[str, Any]) -> None:
        """Hold values of options against their rules; those of other proposers are passed over.

        Raises:
            InvalidOption: a value breaks a rule, or two contradict each other.
        """
        for option in self.options:
            if option.name in given:
                option.verify(given[option.name])
        self.check({option.name: given.get(option.name, option.default) for option in self.options})
