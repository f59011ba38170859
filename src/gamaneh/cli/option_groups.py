"""Options that several commands share, each declared once. Defaults are those of the options objects behind them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gamaneh.cli.command import late_options
from gamaneh.errors import InvalidOption
from gamaneh.options import (
    NUMBERS,
    RULE_NAMES,
    WEIGHTS,
    Drafting,
    EngineOptions,
    Precision,
    SamplingParams,
    SpeculationOptions,
)

if TYPE_CHECKING:
    from gamaneh.proposers.recipe import ProposerOption, Recipe

AUTO, PORTFOLIO = "auto", "portfolio"

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, without special tokens."""

ChatFlag = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Put prompts into the model's chat template.", show_default="if it has one"),
]
Minutes = Annotated[
    float,
    typer.Option(
        min=0, help="Most minutes of the whole run, loading included; 0 sets no limit.", rich_help_panel="Output"
    ),
]
JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Put one JSON object on the last line of standard output.", rich_help_panel="Output"),
]


def option_for(kind: type[Any], field: str, help_text: str, *names: str) -> Any:
    """An option that sets `field` of the options object `kind`; not given, the field keeps its default."""
    default = next(entry.default for entry in fields(kind) if entry.name == field)
    return typer.Option(*names, help=help_text, show_default="none" if default is None else str(default))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(values: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(values, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The target and how it is executed."""

    PANEL: ClassVar[str] = "Model"

    model: Annotated[
        str,
        typer.Option("--model", "-m", help="A Hugging Face folder or id, a .gguf file, or a name of `gamaneh models`."),
    ]
    weights: Annotated[str | None, option_for(Precision, "weights", f"How weights are kept: {', '.join(WEIGHTS)}.")] = (
        None
    )
    compute: Annotated[
        str | None, option_for(Precision, "compute", f"Type of the arithmetic: {', '.join(NUMBERS)}.")
    ] = None
    kv: Annotated[str | None, option_for(Precision, "kv", f"Type of the KV cache: {', '.join(NUMBERS)}.")] = None
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    backend: Annotated[
        str,
        typer.Option(
            help="compiled (CPUs), torch (any device), hf (families that only transformers knows), or auto: "
            "compiled where it can run."
        ),
    ] = "auto"
    invariant: Annotated[
        bool | None,
        typer.Option(
            "--invariant/--no-invariant",
            help="The same bits whatever is computed beside a row.",
            show_default="by device and dtype",
        ),
    ] = None
    max_context: Annotated[int | None, option_for(EngineOptions, "max_context", "Most tokens of one request.")] = None

    def __post_init__(self) -> None:
        self.engine()
        self.precision()

    def precision(self) -> Precision:
        """
        Raises:
            InvalidOption: a name is unknown.
        """
        return Precision(**_given(self, ("weights", "compute", "kv")))

    def engine(self, **more: Any) -> EngineOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        return EngineOptions(**_given(self, ("invariant", "max_context")), **more)


_PROPOSERS: Mapping[str, str] = {"draft_model": "draft_model", "heads": "auto", "lookup": "lookup", "plain": "none"}
"""Option that chooses a proposer -> its name. Without one of them or `--proposer`, `lookup`."""

_TOGETHER = frozenset({"draft_model", "heads", "lookup"})
"""Of several of these, whichever pays is taken."""

_FOR_ALL = ("draft_length", "max_draft_length", "rule", "draft_sampling", "epsilon", "delta")
"""Options of whatever guesses."""

_OPTIONS_PANEL = "Options of proposers"


def _proposer_options() -> list[inspect.Parameter]:
    """The options that proposers declare, plug-ins included."""
    from gamaneh.proposers.registry import known_recipes, options_of

    return [_parameter(option) for option in options_of(known_recipes()).values()]


def _parameter(option: ProposerOption[Any]) -> inspect.Parameter:
    shown = option.shown_default or {None: "none", False: "off", True: "on"}.get(option.default, str(option.default))
    flags = (f"{option.flag}/--no-{option.flag.removeprefix('--')}",) if option.kind is bool else (option.flag,)
    info = typer.Option(*flags, help=option.help, show_default=shown, rich_help_panel=_OPTIONS_PANEL)
    kind: Any = option.kind | None
    kind = Annotated[kind, info]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerChoice:
    """What guesses, how far, and what decides.

    Raises:
        InvalidOption: two options exclude each other, or a value is out of range.
    """

    PANEL: ClassVar[str] = "Drafting"

    draft_model: Annotated[
        str | None, typer.Option(help="Guess with this model; best if it has the target's tokenizer.")
    ] = None
    heads: Annotated[
        list[str] | None,
        typer.Option(
            "--heads",
            metavar="PATH",
            help="Guess with trained heads: a folder, or a name of heads that come along; may be repeated.",
        ),
    ] = None
    lookup: Annotated[
        bool, typer.Option("--lookup", help="Guess by looking back in prompt and output; the default.")
    ] = False
    proposer: Annotated[
        str | None,
        typer.Option(
            help="Guess by name: suffix, grammar, early_exit, auto (what pays), portfolio (all, merged) or a plug-in.",
            show_default="none",
        ),
    ] = None
    plain: Annotated[bool, typer.Option("--plain", help="Do not guess.")] = False
    draft_device: Annotated[str | None, typer.Option(help="Device of the draft model.", show_default="--device")] = None
    draft_weights: Annotated[
        str | None,
        typer.Option(help=f"How its weights are kept: {', '.join(WEIGHTS)}.", show_default="--weights"),
    ] = None
    draft_length: Annotated[
        int | None,
        typer.Option("--draft-length", "-k", help="Candidates in every draft.", show_default="adapts"),
    ] = None
    max_draft_length: Annotated[
        int | None, option_for(Drafting, "max_draft_length", "Longest draft when the length adapts.")
    ] = None
    rule: Annotated[str | None, option_for(Drafting, "rule", f"How guesses are accepted: {', '.join(RULE_NAMES)}.")] = (
        None
    )
    draft_sampling: Annotated[
        str | None,
        option_for(Drafting, "draft_sampling", "request: draft models and heads sample as the request; or greedy."),
    ] = None
    epsilon: Annotated[float | None, option_for(Drafting, "epsilon", "Threshold of the rule typical.")] = None
    delta: Annotated[float | None, option_for(Drafting, "delta", "Threshold of the rule typical.")] = None

    proposer_options: Mapping[str, Any] = late_options(_proposer_options)

    def __post_init__(self) -> None:
        self._check_choice()
        for name, value in _given(self, () if self.draft_model else ("draft_device", "draft_weights")).items():
            raise InvalidOption(_flag(name), f"needs --draft-model, not {self._asked}", value)
        for name, value in _given(self, _FOR_ALL if self.plain else ()).items():
            raise InvalidOption(_flag(name), "cannot be used together with --plain", value)
        if self.proposer_options:
            self._check_options()
        self.speculation()
        self.draft_precision(Precision())

    def draft_precision(self, target: Precision) -> Precision:
        """Return how the draft model's numbers are kept: as the target's, but for what was asked for.

        Raises:
            InvalidOption: a name is unknown.
        """
        return target if self.draft_weights is None else Precision(weights=self.draft_weights)

    def speculation(self) -> SpeculationOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        given = _given(self, [entry.name for entry in fields(Drafting) if entry.name != "proposer"])
        return SpeculationOptions(proposer=self._name, **given, proposer_options=dict(self.proposer_options))

    def _check_options(self) -> None:
        """Refuse options that nobody reads of those proposers that are built; what heads are given is not known yet."""
        from gamaneh.proposers.registry import known_recipes, owners_of

        recipes = known_recipes()
        used = [recipe for recipe in recipes if self._uses(recipe)]
        for name, value in self.proposer_options.items():
            owners = owners_of(name, recipes)
            if owners and not owners_of(name, used):
                raise InvalidOption(_flag(name), f"needs {_asking_for(owners[0])}, not {self._asked}", value)
        for recipe in used:
            recipe.verify(self.proposer_options)

    def _uses(self, recipe: Recipe) -> bool:
        """Whether a proposer may be built, and its options be given."""
        if recipe.name == self._name:
            return True
        if recipe.merges:
            return self._name == AUTO
        everything = self._name in (AUTO, PORTFOLIO) and not self.only_heads
        return (everything and not recipe.given) or any(getattr(self, name) for name in recipe.given)

    def _check_choice(self) -> None:
        chosen = self._chosen
        if self.proposer is not None:
            chosen = ["proposer", *(name for name in ("lookup", "plain") if getattr(self, name))]
        if len(chosen) > 1 and not _TOGETHER.issuperset(chosen):
            rule = f"cannot be used together with {self._asked}"
            raise InvalidOption(_flag(chosen[1]), rule, getattr(self, chosen[1]))
        models = _given(self, ("draft_model", "heads"))
        if self.proposer is not None and models and _needs_no_model(self.proposer):
            for name, value in models.items():
                raise InvalidOption(_flag(name), f"cannot be used together with {self._asked}", value)
        if self.proposer == _PROPOSERS["plain"]:
            raise InvalidOption("--proposer", "must name one that guesses; plain decoding is --plain", self.proposer)

    @property
    def _chosen(self) -> list[str]:
        """Options that choose a proposer, at least one."""
        return [name for name in _PROPOSERS if getattr(self, name)] or ["lookup"]

    @property
    def only_heads(self) -> bool:
        """Nothing but heads was asked for."""
        return self.proposer is None and self._chosen == ["heads"]

    @property
    def _name(self) -> str:
        return self.proposer or ("auto" if len(self._chosen) > 1 else _PROPOSERS[self._chosen[0]])

    @property
    def _asked(self) -> str:
        """The choice as it was made on the command line."""
        return _flag(self._chosen[0]) if self.proposer is None else f"--proposer {self.proposer}"


def _needs_no_model(proposer: str) -> bool:
    """Whether a built-in proposer uses neither a draft model nor heads, nor other proposers that might."""
    from gamaneh.proposers.registry import REGISTRY

    recipe = REGISTRY.get(proposer)
    return recipe is not None and not recipe.given and not recipe.merges


def _asking_for(proposer: str) -> str:
    if proposer == PORTFOLIO:
        return f"--proposer {AUTO}"
    return _flag(proposer) if proposer in _PROPOSERS else f"--proposer {proposer}"


Temperature = Annotated[float | None, option_for(SamplingParams, "temperature", "0 is greedy.", "--temperature", "-t")]
TopK = Annotated[int | None, option_for(SamplingParams, "top_k", "Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[float | None, option_for(SamplingParams, "top_p", "Keep the most likely tokens up to this sum.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoice:
    """How tokens are chosen and when the output ends."""

    PANEL: ClassVar[str] = "Sampling"

    max_tokens: Annotated[
        int | None, option_for(SamplingParams, "max_tokens", "Most tokens to emit.", "--max-tokens", "-n")
    ] = None
    min_tokens: Annotated[int | None, option_for(SamplingParams, "min_tokens", "No end before this many tokens.")] = (
        None
    )
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: Annotated[
        float | None, option_for(SamplingParams, "min_p", "Keep tokens this likely, relative to the most likely.")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        option_for(SamplingParams, "repetition_penalty", "Above 1: fewer tokens of prompt and output again."),
    ] = None
    presence_penalty: Annotated[
        float | None, option_for(SamplingParams, "presence_penalty", "Subtracted once from tokens of the output.")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        option_for(SamplingParams, "frequency_penalty", "Subtracted for each time a token is in the output."),
    ] = None
    seed: Annotated[int | None, option_for(SamplingParams, "seed", "The same seed gives the same tokens.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")] = None
    stop_token_id: Annotated[list[int] | None, typer.Option(help="Token that ends the output; may be repeated.")] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN=NUMBER", help="Added to a token's logit; may be repeated.")
    ] = None
    bad_word: Annotated[list[str] | None, typer.Option(help="Text that must not be emitted; may be repeated.")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False

    def params(self, encode: Encode = lambda text: (0,), **more: Any) -> SamplingParams:
        """The parameters. `encode` is asked for bad words; without it everything else can be checked early.

        Raises:
            InvalidRequest: a value is out of range.
            InvalidOption: a logit bias is not TOKEN=NUMBER.
        """
        names = [field.name for field in fields(SamplingParams) if field.name in _PLAIN_SAMPLING]
        return SamplingParams(
            **_given(self, names),
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_id or ()),
            logit_bias=dict(map(_bias, self.logit_bias or ())),
            bad_words=tuple(tuple(encode(form)) for word in self.bad_word or () for form in (word, f" {word}")),
            **more,
        )


_PLAIN_SAMPLING = frozenset(
    {"max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"}
    | {"frequency_penalty", "seed", "ignore_eos"}
)
"""Options that are fields of `SamplingParams` as they are."""


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise InvalidOption("--logit-bias", "must be TOKEN=NUMBER, such as 42=-5", text) from None
