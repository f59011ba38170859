"""`gamaneh inspect`: what trained heads are, for which target, and how good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gamaneh.cli.command import command
from gamaneh.cli.options import JsonFlag
from gamaneh.cli.terminal import output, print_json

if TYPE_CHECKING:
    from pathlib import Path

    from gamaneh.heads.artifact import Artifact


@command
def inspect_heads(
    heads: Annotated[
        str,
        typer.Argument(metavar="HEADS", help="A folder, or a name of heads that come along.", show_default=False),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Tell what trained heads are, for which target, how they were made and how good they are."""
    from gamaneh.heads.artifact import load_artifact
    from gamaneh.heads.locate import locate_heads

    path = locate_heads(heads)
    artifact = load_artifact(path)
    if as_json:
        print_json(_summary(artifact, path))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _lines(artifact):
        table.add_row(name, value)
    output().print(table)


def _summary(artifact: Artifact, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "kind": artifact.kind,
        "shape": dict(artifact.shape),
        "target": asdict(artifact.target),
        "draft_vocab": artifact.draft_vocab,
        "weights": _weights(artifact),
        "bytes": _size(artifact),
        "provenance": asdict(artifact.provenance),
        "quality": dict(artifact.quality),
    }


def _lines(artifact: Artifact) -> Iterator[tuple[str, str]]:
    target, provenance = artifact.target, artifact.provenance
    yield "kind", artifact.kind
    yield "shape", _listed(artifact.shape)
    yield "target", target.name
    yield "", f"{target.num_layers} layers of {target.hidden_size}, {target.vocab_size} tokens"
    yield "", f"fingerprint {target.fingerprint}"
    yield "drafts from", f"{artifact.draft_vocab or target.vocab_size} of {target.vocab_size} tokens"
    yield "size", f"{_weights(artifact):,} weights, {_size(artifact) / 1e6:.1f} MB"
    yield "made by", provenance.command or "unknown"
    yield "", f"{provenance.date or 'date unknown'}, commit {provenance.commit or 'unknown'}"
    yield "data", _listed(provenance.data) or "unknown"
    yield "versions", _listed(provenance.versions) or "unknown"
    yield from _quality(artifact.quality)


def _quality(quality: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Survival by set of prompts and draft position, then whatever else was measured."""
    for name, survival in quality.get("survival", {}).items():
        yield f"survival, {name}", " ".join(f"{share:.3f}" for share in survival)
    for level, shares in enumerate(quality.get("ranks", ()), 1):
        yield f"guesses, {level}", " ".join(f"{share:.3f}" for share in shares)
    others = {name: value for name, value in quality.items() if name not in ("survival", "ranks")}
    yield "quality", _listed(others) or ("as above" if quality else "not measured")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _weights(artifact: Artifact) -> int:
    return sum(tensor.numel() for tensor in artifact.tensors.values() if tensor.is_floating_point())


def _size(artifact: Artifact) -> int:
    return sum(tensor.nbytes for tensor in artifact.tensors.values())
