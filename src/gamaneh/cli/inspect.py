"""`gamaneh inspect`: what was trained, for which target, and how good it is."""

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
    from gamaneh.proposers.distilled import About


@command
def inspect_artifact(
    artifact: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT",
            help="A folder of heads or of a distilled draft model, or a name of heads that come along.",
            show_default=False,
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Tell what was trained, for which target, how it was made and how good it is."""
    from gamaneh.heads.locate import locate_heads
    from gamaneh.proposers.distilled import is_distilled

    path = locate_heads(artifact)
    facts = {"path": str(path), **(_draft_model(path) if is_distilled(path) else _heads(path))}
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _lines(facts):
        table.add_row(name, value)
    output().print(table)


def _heads(path: Path) -> dict[str, Any]:
    from gamaneh.heads.artifact import load_artifact

    artifact = load_artifact(path)
    return {
        "kind": artifact.kind,
        "shape": dict(artifact.shape),
        "draft_vocab": artifact.draft_vocab,
        "weights": sum(tensor.numel() for tensor in artifact.tensors.values() if tensor.is_floating_point()),
        "bytes": sum(tensor.nbytes for tensor in artifact.tensors.values()),
        **_origin(artifact),
    }


def _draft_model(path: Path) -> dict[str, Any]:
    from gamaneh.proposers.distilled import count_bytes, count_weights, read_about

    about = read_about(path)
    return {
        "kind": "draft_model",
        "shape": about.provenance.data.get("student", {}),
        "draft_vocab": None,
        "weights": count_weights(path),
        "bytes": count_bytes(path),
        **_origin(about),
    }


def _origin(trained: Artifact | About) -> dict[str, Any]:
    return {
        "target": asdict(trained.target),
        "provenance": asdict(trained.provenance),
        "quality": dict(trained.quality),
    }


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    target, provenance = facts["target"], facts["provenance"]
    yield "kind", facts["kind"]
    yield "shape", _listed(facts["shape"])
    yield "target", target["name"]
    yield "", f"{target['num_layers']} layers of {target['hidden_size']}, {target['vocab_size']} tokens"
    yield "", f"fingerprint {target['fingerprint']}"
    yield "drafts from", f"{facts['draft_vocab'] or target['vocab_size']} of {target['vocab_size']} tokens"
    yield "size", f"{facts['weights']:,} weights, {facts['bytes'] / 1e6:.1f} MB"
    yield "made by", provenance["command"] or "unknown"
    yield "", f"{provenance['date'] or 'date unknown'}, commit {provenance['commit'] or 'unknown'}"
    yield "data", _listed(provenance["data"]) or "unknown"
    yield "versions", _listed(provenance["versions"]) or "unknown"
    yield from _quality(facts["quality"])


def _quality(quality: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Survival by set of prompts and draft position, then whatever else was measured."""
    for name, survival in quality.get("survival", {}).items():
        yield f"survival, {name}", " ".join(f"{share:.3f}" for share in survival)
    for level, shares in enumerate(quality.get("ranks", ()), 1):
        yield f"guesses, {level}", " ".join(f"{share:.3f}" for share in shares)
    others = {name: value for name, value in quality.items() if name not in ("survival", "ranks")}
    yield "quality", _listed(others) or ("as above" if quality else "not measured")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({_listed(value)})" if isinstance(value, Mapping) else f"{name} {value}"
        for name, value in values.items()
    )
