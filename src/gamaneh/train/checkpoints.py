"""Checkpoints of a training run: whole folders under names of their own, so that one is always there to go on from."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from gamaneh.errors import CorruptModel
from gamaneh.files import whole_folder
from gamaneh.models.weights import read_json

WEIGHTS, OPTIMIZER, COURSE = "model.safetensors", "optimizer.pt", "course.json"


@dataclass(slots=True)
class Course:
    """How far a training run has come.

    Args:
        step: steps done.
        seconds: time that they took, over all its sittings.
        best_step: the step whose weights were measured best, by `best_score` tokens per round.
        stale: measurements since then.
        quality: what was measured at `best_step`.
        history: one entry per measurement.
    """

    step: int = 0
    seconds: float = 0.0
    best_step: int = 0
    best_score: float = 0.0
    stale: int = 0
    quality: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """As provenance tells of it."""
        return {"steps": self.step, "seconds": round(self.seconds, 1), "best_step": self.best_step}


class Checkpoints:
    """The newest checkpoint of a run and the best one.

    Args:
        folder: holds them and nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, course: Course, module: nn.Module, optimizer: Optimizer) -> None:
        """Write a checkpoint, then remove those that are neither the newest nor the best.

        Raises:
            ModelError: it cannot be written; the one before is still there.
        """
        with whole_folder(self._at(course.step)) as fresh:
            save_file(_tensors(module), fresh / WEIGHTS)
            torch.save(optimizer.state_dict(), fresh / OPTIMIZER)
            (fresh / COURSE).write_text(json.dumps(asdict(course)), encoding="utf-8")
        for step in set(self.steps()) - {course.step, course.best_step}:
            shutil.rmtree(self._at(step), ignore_errors=True)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, ascending."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    def resume(self, module: nn.Module, optimizer: Optimizer) -> Course:
        """Load the newest checkpoint; a new course where there is none.

        Raises:
            CorruptModel: it is damaged.
        """
        steps = self.steps()
        if not steps:
            return Course()
        folder = self._at(steps[-1])
        _load(module, folder / WEIGHTS)
        try:
            optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
            return Course(**read_json(folder / COURSE))
        except (OSError, RuntimeError, ValueError, TypeError, EOFError, UnpicklingError) as error:
            raise CorruptModel(f"checkpoint {folder} must be whole ({error}); delete it to go on without") from error

    def load_best(self, course: Course, module: nn.Module) -> None:
        """Put the best weights of the course into `module`.

        Raises:
            CorruptModel: they are damaged.
        """
        _load(module, self._at(course.best_step) / WEIGHTS)

    def _at(self, step: int) -> Path:
        return self.folder / f"step-{step:07}"


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    # Cloned, as safetensors refuses tensors that share memory, such as a tied embedding.
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}


def _load(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CorruptModel(f"checkpoint {path.parent} must be whole ({error}); delete it to go on without") from error
