"""Where figures come from: command, commit, versions, machine, models, prompts, seeds."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from gamaneh.bench.machine import describe_machine
from gamaneh.bench.result import ModelMark, PromptMark, Provenance
from gamaneh.bench.run.plan import Plan
from gamaneh.origin import git, installed_version

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "httpx")
SECRET_OPTIONS = ("--key",)
_CHUNK = 1 << 20
_WEIGHTS = (".safetensors", ".gguf")


def describe_provenance(plan: Plan, models: Sequence[ModelMark]) -> Provenance:
    """Everything that is needed to make the figures again."""
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(sys.argv),
        version=version("gamaneh"),
        commit=_commit(),
        versions={name: found for name in PACKAGES if (found := installed_version(name)) is not None},
        machine=describe_machine(),
        models=tuple(models),
        prompts=mark_prompts(plan),
        seeds={"arrivals": plan.seed, **({} if plan.params.seed is None else {"sampling": plan.params.seed})},
    )


def mark_prompts(plan: Plan) -> PromptMark:
    """What the prompts are."""
    return PromptMark(
        source=plan.source,
        sha256=plan.prompts_sha256,
        count=len(plan.prompts),
        categories=tuple(sorted({prompt.category for prompt in plan.prompts})),
        languages=tuple(sorted({prompt.language for prompt in plan.prompts})),
    )


def command_line(arguments: Sequence[str]) -> str:
    """The command as it can be given again, without folders before the program and without secrets."""
    program, *rest = arguments
    shown = [_masked(before, argument) for before, argument in zip(["", *rest], rest, strict=False)]
    return shlex.join([Path(program).name, *shown])


def _masked(before: str, argument: str) -> str:
    if before in SECRET_OPTIONS:
        return "***"
    name, given, _ = argument.partition("=")
    return f"{name}=***" if given and name in SECRET_OPTIONS else argument


def hash_model(path: Path) -> str | None:
    """SHA-256 of a model's weights: of the file, or of the weight files of a folder in order; None without any."""
    files = [path] if path.is_file() else sorted(each for each in path.glob("*") if each.suffix in _WEIGHTS)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest() if files else None


def _commit() -> str | None:
    """Commit of the checkout that this package lies in; a plus sign where it was changed."""
    head = git("rev-parse", "--short=12", "HEAD")
    return None if head is None else head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
