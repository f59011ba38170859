"""Training of draft heads, whatever their kind, from texts to the artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact, check_heads_place, mark_target, save_artifact, tensors_of
from gamaneh.heads.block_heads import BlockHeads
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.heads.trainable import DraftHeads, TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.train.batches import make_batches
from gamaneh.train.corpus import Corpus, corpus_features
from gamaneh.train.draft_vocabulary import coverage, frequent_tokens
from gamaneh.train.features import FeatureBatch, FeatureStore
from gamaneh.train.heads_survival import Figures, add_rounds, score_rows
from gamaneh.train.loop import Lesson, Loop
from gamaneh.train.losses import Pairs, TargetProbs, draft_loss
from gamaneh.train.provenance import describe_course, provenance
from gamaneh.train.runs import Say, Workshop, run_key
from gamaneh.train.settings import LoopOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsOrder:
    """Heads to be trained.

    Args:
        kind: as in `HEAD_KINDS`.
        shape: what differs from the kind's defaults.
        draft_vocab: how many of the most frequent tokens they draft from; None for all.
        more_layers: of the target, kept beside those that the heads read, so that other heads can use the same file.
        loop: how they are fitted.
        command: how they can be made again.
    """

    kind: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    draft_vocab: int | None = None
    more_layers: Sequence[int] = ()
    loop: LoopOptions = field(default_factory=LoopOptions)
    command: str = ""


def train_heads(loaded: LoadedModel, corpus: Corpus, order: HeadsOrder, workshop: Workshop, out: Path) -> Artifact:
    """Train heads and write their artifact into the folder `out`.

    Raises:
        InvalidOption: the kind is unknown, or its shape breaks a rule.
        ModelError: `out` is in use for something else, or something cannot be written; what was written before is kept.
    """
    if order.kind not in HEAD_KINDS:
        raise InvalidOption("kind", f"must be one of {', '.join(HEAD_KINDS)}", order.kind)
    check_heads_place(out)
    torch.manual_seed(order.loop.seed)
    kind = HEAD_KINDS[order.kind]
    heads = kind.blank(order.shape, loaded, _draft_ids(loaded, corpus, order.draft_vocab, workshop.say))
    if isinstance(heads, BlockHeads):
        heads.learn_pairs([sample.tokens for sample in corpus.train])
    heads.module().to(workshop.accelerator.device)
    layers = sorted({*heads.hidden_layers, *order.more_layers, loaded.config.num_layers})
    lesson = HeadsLesson(heads, loaded, *corpus_features(loaded, corpus, layers, workshop), order.loop)
    told = describe_course(corpus.train, corpus.held_out, order.loop)
    shape = kind.whole_shape(order.shape, loaded)
    with workshop.bar(f"training {order.kind} heads") as tick:
        folder = workshop.folder / f"{order.kind}-{run_key(shape, order.draft_vocab, told)}"
        course = Loop(lesson, workshop.accelerator, order.loop, folder, tick, workshop.say).run()
    artifact = Artifact(
        kind=order.kind,
        shape=shape,
        target=mark_target(loaded),
        tensors=_kept(heads, loaded.dtype) if kind.keep is None else kind.keep(tensors_of(heads)),
        provenance=provenance(order.command, {**told, **course.summary()}),
        quality=course.quality,
    )
    if workshop.accelerator.is_main_process:
        save_artifact(artifact, out)
    return artifact


class HeadsLesson(Lesson):
    """Heads with the features that they learn from.

    Args:
        train, held_out: features of the texts.
    """

    def __init__(
        self, heads: DraftHeads, loaded: LoadedModel, train: FeatureStore, held_out: FeatureStore, options: LoopOptions
    ) -> None:
        self.batches = make_batches(train.samples, options.batch_tokens, options.seed)
        super().__init__(heads.module(), len(self.batches))
        # In a list, so that the heads' module is not registered twice.
        self._heads = [heads]
        self._target = TargetProbs(loaded.decoder, heads.draft_ids())
        self._last, self._layers = train.columns([loaded.config.num_layers])[0], train.columns(heads.hidden_layers)
        self._train, self._held_out, self._options, self._device = train, held_out, options, loaded.device

    def forward(self, batch: int, step: int) -> Tensor:
        """The loss on a batch, by its number."""
        features = self._train.batch(self.batches[batch]).to(self._device)
        pairs = Pairs(features.learned)
        logits, target_probs = self._guess(features, pairs)
        return draft_loss(logits, target_probs, pairs, self._options.depth_decay)

    def examine(self) -> Figures:
        """Rounds on the held-out texts, and how the tokens of each draft position are ordered."""
        figures = Figures()
        ids = self._heads[0].draft_ids()
        for indexes in make_batches(self._held_out.samples, self._options.batch_tokens, seed=0):
            features = self._held_out.batch(indexes).to(self._device)
            pairs = Pairs(features.learned)
            logits, target_probs = self._guess(features, pairs)
            hits, sums = score_rows(logits, features.greedy, target_probs, pairs, ids)
            figures.add_rows(*sums)
            add_rounds(figures, hits, features.learned, [self._held_out.samples[at].category for at in indexes])
        return figures

    def _guess(self, features: FeatureBatch, pairs: Pairs) -> tuple[list[Tensor], Tensor]:
        """Logits of every draft position, and the target's probabilities of the same tokens where they are known."""
        hidden = features.hidden[:, :, self._layers]
        logits = self._heads[0].draft_logits(TrainBatch(features.tokens, hidden, features.learned))
        return logits, self._target(features.hidden[pairs.before][:, self._last], features.logsumexp[pairs.before])


def _draft_ids(loaded: LoadedModel, corpus: Corpus, size: int | None, say: Say) -> Tensor | None:
    if size is None:
        return None
    ids = frequent_tokens(corpus.train, size, loaded.config.vocab_size)
    say(f"{size} draft tokens cover {coverage(corpus.held_out, ids):.1%} of the held-out answers")
    return ids


def _kept(heads: DraftHeads, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors in the target's type, in which they will be used."""
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors_of(heads).items()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
