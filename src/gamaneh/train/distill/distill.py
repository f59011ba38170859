"""Distillation from texts to a folder that `--draft-model` loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from gamaneh.errors import InvalidOption
from gamaneh.files import whole_folder
from gamaneh.heads.artifact import mark_target
from gamaneh.models.loading import LoadedModel, load
from gamaneh.options import Precision
from gamaneh.proposers.distilled import About, write_about
from gamaneh.train.checkpoints import Course
from gamaneh.train.corpus import Corpus, corpus_features
from gamaneh.train.distill.lesson import DistillLesson
from gamaneh.train.distill.student import cut_student, scratch_student
from gamaneh.train.loop import Loop
from gamaneh.train.provenance import describe_course, provenance
from gamaneh.train.runs import Workshop, run_key
from gamaneh.train.settings import LoopOptions, StudentOptions


def distill(
    loaded: LoadedModel,
    corpus: Corpus,
    options: StudentOptions,
    loop: LoopOptions,
    workshop: Workshop,
    out: Path,
    command: str = "",
    more_layers: Sequence[int] = (),
) -> dict[str, Any]:
    """Train a draft model and write it with the target's tokenizer into the folder `out`.

    Args:
        more_layers: of the target, kept beside the last one, so that heads can use the same file of features.

    Returns:
        What was measured on the held-out texts, as an artifact's `quality`.

    Raises:
        InvalidOption: `out` holds files already.
        UnsupportedModel: layers cannot be cut from a target of this family.
        ModelError: something cannot be written; what was written before is kept.
    """
    check_draft_place(out)
    torch.manual_seed(loop.seed)
    student = _student(loaded, options)
    student.to(workshop.accelerator.device)
    told = {**describe_course(corpus.train, corpus.held_out, loop), "student": asdict(options)}
    layers = sorted({*more_layers, loaded.config.num_layers})
    features = corpus_features(loaded, corpus, layers, workshop)
    lesson = DistillLesson(student, loaded, *features, loop, options)
    course = _fit(lesson, loop, workshop, run_key(told))
    if workshop.accelerator.is_main_process:
        about = About(mark_target(loaded), provenance(command, {**told, **course.summary()}), course.quality)
        _write(student, loaded, about, out)
    return course.quality


def _fit(lesson: DistillLesson, loop: LoopOptions, workshop: Workshop, key: str) -> Course:
    with workshop.bar("training a draft model") as tick:
        folder = workshop.folder / f"distill-{key}"
        return Loop(lesson, workshop.accelerator, loop, folder, tick, workshop.say).run()


def check_draft_place(out: Path) -> None:
    """
    Raises:
        InvalidOption: there are files in `out`, which nobody asked to be replaced.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidOption("out", "must be a new or an empty folder", str(out))


def _student(loaded: LoadedModel, options: StudentOptions) -> PreTrainedModel:
    if options.start == "scratch":
        return scratch_student(loaded, options)
    whole = loaded.dtype == torch.float32
    dense = loaded if whole else load(loaded.path, precision=Precision(weights="float32"), device="cpu")
    return cut_student(dense, options.num_layers)


def _write(student: PreTrainedModel, loaded: LoadedModel, about: About, out: Path) -> None:
    check_draft_place(out)  # once more: training took its time
    with whole_folder(out) as fresh:
        nn.Module.to(student, dtype=loaded.dtype)
        student.save_pretrained(fresh)
        loaded.tokenizer.backend.save_pretrained(fresh)
        write_about(about, fresh)
