"""`gamaneh inspect`: what a model is; of what was trained, for which target and how good it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag
from gamaneh.cli.terminal import output, print_json

if TYPE_CHECKING:
    from gamaneh.heads.artifact import Artifact
    from gamaneh.proposers.distilled import About


MODEL = "model"
"""Kind of what was not trained here."""


@command
def inspect_artifact(
    artifact: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT",
            help="A model, a folder of heads or of a distilled draft model, or a name of heads that come along.",
            show_default=False,
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Tell what a model is; of what was trained, for which target, how it was made and how good it is."""
    facts = _model(artifact) if _is_model(artifact) else _trained(artifact)
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _model_lines(facts) if facts["kind"] == MODEL else _lines(facts):
        table.add_row(name, value)
    output().print(table)


def _is_model(artifact: str) -> bool:
    """Whether a file, a folder or a catalogue name stands for a model, and not for something trained for one."""
    from gamaneh.heads.locate import are_heads
    from gamaneh.models.catalogue import names
    from gamaneh.proposers.distilled import is_distilled

    path = Path(artifact).expanduser()
    if not path.is_dir():
        return path.is_file() or artifact in names()
    if is_distilled(path) or are_heads(path):
        return False
    return any(path.glob("*.gguf")) or (path / "config.json").is_file()


def _model(artifact: str) -> dict[str, Any]:
    from gamaneh.models.loading import open_model

    with closing(open_model(artifact)) as opened:
        config, tokenizer = opened.config, opened.tokenizer
        return {
            "path": str(opened.path),
            "kind": MODEL,
            "name": opened.name,
            "family": config.family,
            "layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_heads,
            "kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "max_context": config.max_context,
            "tied_embedding": config.tied_embedding,
            "formats": list(opened.tensors.formats),
            "bytes": opened.tensors.nbytes,
            "end_tokens": {token: tokenizer.token_text(token) for token in config.eos_ids},
            "begin_token": None if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
            "chat_template": tokenizer.backend.chat_template is not None,
        }


def _model_lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", facts["kind"]
    yield "name", facts["name"]
    yield "shape", f"{facts['family']}, {facts['layers']} layers of {facts['hidden_size']}"
    yield "", f"{facts['heads']} heads of {facts['head_dim']}, {facts['kv_heads']} of keys and values"
    yield "tokens", f"{facts['vocab_size']}, context {facts['max_context']}"
    yield "weights", f"{', '.join(facts['formats'])}; {facts['bytes'] / 1e6:.1f} MB"
    yield "ends with", ", ".join(f"{text} ({token})" for token, text in facts["end_tokens"].items()) or "nothing"
    yield "begins with", facts["begin_token"] or "nothing"
    yield "chat template", "yes" if facts["chat_template"] else "no"


def _trained(artifact: str) -> dict[str, Any]:
    from gamaneh.heads.locate import locate_heads
    from gamaneh.proposers.distilled import is_distilled

    path = locate_heads(artifact)
    return {"path": str(path), **(_draft_model(path) if is_distilled(path) else _heads(path))}


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
