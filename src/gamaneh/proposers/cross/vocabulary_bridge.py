"""The vocabulary bridge: the draft model says only tokens that the target has too.

Its probabilities are renormalised over the tokens that both have, so that drafts can be sampled and judged
by any rule (token-level intersection, Timor et al. 2502.05202).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gamaneh.core import ProposalRow
from gamaneh.proposers.bridge import Beginning, Growth, TokenGrowth
from gamaneh.proposers.cross.spelling import SupportsSpelling
from gamaneh.proposers.cross.transcript import Transcriber
from gamaneh.proposers.tree import Style

_Sign = tuple[bool, bytes]
"""What makes a token the same in two tokenizers: whether it is special, and its bytes."""


class SharedTokens:
    """Tokens that target and draft model both have; a map between their ids.

    Args:
        target, draft: the tokenizers.
        vocab_size: size of the target's vocabulary, padding included.
        device: of the draft model's logits.
    """

    def __init__(
        self,
        target: SupportsSpelling,
        draft: SupportsSpelling,
        vocab_size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        ours, theirs = _signs(target), _signs(draft)
        self._to_draft = {ours[sign]: theirs[sign] for sign in ours.keys() & theirs.keys() if ours[sign] < vocab_size}
        pairs = sorted(self._to_draft.items())
        self._target_ids = torch.tensor([token for token, _ in pairs], dtype=torch.long, device=device)
        self._draft_ids = torch.tensor([token for _, token in pairs], dtype=torch.long, device=device)
        self._vocab_size = vocab_size
        self.coverage = _coverage(ours, self._to_draft)
        """Share of the target's tokens that the draft model has, each weighed by how common it is."""

    def __len__(self) -> int:
        return len(self._to_draft)

    def to_target(self, logits: Tensor) -> Tensor:
        """`[draft_vocab]` -> `[target_vocab]`, -inf for tokens that only one of the two has."""
        wide = logits.new_full((self._vocab_size,), -math.inf)
        wide[self._target_ids] = logits[self._draft_ids]
        return wide

    def to_draft(self, token: int) -> int:
        return self._to_draft[token]


class VocabularyBridge:
    """Drafts tokens that both have, chosen as the request chooses.

    Args:
        transcriber: keeps the requests' texts in the draft model's tokens.
        shared: the tokens.
        about: why this bridge, in words.
    """

    gives_probs = True

    def __init__(self, transcriber: Transcriber, shared: SharedTokens, about: str = "") -> None:
        self.transcriber, self.shared, self.about = transcriber, shared, about

    def growth(self, row: ProposalRow, style: Style) -> Growth | None:
        """None where the draft model has none of the request's text, or not all: it ends inside a character."""
        transcript = self.transcriber.transcript(row)
        if not transcript.tokens or transcript.rest:
            return None
        return TokenGrowth(Beginning(row, transcript.tokens, self.shared, style, transcript.unchanged))

    def drop(self, request_ids: Iterable[str]) -> None:
        self.transcriber.drop(request_ids)

    def reads(self, draft_vocab: int) -> None:
        """All: the text is read, whatever its tokens."""


def _signs(tokenizer: SupportsSpelling) -> dict[_Sign, int]:
    """Each token's id; of several for the same bytes the one that a text is spelled with."""
    special = tokenizer.special_ids
    pieces = sorted(tokenizer.vocab().items(), key=lambda entry: (not _is_byte(entry[0]), -entry[1]))
    signs = {(token in special, tokenizer.token_bytes(token)): token for _, token in pieces}
    return {sign: token for sign, token in signs.items() if sign[1]}


def _is_byte(piece: str) -> bool:
    """Whether SentencePiece falls back to this piece, `<0x41>`, for what it has no other piece for."""
    return len(piece) == 6 and piece.startswith("<0x")


def _coverage(ours: Mapping[_Sign, int], shared: Mapping[int, int]) -> float:
    """Tokens are numbered by how common they are, so that the n-th weighs 1 / n (Zipf); single bytes do not count."""
    words = sorted(token for (special, spelled), token in ours.items() if not special and len(spelled) > 1)
    weights = {token: 1.0 / rank for rank, token in enumerate(words, 1)}
    total = sum(weights.values())
    return sum(weight for token, weight in weights.items() if token in shared) / total if total else 0.0
