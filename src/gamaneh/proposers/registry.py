"""Every proposer that can be asked for by name. A new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gamaneh.core import AUTO, PLAIN, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.proposers import builtin, lookup, suffix
from gamaneh.proposers.plugins import load_plugin, plugin_names
from gamaneh.proposers.recipe import Ingredients, ProposerOption, Recipe

REGISTRY: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        lookup.RECIPE,
        suffix.RECIPE,
        builtin.GRAMMAR,
        builtin.DRAFT_MODEL,
        builtin.MEDUSA,
        builtin.MTP,
        builtin.EAGLE,
        builtin.BLOCK,
        builtin.EARLY_EXIT,
        builtin.PORTFOLIO,
    )
}

ALL_OF_THEM = (AUTO, builtin.PORTFOLIO.name)
"""Names that ask for every proposer: for whichever pays, or for all at once."""


def build_proposers(parts: Ingredients) -> dict[str, Proposer]:
    """The proposers that these ingredients allow, among them the one that the options ask for.

    `auto` asks for no single one: the router takes whichever pays in each round. Plug-ins are loaded when they
    or all proposers are asked for.

    Raises:
        InvalidOption: it is unknown, something that it needs is missing, or an option breaks its rule or is read by
            none of those that are built.
    """
    wanted = parts.options.proposer
    check_proposer(wanted)
    recipes = {**REGISTRY, **_plugins(wanted)}
    chosen = {name: recipe for name, recipe in recipes.items() if name == wanted or recipe.ready(parts)}
    check_options(parts.options.proposer_options, chosen.values(), recipes.values(), wanted)
    built: dict[str, Proposer] = {}
    for name, recipe in sorted(chosen.items(), key=lambda entry: (entry[1].merges, entry[0])):
        built[name] = _built(recipe, replace(parts, members=dict(built)))
    return built


def check_proposer(wanted: str) -> None:
    """Check the name of a proposer, which needs no model.

    Raises:
        InvalidOption: there is none of this name.
    """
    if wanted not in (PLAIN, *ALL_OF_THEM, *REGISTRY, *plugin_names()):
        single = [name for name in REGISTRY if name not in ALL_OF_THEM]
        known = ", ".join([PLAIN, *ALL_OF_THEM, *single, *plugin_names()])
        raise InvalidOption("proposer", f"must be one of {known}", wanted)


def check_options(
    given: Mapping[str, Any], chosen: Iterable[Recipe], known: Iterable[Recipe] | None = None, wanted: str = ""
) -> None:
    """Hold options of proposers against their rules.

    Args:
        chosen: recipes of the proposers that are built.
        known: all recipes; None for the built-in ones.
        wanted: the proposer that was asked for.

    Raises:
        InvalidOption: an option is unknown, read by none of the chosen ones, or breaks a rule.
    """
    chosen, recipes = list(chosen), list(REGISTRY.values() if known is None else known)
    read = {option.name for recipe in chosen for option in recipe.options}
    for name, value in given.items():
        if name not in read:
            owners = owners_of(name, recipes)
            if not owners:
                everything = ", ".join(sorted(options_of(recipes)))
                raise InvalidOption(name, f"must be an option of a proposer: {everything}", value)
            raise InvalidOption(name, f"needs the proposer {' or '.join(owners)}, not {wanted or PLAIN}", value)
    for recipe in chosen:
        recipe.verify(given)


def owners_of(option: str, recipes: Iterable[Recipe]) -> list[str]:
    """Names of the proposers that read an option."""
    return [recipe.name for recipe in recipes if any(own.name == option for own in recipe.options)]


def options_of(recipes: Iterable[Recipe]) -> dict[str, ProposerOption[Any]]:
    """All options of these proposers by name.

    Raises:
        InvalidOption: two different ones have the same name.
    """
    found: dict[str, ProposerOption[Any]] = {}
    for recipe in recipes:
        for option in recipe.options:
            if found.setdefault(option.name, option) is not option:
                raise InvalidOption(f"proposer {recipe.name}", "must not have another's option", option.name)
    return found


def known_recipes() -> list[Recipe]:
    """All recipes whose options can be given: the built-in ones, and those of plug-ins that load.

    A plug-in that does not load is an error where it is asked for, and no hindrance elsewhere.
    """
    recipes = list(REGISTRY.values())
    for name in plugin_names():
        try:
            plugin = _plugin(name)
            options_of([*recipes, plugin])
        except InvalidOption:
            continue
        recipes.append(plugin)
    return recipes


def _built(recipe: Recipe, parts: Ingredients) -> Proposer:
    proposer = recipe.build(parts)
    if proposer.name != recipe.name:
        raise InvalidOption(f"proposer {recipe.name}", "must have the name under which it is asked for", proposer.name)
    return proposer


def _plugins(wanted: str) -> dict[str, Recipe]:
    """Recipes of other packages that are asked for."""
    found = {name: _plugin(name) for name in plugin_names() if wanted in (name, *ALL_OF_THEM)}
    options_of([*REGISTRY.values(), *found.values()])
    return found


def _plugin(name: str) -> Recipe:
    recipe = load_plugin(name, Recipe, taken=(PLAIN, AUTO, *REGISTRY))
    if recipe.name != name:
        raise InvalidOption(f"proposer {name}", "must have the name under which it is asked for", recipe.name)
    return recipe
