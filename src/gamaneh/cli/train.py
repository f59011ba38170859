"""`gamaneh train`: heads and draft models, learned from the target itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag
from gamaneh.cli.refusal import Command
from gamaneh.cli.terminal import print_json
from gamaneh.cli.train_options import Fitting, HeadsChoice, StudentChoice, TrainingSet, is_first, open_workshop
from gamaneh.errors import InvalidOption

train = typer.Typer(
    name="train", help="Train what guesses: heads or a draft model, from the target itself.", no_args_is_help=True
)

HEADS: Mapping[str, str] = {
    "medusa": "Train Medusa heads: one small block per draft position on the target's last hidden state.",
    "mtp": "Train multi-token prediction heads: in parallel, or chained as DeepSeek-like models have them.",
    "eagle": "Train an EAGLE head: one decoder layer over the target's own features.",
    "block": "Train a block drafter: all candidates in one forward over several layers of the target.",
    "early-exit": "Train a way out of the target's first layers, which then draft.",
}
"""Kinds of heads as commands, and what their help says."""


@train.command("prompts", cls=Command)
@command
def write_prompts(
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON Lines file to write, for --data.")],
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 2000,
    category: Annotated[
        list[str] | None,
        typer.Option(
            help="chat, reasoning, editing, summarising, code or persian; may be repeated.", show_default="all"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Other prompts with another seed.")] = 0,
) -> None:
    """Write prompts of our own making, in English, Persian and about code, to train with."""
    from gamaneh.files import room_for
    from gamaneh.train.recipes.prompts import SHARES, make_prompts

    for name in category or ():
        if name not in SHARES:
            raise InvalidOption("--category", f"must be one of {', '.join(SHARES)}", name)
    shares = {name: SHARES[name] for name in category or SHARES}
    prompts = make_prompts(count, seed=seed, shares=shares)
    rows = ({"prompt": example.prompt, "category": example.category} for example in prompts)
    with room_for(out):
        out.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    print(f"{len(prompts)} prompts in {out}")


def _heads_command(kind: str) -> Callable[..., None]:
    def train_kind(chosen: TrainingSet, heads: HeadsChoice, fitting: Fitting, as_json: JsonFlag = False) -> None:
        from gamaneh.heads.artifact import check_heads_place
        from gamaneh.train.heads import HeadsOrder, train_heads
        from gamaneh.train.provenance import this_command

        check_heads_place(chosen.out)
        loaded, corpus, workshop = open_workshop(chosen, fitting)
        order = HeadsOrder(
            kind=kind.replace("-", "_"),
            shape=heads.values(),
            draft_vocab=heads.draft_vocab,
            loop=fitting.options(),
            command=this_command("gamaneh"),
        )
        artifact = train_heads(loaded, corpus, order, workshop, chosen.out)
        _tell({"artifact": str(chosen.out), "kind": artifact.kind, "quality": artifact.quality}, as_json)

    train_kind.__doc__ = HEADS[kind]
    return command(train_kind)


for _kind in HEADS:
    train.command(_kind, cls=Command)(_heads_command(_kind))


@train.command("distill", cls=Command)
@command
def train_draft_model(chosen: TrainingSet, student: StudentChoice, fitting: Fitting, as_json: JsonFlag = False) -> None:
    """Train a small draft model with the target's tokenizer, for `--draft-model`."""
    from gamaneh.train.distill.distill import check_draft_place, distill
    from gamaneh.train.provenance import this_command

    check_draft_place(chosen.out)
    loaded, corpus, workshop = open_workshop(chosen, fitting, backend="torch")
    quality = distill(
        loaded, corpus, student.options(), fitting.options(), workshop, chosen.out, this_command("gamaneh")
    )
    _tell({"draft_model": str(chosen.out), "quality": quality}, as_json)


def _tell(result: Mapping[str, Any], as_json: bool) -> None:
    """Where the result lies and how good it is; of several processes only the first one tells."""
    if not is_first():
        return
    if as_json:
        print_json(result)
        return
    from gamaneh.train.heads_survival import shown

    print(f"{next(iter(result.values()))}: {shown(result['quality'])}")
