"""What a draft model made by `gamaneh train distill` says of itself: `distilled.json` beside its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gamaneh.errors import CorruptModel
from gamaneh.heads.artifact import (
    Provenance,
    TargetMark,
    check_quality,
    mark_target,
    overall_survival,
    read_record,
)
from gamaneh.models.loading import LoadedModel
from gamaneh.models.weights import open_tensors, read_json

ABOUT = "distilled.json"
PARTS = ("target", "provenance", "quality")


@dataclass(frozen=True, slots=True)
class About:
    """How a draft model came about.

    Args:
        target: the model that it learned from, whose tokenizer it has.
        quality: what was measured on texts held out, as of heads.
    """

    target: TargetMark
    provenance: Provenance
    quality: Mapping[str, Any]


def write_about(about: About, folder: Path) -> None:
    text = json.dumps(asdict(about), indent=2, ensure_ascii=False)
    (folder / ABOUT).write_text(f"{text}\n", encoding="utf-8")


def is_distilled(folder: Path) -> bool:
    """Whether a draft model of ours lies there."""
    return (folder / ABOUT).is_file()


def read_about(folder: Path) -> About:
    """
    Raises:
        CorruptModel: a key is missing, unknown, or not what it has to be.
    """
    file = folder / ABOUT
    values = read_json(file)
    if values.keys() != set(PARTS) or not all(isinstance(values[part], dict) for part in PARTS):
        raise CorruptModel(f"{file} must have the objects {', '.join(PARTS)}, got {', '.join(values)}")
    check_quality(values["quality"], file)
    return About(
        target=read_record(TargetMark, values["target"], file),
        provenance=read_record(Provenance, values["provenance"], file),
        quality=values["quality"],
    )


def expected_survival(draft: LoadedModel, target: LoadedModel) -> tuple[float, ...]:
    """s_1, s_2, ... of a draft model's drafts as measured when it was made for this target; else empty.

    Raises:
        CorruptModel: what it says of itself is damaged.
    """
    if not is_distilled(draft.path):
        return ()
    about = read_about(draft.path)
    made_for_it = about.target.fingerprint == mark_target(target).fingerprint
    return overall_survival(about.quality) if made_for_it else ()


def count_weights(folder: Path) -> int:
    """
    Raises:
        CorruptModel: a file of weights is damaged.
    """
    return sum(_count(file) for file in folder.glob("*.safetensors"))


def count_bytes(folder: Path) -> int:
    """Size of the files of weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _count(file: Path) -> int:
    with open_tensors(file) as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in list(tensors.keys()))
