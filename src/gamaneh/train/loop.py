"""The training loop: steps, measurements, checkpoints, and an early end where measurements get no better."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from gamaneh.errors import GamanehError
from gamaneh.train.batches import epoch_order
from gamaneh.train.checkpoints import Checkpoints, Course
from gamaneh.train.heads_survival import Figures, shown
from gamaneh.train.runs import Say, Tick
from gamaneh.train.settings import LoopOptions

LARGEST_GRADIENT = 1.0
"""Norm to which gradients are cut."""

LEAST_RATE = 0.05
"""Learning rate at the end, relative to the highest."""


class Lesson(nn.Module, ABC):
    """What is trained, with its data.

    Args:
        student: the module whose weights are learned and kept.
        num_batches: batches in one pass over the data.
    """

    def __init__(self, student: nn.Module, num_batches: int) -> None:
        super().__init__()
        self.student, self.num_batches = student, num_batches

    @abstractmethod
    def forward(self, batch: int, step: int) -> Tensor:
        """The loss on a batch, by its number."""

    @abstractmethod
    def examine(self) -> Figures:
        """Measure on what was held out."""


class Loop:
    """Fits the student of a lesson.

    Args:
        accelerator: places it and runs the backward pass, on one device or several.
        folder: of its checkpoints; a run that was broken off goes on from the newest one.
        tick: called with steps done and steps in all.
        say: told in words how it goes.
    """

    def __init__(
        self, lesson: Lesson, accelerator: Accelerator, options: LoopOptions, folder: Path, tick: Tick, say: Say
    ) -> None:
        self.lesson, self.accelerator, self.options = lesson, accelerator, options
        self.optimizer: Optimizer = AdamW(_groups(lesson.student, options), betas=(0.9, 0.95))
        self.model = accelerator.prepare(lesson)
        self.optimizer = accelerator.prepare(self.optimizer)
        self.checkpoints = Checkpoints(folder)
        self.tick, self.say = tick, say
        self.steps_per_epoch: int = -(-lesson.num_batches // accelerator.num_processes)
        self.total_steps: int = options.epochs * self.steps_per_epoch
        self._losses: list[Tensor] = []

    def run(self) -> Course:
        """Train to the end and leave the best weights in the student.

        Raises:
            ModelError: a checkpoint cannot be written.
            GamanehError: the loss is no longer a number.
        """
        course = self.checkpoints.resume(self.lesson.student, self.optimizer)
        if course.step:
            self.say(f"going on at step {course.step} of {self.total_steps}")
        with warnings.catch_warnings():
            # Norms keep float32 weights in bfloat16 arithmetic, and torch remarks that this is not its fastest way.
            warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
            while not self._finished(course):
                self._step(course)
                if course.step % self.options.validate_every == 0 or self._progress(course) >= 1:
                    self._measure(course)
        self.checkpoints.load_best(course, self.lesson.student)
        return course

    def _step(self, course: Course) -> None:
        started = time.monotonic()
        rate = self.options.learning_rate * learning_rate(self._progress(course), self.options.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.model(self._batch(course.step), course.step)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.lesson.student.parameters(), LARGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._losses.append(loss.detach())
        course.step += 1
        course.seconds = self._agreed(course.seconds + time.monotonic() - started)
        self.tick(course.step, self.total_steps)

    def _batch(self, step: int) -> int:
        """The batch of this process: each pass visits all of them, in another order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.lesson.num_batches, self.options.seed, epoch)
        place = place * int(self.accelerator.num_processes) + int(self.accelerator.process_index)
        return order[place % len(order)]

    def _agreed(self, seconds: float) -> float:
        """All processes have to stop at the same step."""
        if self.accelerator.num_processes == 1:
            return seconds
        mine = torch.tensor(seconds, dtype=torch.float32, device=self.accelerator.device)
        mean: Tensor = self.accelerator.reduce(mine, reduction="mean")
        return float(mean)

    def _progress(self, course: Course) -> float:
        """From 0 to 1, by steps or by time, whichever is further."""
        by_time = 0.0 if self.options.minutes is None else course.seconds / (60 * self.options.minutes)
        return max(course.step / self.total_steps, by_time)

    def _finished(self, course: Course) -> bool:
        return course.step > 0 and (self._progress(course) >= 1 or course.stale >= self.options.patience)

    def _measure(self, course: Course) -> None:
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        if not math.isfinite(loss):
            raise GamanehError(f"loss at step {course.step} must be a number, got {loss}; try a lower learning rate")
        started = time.monotonic()
        self.lesson.eval()
        with torch.no_grad(), self.accelerator.autocast():
            figures = self.lesson.examine()
        self.lesson.train()
        course.seconds = self._agreed(course.seconds + time.monotonic() - started)
        _note(course, figures, loss)
        self.say(f"step {course.step} of {self.total_steps}: loss {loss:.3f}, {shown(figures.quality())}")
        if self.accelerator.is_main_process:
            self.checkpoints.save(course, self.lesson.student, self.optimizer)
        self.accelerator.wait_for_everyone()


def learning_rate(progress: float, warmup: float) -> float:
    """Relative to the highest: a line up, then a cosine down to `LEAST_RATE`."""
    if progress < warmup:
        return max(progress / warmup, LEAST_RATE)
    fallen = (1 + math.cos(math.pi * min((progress - warmup) / max(1 - warmup, 1e-9), 1.0))) / 2
    return LEAST_RATE + (1 - LEAST_RATE) * fallen


def _note(course: Course, figures: Figures, loss: float) -> None:
    """Write a measurement into the course."""
    score = figures.total.tokens_per_round
    course.history.append({"step": course.step, "loss": round(loss, 4), "tokens_per_round": round(score, 4)})
    course.stale += 1
    if score > course.best_score:
        course.best_step, course.best_score, course.stale = course.step, score, 0
        course.quality = figures.quality()


def _groups(student: nn.Module, options: LoopOptions) -> list[dict[str, object]]:
    """Matrices decay, norms and biases do not."""
    learned = [parameter for parameter in student.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in learned if p.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in learned if p.dim() <= 1], "weight_decay": 0.0},
    ]
