"""What is measured together: a target, and the draft models and heads that its methods are made from."""

from __future__ import annotations

from dataclasses import dataclass

from gamaneh.backends.choose import load
from gamaneh.errors import InvalidOption
from gamaneh.heads.locate import are_heads, kind_of_heads, open_heads, shipped_heads
from gamaneh.models.loading import DRAFT, resolve
from gamaneh.options import Precision
from tools.methods.plan import Parts


@dataclass(frozen=True, slots=True)
class Entry:
    """A target by name, with what stands beside it.

    Args:
        heads: those that come along for the target, or others of their kinds in their place.
    """

    target: str
    drafts: tuple[str, ...]
    heads: tuple[str, ...]

    def open(self, weights: str) -> Parts:
        """Everything loaded.

        Raises:
            GamanehError: a model or heads cannot be read, or do not fit the target.
        """
        precision = Precision(weights=weights)
        target = load(self.target, precision=precision, device="cpu")
        drafts = {name: load(name, precision=precision, device="cpu", role=DRAFT) for name in self.drafts}
        return Parts(target, drafts, {artifact.kind: artifact for artifact in open_heads(self.heads, target)})


def parse_entry(text: str) -> Entry:
    """`TARGET[,DRAFT or HEADS...]`.

    Raises:
        GamanehError: there is no model or heads of some name.
    """
    target, *beside = text.split(",")
    if not all((target, *beside)):
        raise InvalidOption("--targets", "must be names separated by single commas", text)
    named = [name for name in beside if are_heads(name)]
    drafts = [name for name in beside if name not in named]
    for model in (target, *drafts):
        resolve(model)
    replaced = {kind_of_heads(name) for name in named}
    along = (name for name in shipped_heads() if name.startswith(f"{target}/"))
    return Entry(target, tuple(drafts), (*named, *(name for name in along if kind_of_heads(name) not in replaced)))
