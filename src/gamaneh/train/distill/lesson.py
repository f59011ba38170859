"""What a draft model learns: the target's distribution, on the target's texts or on its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from gamaneh.models.loading import LoadedModel
from gamaneh.train.batches import make_batches
from gamaneh.train.features import FeatureStore
from gamaneh.train.heads_survival import Figures, add_rounds, score_rows
from gamaneh.train.loop import Lesson
from gamaneh.train.losses import Pairs, TargetProbs, divergence
from gamaneh.train.reading import TargetReader
from gamaneh.train.settings import LoopOptions, StudentOptions

MEASURED_DEPTH = 8
"""Candidates of the chains that the draft model is measured by."""


class DistillLesson(Lesson):
    """A draft model with the texts that it learns from.

    Args:
        train, held_out: features of the texts; what the last layer of the target put out is among them.
    """

    def __init__(
        self,
        student: PreTrainedModel,
        loaded: LoadedModel,
        train: FeatureStore,
        held_out: FeatureStore,
        loop: LoopOptions,
        options: StudentOptions,
    ) -> None:
        self.batches = make_batches(train.samples, loop.batch_tokens, loop.seed)
        super().__init__(student, len(self.batches))
        self._model = [student]
        self._target = TargetProbs(loaded.decoder, None)
        self._reader = [TargetReader(loaded, loaded.config.max_context)] if options.on_policy else []
        self._eos_ids, self._last = loaded.tokenizer.eos_ids, loaded.config.num_layers
        self._train, self._held_out = train, held_out
        self._column = train.columns([self._last])[0]
        self._loop, self._options, self._device = loop, options, loaded.device

    def forward(self, batch: int, step: int) -> Tensor:
        """The loss on a batch, by its number; a set share of the steps is on-policy, at even distances."""
        share = self._options.on_policy
        own = int((step + 1) * share) > int(step * share)
        return self._own_loss(batch, step) if own else self._given_loss(batch)

    def examine(self) -> Figures:
        """Rounds with chains of `MEASURED_DEPTH` on the held-out texts."""
        figures = Figures()
        for indexes in make_batches(self._held_out.samples, self._loop.batch_tokens, seed=0):
            features = self._held_out.batch(indexes).to(self._device)
            logits = self._logits(self._hidden(features.tokens))
            pairs = Pairs(features.learned)
            last = features.hidden[:, :, self._column]
            target_probs = self._target(last[pairs.before], features.logsumexp[pairs.before])
            # Row t + 1 guesses the token t + 2, which is the first candidate behind t.
            hits, sums = score_rows([logits.roll(-1, 1)], features.greedy, target_probs, pairs, None)
            figures.add_rows(*sums)
            categories = [self._held_out.samples[at].category for at in indexes]
            add_rounds(figures, _chains(hits[..., 0]), features.learned, categories)
        return figures

    def _given_loss(self, batch: int) -> Tensor:
        """On texts that stand in the data."""
        features = self._train.batch(self.batches[batch]).to(self._device)
        rows = Pairs(features.learned).before
        target_probs = self._target(features.hidden[:, :, self._column][rows], features.logsumexp[rows])
        return self._loss(self._hidden(features.tokens)[rows], target_probs)

    def _own_loss(self, batch: int, step: int) -> Tensor:
        """On continuations that the draft model draws, which the target then reads."""
        texts, starts = self._drawn(batch, step)
        reader = self._reader[0]
        hidden = torch.cat(
            [text[start - 1 : -1, 0] for text, start in zip(reader.read(texts, [self._last]), starts, strict=True)]
        )
        tokens = pad_sequence([torch.tensor(text) for text in texts], batch_first=True).to(self._device)
        rows = torch.zeros_like(tokens, dtype=torch.bool)
        for row, text, start in zip(rows, texts, starts, strict=True):
            row[start - 1 : len(text) - 1] = True
        target_probs = self._target(hidden.clone(), reader.scores(hidden)[1].clone())
        return self._loss(self._hidden(tokens)[rows], target_probs)

    def _loss(self, hidden: Tensor, target_probs: Tensor) -> Tensor:
        """Mean divergence of `[num_rows, hidden]` from `[num_rows, vocab]`."""
        logprobs = target_probs.clamp(min=torch.finfo(torch.float32).tiny).log()
        return divergence(self._logits(hidden), logprobs, self._options.divergence)

    @torch.no_grad()
    def _drawn(self, batch: int, step: int) -> tuple[list[list[int]], list[int]]:
        """The prompts of a batch with continuations drawn from the draft model, and where these begin."""
        samples = [self._train.samples[at] for at in self.batches[batch]]
        prompts = [list(sample.tokens[: max(sample.spans[0][0], 1)]) for sample in samples]
        widest = max(map(len, prompts))
        padded = torch.tensor([[0] * (widest - len(prompt)) + prompt for prompt in prompts], device=self._device)
        mask = torch.tensor(
            [[0] * (widest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self._device
        )
        torch.manual_seed(self._loop.seed + step)
        generate: Callable[..., Tensor] = self._model[0].generate  # type: ignore[assignment]
        drawn = generate(
            input_ids=padded,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=self._options.sampled_tokens,
            eos_token_id=list(self._eos_ids) or None,
            pad_token_id=0,
        )
        answers = [self._until_end(row) for row in drawn[:, widest:].tolist()]
        return [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)], list(map(len, prompts))

    def _until_end(self, tokens: list[int]) -> list[int]:
        ends = [at for at, token in enumerate(tokens, start=1) if token in self._eos_ids]
        return tokens[: ends[0]] if ends else tokens

    def _hidden(self, tokens: Tensor) -> Tensor:
        """`[batch, length]` -> `[batch, length, hidden]` behind the final norm."""
        body: nn.Module = self._model[0].base_model
        hidden: Tensor = body(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        head: nn.Module = self._model[0].get_submodule("lm_head")
        logits: Tensor = head(hidden)
        return logits


def _chains(first: Tensor) -> Tensor:
    """`[batch, length]` whether the guess behind t + 1 is right -> `[batch, length, MEASURED_DEPTH]`, by candidate."""
    ahead = [torch.nn.functional.pad(first[:, step:], (0, min(step, first.shape[1]))) for step in range(MEASURED_DEPTH)]
    return torch.stack(ahead, dim=-1)
