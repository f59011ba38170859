"""Options that several commands share, each declared once. Defaults are those of the options objects behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from gamaneh.errors import InvalidOption
from gamaneh.options import (
    BRIDGES,
    NUMBERS,
    RULE_NAMES,
    WEIGHTS,
    EngineOptions,
    Precision,
    SamplingParams,
    SpeculationOptions,
)

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, without special tokens."""

ChatFlag = Annotated[
    bool | None,
    typer.Option("--chat/--no-chat", help="Put prompts into the model's chat template.", show_default="if it has one"),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Put one JSON object on the last line of standard output.")]


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

_ALL_OF_THEM = ("auto", "portfolio")
"""Names that ask for every proposer that there is."""

_WITHOUT_MODEL = ("lookup", "suffix", "grammar")
"""Proposers that are always there, and use no draft model."""

_BELONGS_TO: Mapping[str, tuple[str, ...]] = {
    "draft_device": ("draft_model",),
    "draft_weights": ("draft_model",),
    "draft_sampling": ("draft_model", "heads", "early_exit"),
    "min_confidence": ("draft_model", "heads", "early_exit"),
    "draft_branching": ("draft_model", "heads"),
    "bridge": ("draft_model",),
    "max_ngram": ("lookup",),
    "min_ngram": ("lookup",),
    "exit_layer": ("early_exit",),
    "suffix_depth": ("suffix",),
    "suffix_share": ("suffix",),
    "suffix_tokens": ("suffix",),
    "suffix_store": ("suffix",),
    "merge": ("auto",),
}
"""Option -> proposers that read it; it is refused where none of them is in use."""

_FOR_ALL = ("draft_length", "max_draft_length", "rule", "epsilon", "delta")
"""Options of whatever guesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerChoice:
    """What guesses, how far, and what decides.

    Raises:
        InvalidOption: two options exclude each other, or a value is out of range.
    """

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
        int | None, option_for(SpeculationOptions, "max_draft_length", "Longest draft when the length adapts.")
    ] = None
    rule: Annotated[
        str | None, option_for(SpeculationOptions, "rule", f"How guesses are accepted: {', '.join(RULE_NAMES)}.")
    ] = None
    draft_sampling: Annotated[
        str | None,
        option_for(SpeculationOptions, "draft_sampling", "What drafts samples as the request, or greedily."),
    ] = None
    min_confidence: Annotated[
        float | None,
        option_for(SpeculationOptions, "min_confidence", "A draft model or head stops below this probability."),
    ] = None
    draft_branching: Annotated[
        int | None, option_for(SpeculationOptions, "draft_branching", "Candidates on each level of drafts that branch.")
    ] = None
    bridge: Annotated[
        str | None,
        option_for(SpeculationOptions, "bridge", f"To a draft model with other tokens: {', '.join(BRIDGES)}."),
    ] = None
    max_ngram: Annotated[
        int | None, option_for(SpeculationOptions, "max_ngram", "Longest text that lookup matches.")
    ] = None
    min_ngram: Annotated[
        int | None, option_for(SpeculationOptions, "min_ngram", "Shortest text that lookup matches.")
    ] = None
    exit_layer: Annotated[
        int | None,
        typer.Option(help="Layers of the target that early_exit drafts with.", show_default="measured"),
    ] = None
    suffix_depth: Annotated[
        int | None, option_for(SpeculationOptions, "suffix_depth", "Longest text that suffix matches.")
    ] = None
    suffix_share: Annotated[
        float | None,
        option_for(SpeculationOptions, "suffix_share", "A draft of suffix ends where it is less frequent than this."),
    ] = None
    suffix_tokens: Annotated[
        int | None, option_for(SpeculationOptions, "suffix_tokens", "Tokens of earlier answers that suffix keeps.")
    ] = None
    suffix_store: Annotated[
        str | None, option_for(SpeculationOptions, "suffix_store", "File that suffix keeps earlier answers in.")
    ] = None
    merge: Annotated[
        bool | None,
        typer.Option("--merge/--no-merge", help="auto may merge drafts of several proposers.", show_default="off"),
    ] = None
    epsilon: Annotated[float | None, option_for(SpeculationOptions, "epsilon", "Threshold of the rule typical.")] = None
    delta: Annotated[float | None, option_for(SpeculationOptions, "delta", "Threshold of the rule typical.")] = None

    def __post_init__(self) -> None:
        self._check_choice()
        for name, value in _given(self, _BELONGS_TO).items():
            if self._in_use.isdisjoint(_BELONGS_TO[name]):
                raise InvalidOption(_flag(name), f"needs {_asking_for(_BELONGS_TO[name][0])}, not {self._asked}", value)
        for name, value in _given(self, _FOR_ALL if self.plain else ()).items():
            raise InvalidOption(_flag(name), "cannot be used together with --plain", value)
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
        names = [field.name for field in fields(SpeculationOptions) if field.name != "proposer"]
        return SpeculationOptions(proposer=self._name, **_given(self, names))

    def _check_choice(self) -> None:
        chosen = self._chosen
        if self.proposer is not None:
            chosen = ["proposer", *(name for name in ("lookup", "plain") if getattr(self, name))]
        if len(chosen) > 1 and not _TOGETHER.issuperset(chosen):
            rule = f"cannot be used together with {self._asked}"
            raise InvalidOption(_flag(chosen[1]), rule, getattr(self, chosen[1]))
        if self.proposer in _WITHOUT_MODEL:
            for name, value in _given(self, ("draft_model", "heads")).items():
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

    @property
    def _in_use(self) -> set[str]:
        """Proposers that are built whose options can be given."""
        given = {name for name in ("draft_model", "heads") if getattr(self, name)}
        everything = self._name in _ALL_OF_THEM and not self.only_heads
        return {self._name, *given, *(_WITHOUT_MODEL if everything else ())}


def _asking_for(proposer: str) -> str:
    return _flag(proposer) if proposer in _PROPOSERS else f"--proposer {proposer}"


Temperature = Annotated[float | None, option_for(SamplingParams, "temperature", "0 is greedy.", "--temperature", "-t")]
TopK = Annotated[int | None, option_for(SamplingParams, "top_k", "Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[float | None, option_for(SamplingParams, "top_p", "Keep the most likely tokens up to this sum.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingChoice:
    """How tokens are chosen and when the output ends."""

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
