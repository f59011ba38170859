"""Options of training, each with one default and checked here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gamaneh.heads.shapes import Rule, check, whole

TrainingType = Literal["auto", "float32", "bfloat16"]
Start = Literal["scratch", "target"]
Divergence = Literal["forward", "reverse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """How examples become texts to learn from.

    Args:
        max_length: tokens of the longest text; what is behind is cut off.
        held_out: examples kept aside to measure with.
        answer_tokens: longest answer that the target is asked for.
        temperatures: of the answers, taken in turns; 0 is greedy. Held-out prompts are answered greedily.
        answer_batch: prompts answered at once.
        answer_minutes: when to stop with the answers to learn from; None answers every prompt.
        seed: what sampled answers are drawn with.
    """

    max_length: int = 1024
    held_out: int = 32
    answer_tokens: int = 256
    temperatures: tuple[float, ...] = (0.0, 0.8)
    answer_batch: int = 16
    answer_minutes: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check(
            self,
            {
                "max_length": whole(8, 1 << 20),
                "held_out": whole(1, 1 << 20),
                "answer_tokens": whole(1, 1 << 20),
                "temperatures": ("must be numbers from 0 to 100, at least one", _are_temperatures),
                "answer_batch": whole(1, 4096),
                "answer_minutes": _MINUTES,
                "seed": whole(0, 1 << 62),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How weights are fitted.

    Args:
        epochs: passes over the data.
        minutes: when to stop; the learning rate falls in time for it. None goes on to the end.
        batch_tokens: tokens of one step on one device.
        learning_rate: the highest; it rises over the first steps and falls along a cosine.
        warmup: share of the training in which it rises.
        weight_decay: of matrices.
        depth_decay: what each draft position weighs relative to the one before.
        validate_every: steps between two measurements; each leaves a checkpoint.
        patience: measurements without a better one after which training ends.
        precision: type of the arithmetic; the weights are float32. `auto` takes bfloat16 where the target has it.
        seed: order of the batches and weights to begin with.
    """

    epochs: int = 3
    minutes: float | None = None
    batch_tokens: int = 2048
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    depth_decay: float = 0.8
    validate_every: int = 100
    patience: int = 5
    precision: TrainingType = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check(
            self,
            {
                "epochs": whole(1, 1 << 20),
                "minutes": _MINUTES,
                "batch_tokens": whole(1, 1 << 30),
                "learning_rate": _number(0.0, 1.0),
                "warmup": _number(0.0, 1.0),
                "weight_decay": _number(0.0, 10.0),
                "depth_decay": _number(0.0, 1.0),
                "validate_every": whole(1, 1 << 30),
                "patience": whole(1, 1 << 20),
                "precision": _one_of(get_args(TrainingType)),
                "seed": whole(0, 1 << 62),
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentOptions:
    """A small draft model that learns from the target.

    Args:
        start: `scratch` begins with new weights and the principal components of the target's embedding,
            `target` with layers cut from the target.
        num_layers: how many, at even distances where they are cut.
        hidden_size: width, from scratch.
        on_policy: share of the steps on texts that the draft model writes itself (Agarwal et al. 2024, GKD).
        sampled_tokens: length of these texts.
        divergence: `forward` is KL(target || draft), `reverse` KL(draft || target).
    """

    start: Start = "scratch"
    num_layers: int = 2
    hidden_size: int = 256
    on_policy: float = 0.0
    sampled_tokens: int = 64
    divergence: Divergence = "forward"

    def __post_init__(self) -> None:
        check(
            self,
            {
                "start": _one_of(get_args(Start)),
                "num_layers": whole(1, 1 << 10),
                "hidden_size": ("must be a multiple of 8", lambda size: whole(8, 1 << 20)[1](size) and size % 8 == 0),
                "on_policy": _number(0.0, 1.0),
                "sampled_tokens": whole(2, 1 << 20),
                "divergence": _one_of(get_args(Divergence)),
            },
        )


def _one_of(names: Sequence[str]) -> Rule:
    return f"must be one of {', '.join(names)}", lambda name: name in names


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(low: float, high: float) -> Rule:
    return f"must be a number from {low:g} to {high:g}", lambda value: _is_number(value) and low <= value <= high


def _are_temperatures(values: Any) -> bool:
    return isinstance(values, tuple | list) and len(values) > 0 and all(map(_number(0.0, 100.0)[1], values))


_MINUTES: Rule = ("must be a number above 0, or none", lambda value: value is None or (_is_number(value) and value > 0))
