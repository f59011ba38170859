"""Recipes of the built-in proposers whose code imports torch. They stand apart from it: help and reports read them.

Recipes of the others stand in their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gamaneh.checks import FLAG, number, one_of, optional, whole
from gamaneh.core import AUTO, Proposer
from gamaneh.proposers.recipe import Ingredients, ProposerOption, Recipe

MIN_CONFIDENCE: ProposerOption[float] = ProposerOption(
    "min_confidence", float, 0.3, number(0.0, 1.0), "End a draft, after its first token, where its maker is less sure."
)
"""A path ends, behind its first token, where the most likely token that could be drafted is less likely than this.

The first token is spared: by then its forward has been paid for, and whether to draft at all is decided elsewhere.
The test does not look at the token that was drawn: leaving out unlikely draws would change the distribution that
`rejection` and `block` divide by, and with it the output's."""

DRAFT_BRANCHING: ProposerOption[int | None] = ProposerOption(
    "draft_branching",
    int,
    None,
    optional(whole(1, 16)),
    "Candidates on each level of a draft, where the rule takes trees.",
    "1; 3 of heads that guess all at once",
)

BRIDGES = ("auto", "text", "vocabulary")

BRIDGE = ProposerOption(
    "bridge", str, "auto", one_of(BRIDGES), f"To a draft model with other tokens: {', '.join(BRIDGES)}."
)
"""How a draft model with another tokenizer is understood: `text` reads again what it writes, `vocabulary` lets it say
only tokens that both have, `auto` chooses."""

EXIT_LAYER: ProposerOption[int | None] = ProposerOption(
    "exit_layer", int, None, optional(whole(1)), "Layers of the target that early_exit drafts with.", "measured"
)

MERGE = ProposerOption("merge", bool, False, FLAG, "auto may merge drafts of several proposers.")


def _code_of(module: str) -> Callable[[Ingredients], Proposer]:
    """Return the function `build` of a module, which is imported when it is called."""

    def build(parts: Ingredients) -> Proposer:
        made: Proposer = import_module(f"gamaneh.proposers.{module}").build(parts)
        return made

    return build


def _of_heads(kind: str, options: tuple[ProposerOption[Any], ...], *, titles: Mapping[str, str], about: str) -> Recipe:
    """Return the recipe of the proposer that heads of one kind make; it has the kind's name."""
    return Recipe(
        kind,
        _code_of(kind),
        ready=lambda parts: parts.has_heads(kind),
        options=options,
        titles=titles,
        about=about,
        given=("heads",),
    )


def _grammars_are_there(parts: Ingredients) -> bool:
    from gamaneh.sampling.grammar_mask import grammars_are_there

    return grammars_are_there()


GRAMMAR = Recipe(
    "grammar",
    _code_of("grammar"),
    ready=_grammars_are_there,
    titles={"en": "text that a grammar forces", "fa": "متنی که دستور زبان ناگزیر می‌کند"},
    about="Writes what a request's grammar leaves no choice about.",
)

DRAFT_MODEL = Recipe(
    "draft_model",
    _code_of("draft_model"),
    ready=lambda parts: parts.draft_model is not None,
    options=(MIN_CONFIDENCE, DRAFT_BRANCHING, BRIDGE),
    titles={"en": "draft model", "fa": "مدلِ پیش‌نویس"},
    about="A smaller model guesses the next tokens.",
    given=("draft_model",),
)

MEDUSA = _of_heads(
    "medusa",
    (DRAFT_BRANCHING,),
    titles={"en": "Medusa heads", "fa": "سرهای Medusa"},
    about="Trained heads guess all positions at once.",
)

MTP = _of_heads(
    "mtp",
    (MIN_CONFIDENCE, DRAFT_BRANCHING),
    titles={"en": "multi-token prediction", "fa": "پیش‌بینیِ چندتوکنی"},
    about="Trained heads guess one position each.",
)

EAGLE = _of_heads(
    "eagle",
    (MIN_CONFIDENCE, DRAFT_BRANCHING),
    titles={"en": "EAGLE", "fa": "EAGLE"},
    about="One trained layer continues the target's hidden states.",
)

BLOCK = _of_heads(
    "block",
    (MIN_CONFIDENCE, DRAFT_BRANCHING),
    titles={"en": "block drafter", "fa": "پیش‌نویسِ یک‌باره"},
    about="Trained layers guess all candidates in one forward.",
)

EARLY_EXIT = _of_heads(
    "early_exit",
    (MIN_CONFIDENCE, EXIT_LAYER),
    titles={"en": "early exit", "fa": "خروجِ زودهنگام"},
    about="The target's own first layers guess.",
)

PORTFOLIO = Recipe(
    "portfolio",
    _code_of("portfolio"),
    ready=lambda parts: parts.options.proposer == AUTO and parts.value(MERGE),
    options=(MERGE,),
    titles={"en": "several, merged", "fa": "چند تا، درهم‌آمیخته"},
    about="Asks all others and merges their drafts in one tree.",
    merges=True,
)
