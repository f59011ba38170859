"""Every kind of heads that can be trained and loaded. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gamaneh.heads.artifact import Artifact
from gamaneh.heads.block_heads import blank_block, block_shape, kept_tensors, load_block
from gamaneh.heads.eagle_head import blank_eagle, load_eagle
from gamaneh.heads.eagle_shape import eagle_shape
from gamaneh.heads.exit_head import blank_exit, exit_shape, load_exit
from gamaneh.heads.medusa_heads import blank_medusa, load_medusa, medusa_shape
from gamaneh.heads.mtp_heads import blank_mtp, load_mtp, mtp_shape
from gamaneh.heads.trainable import DraftHeads
from gamaneh.models.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class HeadKind:
    """How heads of one kind are made.

    Args:
        whole_shape: a shape of which any part may be left out -> every part of it, as an artifact keeps it. Raises
            `InvalidOption` where a part is unknown or breaks a rule.
        blank: heads to be trained, in float32, for a target: from such a shape and `[draft_vocab]` token ids that
            they draft from (None for all of them). Raises as `whole_shape` does.
        load: heads to draft with, in the target's type, from an artifact that belongs to it. Raises
            `CorruptModel` where the shape or the tensors are wrong.
        keep: trained tensors -> what an artifact keeps of them; None keeps them in the target's type.
    """

    whole_shape: Callable[[Mapping[str, Any], LoadedModel], dict[str, Any]]
    blank: Callable[[Mapping[str, Any], LoadedModel, Tensor | None], DraftHeads]
    load: Callable[[Artifact, LoadedModel], DraftHeads]
    keep: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None


HEAD_KINDS: Mapping[str, HeadKind] = {
    "medusa": HeadKind(medusa_shape, blank_medusa, load_medusa),
    "mtp": HeadKind(mtp_shape, blank_mtp, load_mtp),
    "eagle": HeadKind(eagle_shape, blank_eagle, load_eagle),
    "block": HeadKind(block_shape, blank_block, load_block, kept_tensors),
    "early_exit": HeadKind(exit_shape, blank_exit, load_exit),
}
