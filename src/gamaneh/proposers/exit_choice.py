"""After which layer the target should be left to draft: agreement and cost, both measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gamaneh.backends.choose import backend_for
from gamaneh.core import Backend, Feed
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.exit_head import ExitHead, load_exit
from gamaneh.models.loading import LoadedModel
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
    backend = _backend(loaded, prompts)
    agreement = _agreement(backend, loaded, prompts, candidates)
    costs = _costs(backend, candidates, clock)
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


def _backend(loaded: LoadedModel, prompts: Sequence[list[int]]) -> Backend:
    """A backend of the target's kind, with a small cache of its own."""
    longest = max(map(len, prompts)) + ANSWER_TOKENS
    blocks = len(prompts) * -(-longest // BLOCK_SIZE) + 1  # one more for the token that is timed
    return backend_for(loaded, blocks, BLOCK_SIZE, invariant=False, prefix_cache=False)


@torch.inference_mode()
def _agreement(
    backend: Backend, loaded: LoadedModel, prompts: Sequence[list[int]], layers: Sequence[int]
) -> list[float]:
    """For each layer the share of tokens, of the target's greedy continuations, that it would have chosen."""
    texts = {f"text {at}": list(prompt) for at, prompt in enumerate(prompts)}
    states: list[Tensor] = []
    chosen: list[int] = []
    for name, text in texts.items():
        backend.admit(name, text)
    for _ in range(ANSWER_TOKENS):
        feeds = [
            Feed(request_id=name, tokens=text, count=len(text) - backend.length(name)) for name, text in texts.items()
        ]
        for feed in feeds:
            backend.reserve(feed.request_id, feed.count)
        backend.verify(feeds, taps=layers)
        backend.commit(feeds)
        for feed in feeds:
            assert feed.scores is not None and feed.hidden is not None, "verify fills what was asked for"
            states.append(feed.hidden[-1])
            chosen.append(int(feed.scores[-1].argmax()))
            texts[feed.request_id].append(chosen[-1])
    backend.release(texts)
    truth, decoder = torch.tensor(chosen, device=loaded.device), loaded.decoder
    guesses = (decoder.logits(rows, [len(rows)]).argmax(-1) for rows in torch.stack(states, dim=1))
    return [float((own == truth).float().mean()) for own in guesses]


def _costs(backend: Backend, layers: Sequence[int], clock: Clock) -> list[float]:
    """Seconds of a guess after each layer, in whole forwards; in turns, so that a slow moment falls on all of them."""
    ways = [*layers, backend.caps.num_layers]
    seconds: list[list[float]] = [[] for _ in ways]
    feed = Feed(request_id="timed", tokens=[0], count=1)
    backend.admit(feed.request_id, feed.tokens)
    backend.reserve(feed.request_id, feed.count)
    for _ in range(1 + REPEATS):
        for at, layer in enumerate(ways):
            started = clock()
            backend.verify([feed], num_layers=layer)
            seconds[at].append(clock() - started)
    backend.release([feed.request_id])
    medians = [median(times[1:]) for times in seconds]
    return [own / medians[-1] for own in medians[:-1]]
