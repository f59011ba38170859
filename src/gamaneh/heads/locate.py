"""Where heads lie, a folder or the package itself, and how they are opened for a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gamaneh.errors import InvalidOption, ModelError
from gamaneh.heads.artifact import Artifact, artifact_kind, check_target, is_artifact, load_artifact
from gamaneh.heads.published import PUBLISHED_KIND, is_published, read_published
from gamaneh.models.loading import HEADS, LoadedModel, blaming

HeadsSource = str | Path | Artifact
"""A folder of heads, the name of heads that come with the package, or heads that are loaded already."""

SHIPPED = Path(__file__).parent / "shipped"
"""Heads that come with the package, in `TARGET/KIND` below it."""


def locate_heads(name: str | Path) -> Path:
    """The folder of heads: a path, or a name such as `smollm2-135m-instruct/eagle`.

    Raises:
        ModelError: there are none.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if str(name) in shipped_heads():
        return SHIPPED / name
    known = ", ".join(shipped_heads()) or "none do"
    raise ModelError(f"heads must be a folder or come with the package ({known}), got {str(name)!r}")


def are_heads(name: str | Path) -> bool:
    """Whether heads go by this name, and not a model or nothing at all.

    Raises:
        CorruptModel: there is a folder whose config cannot be read.
    """
    path = Path(name).expanduser()
    return str(name) in shipped_heads() or (path.is_dir() and (is_artifact(path) or is_published(path)))


def kind_of_heads(name: str | Path) -> str:
    """Which kind of heads go by this name, by their config alone.

    Raises:
        ModelError: there are none, or their config cannot be read.
    """
    folder = locate_heads(name)
    return PUBLISHED_KIND if is_published(folder) else artifact_kind(folder)


def check_heads(sources: Sequence[HeadsSource]) -> None:
    """Check that heads are there, by their configs alone.

    Raises:
        ModelError: some are not, or their config cannot be read.
    """
    for source in sources:
        if not isinstance(source, Artifact):
            with blaming(HEADS, source):
                kind_of_heads(source)


def shipped_heads() -> list[str]:
    """Names of the heads that come with the package."""
    return sorted(config.parent.relative_to(SHIPPED).as_posix() for config in SHIPPED.glob("*/*/config.json"))


def open_heads(sources: Sequence[HeadsSource], loaded: LoadedModel) -> tuple[Artifact, ...]:
    """Heads for this target, ours or those that others published, at most one of each kind.

    Raises:
        ModelError: some cannot be found, read or used, or belong to another target.
        InvalidOption: two are of one kind.
    """
    opened: list[Artifact] = []
    for source in sources:
        artifact = _opened(source, loaded)
        if artifact.kind in (other.kind for other in opened):
            kinds = ", ".join(other.kind for other in (*opened, artifact))
            raise InvalidOption("heads", "must be of different kinds", kinds)
        opened.append(artifact)
    return tuple(opened)


def _opened(source: HeadsSource, loaded: LoadedModel) -> Artifact:
    with blaming(HEADS, source.kind if isinstance(source, Artifact) else source):
        artifact = source if isinstance(source, Artifact) else _read(locate_heads(source), loaded)
        check_target(artifact, loaded)
    return artifact


def _read(folder: Path, loaded: LoadedModel) -> Artifact:
    return read_published(folder, loaded) if is_published(folder) else load_artifact(folder)
