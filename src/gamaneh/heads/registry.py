"""Every kind of heads that can be trained and loaded. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gamaneh.heads.artifact import Artifact
from gamaneh.heads.medusa import blank_medusa, load_medusa
from gamaneh.heads.mtp import blank_mtp, load_mtp
from gamaneh.heads.trainable import DraftHeads
from gamaneh.models.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class HeadKind:
    """How heads of one kind are made.

    Args:
        blank: heads to be trained, in float32, for a target: from a shape of which any part may be left
            out, and `[draft_vocab]` token ids that they draft from (None for all of them). Raises
            `InvalidOption` where the shape breaks a rule.
        load: heads to draft with, in the target's type, from an artifact that belongs to it. Raises
            `CorruptModel` where the shape or the tensors are wrong.
    """

    blank: Callable[[Mapping[str, Any], LoadedModel, Tensor | None], DraftHeads]
    load: Callable[[Artifact, LoadedModel], DraftHeads]


HEAD_KINDS: Mapping[str, HeadKind] = {
    "medusa": HeadKind(blank_medusa, load_medusa),
    "mtp": HeadKind(blank_mtp, load_mtp),
}
