"""How trained weights came about: command, data, source and versions, to be kept beside them."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gamaneh.heads.artifact import Provenance
from gamaneh.origin import git, installed_version
from gamaneh.train.samples import Sample
from gamaneh.train.settings import LoopOptions

PACKAGES = ("gamaneh", "torch", "transformers", "accelerate", "safetensors")


def provenance(command: str, data: Mapping[str, Any]) -> Provenance:
    """Of weights that were trained just now.

    Args:
        command: the command line that makes them again.
        data: what they learned from, and how it went.
    """
    return Provenance(
        command=command,
        data=data,
        commit=source_commit(),
        versions={name: installed_version(name) or "" for name in PACKAGES},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def this_command(program: str) -> str:
    """The command line of this process, for a shell."""
    return shlex.join([*program.split(), *sys.argv[1:]])


def source_commit() -> str:
    """Of the folder that this package runs from; empty where that is no working copy."""
    return git("rev-parse", "HEAD") or ""


def describe_samples(samples: Sequence[Sample]) -> dict[str, Any]:
    """Counts and hash of texts, as provenance tells of them."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{list(sample.tokens)}{list(sample.spans)}".encode())
    return {
        "texts": len(samples),
        "tokens": sum(len(sample.tokens) for sample in samples),
        "learned_tokens": sum(sample.num_learned for sample in samples),
        "categories": dict(sorted(Counter(sample.category for sample in samples).items())),
        "sha256": digest.hexdigest(),
    }


def describe_course(train: Sequence[Sample], held_out: Sequence[Sample], options: LoopOptions) -> dict[str, Any]:
    """What a run learns from and how, as provenance tells of it; runs that differ in it are different runs."""
    return {"train": describe_samples(train), "held_out": describe_samples(held_out), "options": asdict(options)}
