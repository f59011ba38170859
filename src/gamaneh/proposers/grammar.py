"""Forced text: what a request's grammar says has to come next, in the tokens that the tokenizer would cut it into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gamaneh.core import EMPTY_DRAFT, Draft, Needs, ProposalRow, Proposer, TokenMask
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.proposers.blanks import Blanks
from gamaneh.proposers.cross.spelling import Speller, SupportsSpelling
from gamaneh.proposers.cross.text import end_of_text, spell_behind
from gamaneh.proposers.recipe import Ingredients
from gamaneh.sampling import grammar_mask

TOKEN_BYTES = 8
"""Bytes of forced text that are looked for, per token of the draft."""


@dataclass(slots=True)
class _Reading:
    """How far the tokens of a request were read, and the blanks that were found."""

    known: int
    blanks: Blanks = field(default_factory=Blanks)


class GrammarProposer(Proposer):
    """Drafts the text that a grammar forces: keys, quotes, colons, the rest of a choice; needs no model.

    Where blanks are free between two pieces of forced text, those that the request is used to are drafted.

    Args:
        tokenizer: the target's.
    """

    name = "grammar"
    needs = Needs(instant=True, grammar=True)

    def __init__(self, tokenizer: SupportsSpelling) -> None:
        self._speller = Speller(tokenizer)
        self._readings: dict[str, _Reading] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row; empty where nothing is forced."""
        return [EMPTY_DRAFT if row.mask is None else self._draft(row, row.mask) for row in rows]

    def forget(self, request_id: str) -> None:
        """Forget the blanks of a request."""
        self._readings.pop(request_id, None)

    def memory_bytes(self) -> int:
        """0: what is kept is the end of a text, per request."""
        return 0

    def _draft(self, row: ProposalRow, mask: TokenMask) -> Draft:
        blanks = self._read(row)
        pieces = _forced(mask, row.max_depth * TOKEN_BYTES)
        if not pieces:
            return EMPTY_DRAFT
        tokens = spell_behind(self._speller, end_of_text(self._speller, row.tokens), _joined(pieces, blanks))
        return replace(Draft.chain(tokens[: row.max_depth]), grade=int(len(pieces) == 1))

    def _read(self, row: ProposalRow) -> Blanks:
        """The blanks of the request, which are learned from its output alone."""
        reading = self._readings.setdefault(row.request_id, _Reading(len(row.tokens) - 1))
        reading.blanks.read(self._speller.joined(row.tokens[reading.known :]))
        reading.known = len(row.tokens)
        return reading.blanks


def _forced(mask: TokenMask, length: int) -> tuple[bytes, ...]:
    try:
        return mask.forced(length)
    except GamanehError:  # the target's own row meets it again, and ends this request alone
        return ()


def _joined(pieces: Sequence[bytes], blanks: Blanks) -> bytes:
    """The text that is drafted behind the request's."""
    text = blanks.end
    for at, piece in enumerate(pieces):
        text += blanks.before(piece, text) + piece if at else piece
    return text[len(blanks.end) :]


def build(parts: Ingredients) -> Proposer:
    """Return the proposer of forced text."""
    if not grammar_mask.grammars_are_there():
        raise InvalidOption("proposer", "needs the extra gamaneh[grammar]", GrammarProposer.name)
    return GrammarProposer(parts.target.loaded.tokenizer)
