"""After which layer the target should be left to draft: agreement and cost, both measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gamaneh.core import Backend
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.exit_head import ExitHead, load_exit
from gamaneh.kv.cache import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.proposers.exits import Exit, OwnExit, TrainedExit

TEXTS = (
    "Question: Why does the moon look larger near the horizon?\nAnswer:",
    "def average(values):\n    ",
    "The road to the village was closed, so they",
)
"""Beginnings that the target continues; the continuation is what its own layers are judged by."""

ANSWER_TOKENS = 24
REPEATS = 3
MOST_CANDIDATES = 8
LONGEST_DRAFT = 15
BLOCK_SIZE = 16

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ExitMeasure:
    """What one exit is worth.

    Args:
        layer: layers that run before it.
        agreement: share of tokens that it guesses as the whole target does.
        cost: of one guess, relative to a whole forward.
    """

    layer: int
    agreement: float
    cost: float

    def speedup(self, draft_length: int) -> float:
        """Expected tokens per second relative to plain decoding (Leviathan et al. 2023, theorem 3.8)."""
        expected = sum(self.agreement**length for length in range(draft_length + 1))
        return expected / (draft_length * self.cost + 1.0)

    def best_length(self) -> int:
        """The draft length, at least 1, of highest speed-up."""
        return max(range(1, LONGEST_DRAFT + 1), key=self.speedup)

    def __str__(self) -> str:
        length = self.best_length()
        return (
            f"after {self.layer} layers: agrees on {self.agreement:.2f} of the tokens, "
            f"costs {self.cost:.2f} of a forward, speed-up {self.speedup(length):.2f} with {length} candidates"
        )


def measure_exits(
    loaded: LoadedModel, layers: Sequence[int] = (), clock: Clock = time.perf_counter
) -> list[ExitMeasure]:
    """Measure the target's own head after each of these layers; after some spread over all of them for none."""
    candidates = sorted(layers) or candidate_layers(loaded.config.num_layers)
    prompts = [loaded.tokenizer.encode(text) for text in TEXTS]
    runner = _runner(loaded, len(prompts), max(map(len, prompts)) + ANSWER_TOKENS)
    agreement = _agreement(runner, prompts, candidates)
    costs = _costs(runner, candidates, clock)
    return [ExitMeasure(*row) for row in zip(candidates, agreement, costs, strict=True)]


def choose_exit(loaded: LoadedModel, backend: Backend, layer: int | None, heads: Artifact | None) -> tuple[Exit, str]:
    """The way out of the target, and why this one, in words.

    Args:
        backend: where the target runs.
        layer: leave after this many layers; None measures which.
        heads: a trained exit; its layer is the one that it was trained for.

    Raises:
        InvalidOption: the target has no such layer, or the trained exit belongs to another one.
        CorruptModel: the trained exit is damaged.
    """
    count = loaded.config.num_layers
    if count < 2:
        raise InvalidOption("proposer", "early_exit needs a target of at least 2 layers", count)
    if heads is not None:
        return _trained(load_exit(heads, loaded), loaded, backend, layer)
    if layer is None:
        best = best_exit(measure_exits(loaded))
        return OwnExit(backend, best.layer), f"of {count}, measured: {best}"
    if layer >= count:
        raise InvalidOption("exit_layer", f"must be below the target's {count} layers", layer)
    return OwnExit(backend, layer), f"after {layer} of {count} layers, as asked"


def best_exit(measures: Sequence[ExitMeasure]) -> ExitMeasure:
    """The exit of highest expected speed-up."""
    return max(measures, key=lambda measure: measure.speedup(measure.best_length()))


def candidate_layers(num_layers: int) -> list[int]:
    """Layers below the last, spread evenly."""
    parts = min(MOST_CANDIDATES, num_layers)
    return sorted({max(num_layers * part // parts, 1) for part in range(1, parts)})


def _trained(head: ExitHead, loaded: LoadedModel, backend: Backend, layer: int | None) -> tuple[Exit, str]:
    trained = head.shape.num_layers
    if layer not in (None, trained):
        raise InvalidOption("exit_layer", f"must be {trained}, for which the exit was trained", layer)
    about = f"after {trained} of {loaded.config.num_layers} layers, for which it was trained"
    return TrainedExit(backend, head, loaded.decoder), about


def _runner(loaded: LoadedModel, sequences: int, length: int) -> DecoderRunner:
    """With a small cache of its own: a run of blocks for each sequence."""
    config, decoder = loaded.config, loaded.decoder
    blocks = sequences * -(-length // BLOCK_SIZE)
    cache = KVCache(
        config.num_layers, blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, decoder.dtype, decoder.device
    )
    return DecoderRunner(decoder, cache, invariant=False)


@torch.inference_mode()
def _agreement(runner: DecoderRunner, prompts: Sequence[list[int]], layers: Sequence[int]) -> list[float]:
    """For each layer the share of tokens, of the target's greedy continuations, that it would have chosen."""
    texts, read = [list(prompt) for prompt in prompts], [0] * len(prompts)
    states: list[Tensor] = []
    chosen: list[int] = []
    for _ in range(ANSWER_TOKENS):
        feeds = [
            _feed(runner, at, len(texts), text[done:], done)
            for at, (text, done) in enumerate(zip(texts, read, strict=True))
        ]
        forward = runner.forward(feeds, taps=layers)
        states += [rows[-1] for rows in forward.hidden]
        read = [len(text) for text in texts]
        for text, logits in zip(texts, forward.logits, strict=True):
            text.append(int(logits[-1].argmax()))
            chosen.append(text[-1])
    truth, decoder = torch.tensor(chosen, device=runner.decoder.device), runner.decoder
    guesses = (decoder.logits(rows, [len(rows)]).argmax(-1) for rows in torch.stack(states, dim=1))
    return [float((own == truth).float().mean()) for own in guesses]


def _costs(runner: DecoderRunner, layers: Sequence[int], clock: Clock) -> list[float]:
    """Seconds of a guess after each layer, in whole forwards; in turns, so that a slow moment falls on all of them."""
    ways = [*layers, runner.decoder.config.num_layers]
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(1 + REPEATS):
        for at, layer in enumerate(ways):
            started = clock()
            runner.forward([_feed(runner, 0, 1, [0], 0)], num_layers=layer)
            seconds[at].append(clock() - started)
    medians = [median(times[1:]) for times in seconds]
    return [own / medians[-1] for own in medians[:-1]]


def _feed(runner: DecoderRunner, at: int, count: int, tokens: Sequence[int], start: int) -> Placed:
    """Tokens of the text `at` of `count`, which has an equal part of the cache."""
    first = BLOCK_SIZE + at * ((runner.cache.num_slots - BLOCK_SIZE) // count)
    stop = start + len(tokens)
    return Placed(tokens, start, 0, range(first, first + stop), first)
