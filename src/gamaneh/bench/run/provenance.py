"""Where figures come from: command, commit, versions, machine, models, prompts, seeds."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gamaneh.bench.machine import describe_machine
from gamaneh.bench.result import ModelMark, PromptMark, Provenance
from gamaneh.bench.run.plan import Plan

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
        versions={name: found for name in PACKAGES if (found := _version(name)) is not None},
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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit of the checkout that this file lies in."""
    head = _git("rev-parse", "--short=12", "HEAD")
    return None if head is None else head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
