"""`python -m gamaneh.train.recipes`: train the heads that come with the package, or what is measured beside them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gamaneh.backends.choose import load
from gamaneh.errors import GamanehError
from gamaneh.models.fetch import pull
from gamaneh.options import Precision
from gamaneh.train.heads_survival import shown
from gamaneh.train.recipes.measured import MEASURED
from gamaneh.train.recipes.shipped import BLOCK, SHIPPED, TARGET
from gamaneh.train.recipes.training_recipe import TrainingRecipe, follow
from gamaneh.train.runs import Tick, Workshop, start_accelerator

SECONDS_BETWEEN_LINES = 30.0
PACKAGE = Path(__file__).parents[2]

RECIPES: Mapping[str, tuple[TrainingRecipe, Path]] = {
    "shipped": (SHIPPED, PACKAGE / "heads" / "shipped" / TARGET),
    "block": (BLOCK, PACKAGE / "heads" / "shipped" / TARGET),
    "measured": (MEASURED, Path("measured")),
}
"""TrainingRecipe and folder of its artifacts, by name."""


def main() -> None:
    """Parse the command line, train, and say where everything lies."""
    arguments = _parser().parse_args()
    say = _clock_in_front(time.monotonic())
    recipe, folder = RECIPES[arguments.recipe]
    try:
        _train(arguments.model, recipe.scaled(arguments.scale), arguments.out or folder, arguments.work, say)
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train what a recipe says, in about 50 minutes.")
    parser.add_argument(
        "--recipe",
        choices=RECIPES,
        default="shipped",
        help="shipped: Medusa and EAGLE heads of the package (default); block: its block drafter; "
        "measured: the others of docs/methods.md",
    )
    parser.add_argument("--model", default=TARGET, help="the target; by default %(default)s")
    parser.add_argument("--out", type=Path, help="folder of the artifacts (default: by recipe)")
    parser.add_argument(
        "--work", type=Path, default=Path("recipes.work"), help="folder to go on from; may be deleted afterwards"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all times, 0.02 for a test in a minute")
    return parser


def _train(model: str, recipe: TrainingRecipe, out: Path, work: Path, say: Callable[[str], None]) -> None:
    accelerator = start_accelerator("auto", Precision(), "auto")
    backend = "auto" if recipe.draft_model is None else "torch"
    target = load(pull(model) if model == TARGET else model, backend=backend, device=str(accelerator.device))
    workshop = Workshop(accelerator, work, lambda title: _lines(title, say), say)
    for name, quality in follow(target, recipe, workshop, out).items():
        say(f"{out / name}: {shown(quality)}")


def _clock_in_front(started: float) -> Callable[[str], None]:
    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"{minutes:3}:{seconds:02}  {text}", flush=True)

    return say


@contextmanager
def _lines(title: str, say: Callable[[str], None]) -> Iterator[Tick]:
    """Progress as a line now and then, which a log file can hold."""
    last = float("-inf")

    def tick(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES or done == total:
            last = now
            say(f"{title}: {done} of {total}")

    yield tick


if __name__ == "__main__":
    main()
