"""Writes docs/api.md, docs/cli.md and docs/bench.schema.json from the code; tests hold them against it."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import typer

import gamaneh
import gamaneh.testing
from gamaneh.bench.result import schema
from gamaneh.cli.main import app
from gamaneh.proposers.recipe import Recipe
from gamaneh.proposers.registry import REGISTRY

FOLDER = Path(__file__).parent

API_GROUPS: Mapping[str, Sequence[str]] = {
    "Generating": ("LLM", "Generation", "assemble", "Engine", "Request"),
    "Options": ("SamplingParams", "Drafting", "SpeculationOptions", "EngineOptions", "Precision"),
    "What comes back": ("StepOutput", "TokenLogprob", "Origin", "FinishReason", "StepReport", "SpeculationStats"),
    "Structured output": ("Grammar", "Frame"),
    "Proposers and rules": (
        "Draft",
        "Verdict",
        "Proposer",
        "ProposalRow",
        "Needs",
        "Rule",
        "Recipe",
        "ProposerOption",
        "Ingredients",
        "ReadyModel",
    ),
    "Errors": (
        "GamanehError",
        "InvalidRequest",
        "BadLogits",
        "InvalidOption",
        "ModelError",
        "UnsupportedModel",
        "CorruptModel",
        "TokenizerMismatch",
        "OutOfMemory",
    ),
    "Version": ("__version__",),
}

TESTING_GROUPS: Mapping[str, Sequence[str]] = {
    "Scripted targets": (
        "Script",
        "constant",
        "fixed_output",
        "hashed",
        "next_token_table",
        "ScriptedRunner",
        "ScriptedProposer",
        "scripted_engine",
    ),
    "Tiny decoders": ("TINY_CONFIGS", "tiny_decoder", "tiny_model", "tiny_heads", "tiny_weights"),
    "Tokenizers": ("ByteTokenizer", "BOS_ID", "EOS_ID", "PAD_ID", "BYTE_VOCAB", "PieceTokenizer"),
    "Simulated time": ("SimulatedClock", "TimedProposer", "TimedRunner"),
}

VALUES: Mapping[str, str] = {
    "__version__": "Version of the installed package, as text.",
    "Script": "`Callable[[Sequence[int]], Tensor]`: history of token ids -> logits `[vocab]` of the next token.",
    "TINY_CONFIGS": "One small configuration per family, by name: {names}.",
    "BOS_ID": "Id of the begin token: {value}.",
    "EOS_ID": "Id of the end token: {value}.",
    "PAD_ID": "Id of the padding token: {value}.",
    "BYTE_VOCAB": "Ids of the byte tokenizer: {value}.",
}
"""What has no docstring of its own."""

_TRAIN = "gamaneh train {0} -m smollm2-135m-instruct -d prompts.jsonl -o my-{0} --held-out 8 --answer-tokens 64"

EXAMPLES: Mapping[str, str] = {
    "pull": "gamaneh pull smollm2-135m-instruct",
    "models": "gamaneh models --json",
    "generate": "gamaneh generate --model smollm2-135m-instruct --chat -n 64 'Name three uses of a rope.'",
    "chat": "gamaneh chat --model smollm2-135m-instruct",
    "inspect": "gamaneh inspect smollm2-135m-instruct/medusa --json",
    "serve": "gamaneh serve --model smollm2-135m-instruct --port 8000",
    "compare": "gamaneh compare --model smollm2-135m-instruct --lookup --limit 4 -n 48 --json",
    "bench": "gamaneh bench --model smollm2-135m-instruct --lookup --limit 4 --rounds 1 -n 24 --out run.json",
    "audit": "gamaneh audit --model qwen2.5-coder-1.5b-instruct --draft-model qwen2.5-coder-0.5b-instruct "
    "--limit 2 -n 16 --samples 24 --sample-tokens 6",
    "advise": "gamaneh advise --model smollm2-135m-instruct --quick --limit 2 -n 16 --batch 1 --record traffic.jsonl",
    "what-if": "gamaneh what-if traffic.jsonl --model smollm2-135m-instruct --acceptance 0.8",
    "report": "gamaneh report run.json --html run.html",
    "demo": "gamaneh demo --max-tokens 48",
    "train prompts": "gamaneh train prompts --category chat -n 40 -o prompts.jsonl",
    "train medusa": _TRAIN.format("medusa"),
    "train mtp": _TRAIN.format("mtp"),
    "train eagle": _TRAIN.format("eagle"),
    "train block": _TRAIN.format("block"),
    "train early-exit": _TRAIN.format("early-exit"),
    "train distill": _TRAIN.format("distill"),
}

_NOTE = "<!-- Written by docs/reference.py from the code. Change the docstrings, then run it again. -->"
_ENTRY = re.compile(r"^([\w, ]+): (.*)$")


def api_reference() -> str:
    """The whole of docs/api.md."""
    parts = [
        "# Python reference",
        _NOTE,
        "Everything here is imported from `gamaneh` or from `gamaneh.testing`. "
        "Other modules may change between versions.",
        *_groups("gamaneh", gamaneh, API_GROUPS),
        *_groups("gamaneh.testing", gamaneh.testing, TESTING_GROUPS),
    ]
    return "\n\n".join(parts) + "\n"


def cli_reference() -> str:
    """The whole of docs/cli.md."""
    commands = dict(_commands("", typer.main.get_group(app)))
    shared = _shared(commands.values())
    parts = [
        "# Command line",
        _NOTE,
        "Results go to standard output, progress and notices to standard error. With `--json` the last line of "
        "standard output is one JSON object; its keys are listed in [metrics.md](metrics.md). "
        "Exit code 0: done. Exit code 2: something in the request, an option or a model is wrong, and one line on "
        "standard error says what.",
        "Options of several commands stand once, in the tables of [Shared options](#shared-options).",
        *(part for name, command in commands.items() for part in _command(name, command, shared)),
        *_shared_options(shared),
        *proposers_reference(REGISTRY.values()),
    ]
    return "\n\n".join(parts) + "\n"


def proposers_reference(recipes: Iterable[Recipe]) -> Iterator[str]:
    """What proposers say of themselves: the end of docs/cli.md."""
    yield "## Proposers and their options"
    yield (
        "In Python they are given as `SpeculationOptions(proposer_options={...})`, with `_` for `-`. "
        "How to write one: [proposers.md](proposers.md)."
    )
    rows = [f"| `{recipe.name}` | {_escape(recipe.about)} | {_names(recipe)} |" for recipe in recipes]
    yield "\n".join(["| proposer | how it drafts | options |", "|---|---|---|", *rows])


def _names(recipe: Recipe) -> str:
    return ", ".join(f"`{option.name}`" for option in recipe.options)


def _groups(title: str, module: Any, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"## {title}"
    for heading, names in groups.items():
        yield f"### {heading}"
        for name in names:
            yield from _entry(name, getattr(module, name))


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"#### `{name}`"
    if name in VALUES:
        yield VALUES[name].format(value=value, names=", ".join(f"`{key}`" for key in getattr(value, "keys", list)()))
    elif inspect.isfunction(value):
        yield from _function(name, value)
    elif issubclass(value, Exception):
        yield from _exception(value)
    elif issubclass(value, StrEnum):
        yield from [_summary(value)] if inspect.getdoc(value) != inspect.getdoc(StrEnum) else []
        yield "\n".join(f"- `{member.name}` = `{member.value!r}`" for member in value)
    else:
        yield from _class(name, value)


def _exception(kind: type[Exception]) -> Iterator[str]:
    yield f"Derived from `{kind.__mro__[1].__name__}`. {inspect.getdoc(kind)}"


def _class(name: str, kind: type[Any]) -> Iterator[str]:
    text, sections = _sections(inspect.getdoc(kind) or "")
    yield from text
    if is_dataclass(kind):
        yield _field_table(kind, sections.pop("Args", {}))
    elif getattr(kind, "_is_protocol", False):
        yield from _attributes(kind)
    else:
        yield _signature(name, kind)
    yield from _lists(sections)
    yield from _members(kind)


def _field_table(kind: type[Any], meanings: Mapping[str, str]) -> str:
    rows = [_field_row(field, meanings.get(field.name, "")) for field in fields(kind)]
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _field_row(field: Field[Any], meaning: str) -> str:
    return f"| `{field.name}` | `{_escape(str(field.type))}` | {_default(field)} | {_escape(meaning)} |"


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"`{field.default!r}`" if not callable(field.default) else "none"
    return f"`{field.default_factory()!r}`" if field.default_factory is not MISSING else "required"


def _attributes(kind: type[Any]) -> Iterator[str]:
    named = inspect.get_annotations(kind)
    if named:
        yield "Attributes: " + ", ".join(f"`{name}: {annotation}`" for name, annotation in named.items()) + "."


def _members(kind: type[Any]) -> Iterator[str]:
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"**`.{name}`** (property)" + (f": {_summary(member)}" if member.__doc__ else "")
        elif isinstance(member, classmethod):
            yield from _function(f"{kind.__name__}.{name}", member.__func__)
        elif inspect.isfunction(member):
            yield from _function(f".{name}", member)


def _function(name: str, function: Any) -> Iterator[str]:
    text, sections = _sections(inspect.getdoc(function) or "")
    yield _signature(name, function)
    yield from text
    yield from _lists(sections)


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    arguments = list(_arguments(signature.parameters.values()))
    plain = signature.return_annotation in (inspect.Signature.empty, None, "None")
    result = "" if plain else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) > 100:
        lines = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{name}(\n{lines}){result}"
    return f"```text\n{line}\n```"


def _arguments(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        yield f"{parameter.name}: {_annotation(parameter.annotation)}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _sections(doc: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Paragraphs of a docstring, and its `Args`, `Returns`, `Raises` as name -> text."""
    head, *parts = re.split(r"^(Args|Returns|Raises):\n", doc, flags=re.MULTILINE)
    named = {title: _entries(textwrap.dedent(body)) for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return [_paragraph(part) for part in head.strip().split("\n\n") if part], named


def _paragraph(text: str) -> str:
    """Indented text is a formula or a table and keeps its lines."""
    if text.startswith("    "):
        return f"```text\n{textwrap.dedent(text)}\n```"
    return " ".join(text.split())


def _entries(body: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    names = [""]
    for line in body.strip().splitlines():
        match = None if line.startswith(" ") else _ENTRY.match(line)
        if match:
            names = match[1].split(", ")
            entries |= dict.fromkeys(names, match[2])
        else:
            entries |= {name: f"{entries.get(name, '')} {line.strip()}".strip() for name in names}
    return entries


def _lists(sections: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for title, entries in sections.items():
        rows = [f"- `{name}`: {text}" if name else text for name, text in entries.items()]
        yield f"*{title}*\n\n" + "\n".join(rows)


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _commands(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    """All commands with their full names; those of a group stand in its place."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(f"{prefix}{name} ", command)
        else:
            yield f"{prefix}{name}", command


def _command(name: str, command: Any, shared: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Its own options as a table; of shared ones, which."""
    yield f"## `gamaneh {name}`"
    yield " ".join((command.help or "").split())
    yield f"```sh\n{EXAMPLES[name]}\n```"
    rows = [row for _, row in _options(command)]
    own = [row for row in rows if not any(row in others for others in shared.values())]
    if own:
        yield _table(own)
    taken = {panel: [row for row in others if row in rows] for panel, others in shared.items()}
    told = [_taken(panel, found, shared[panel]) for panel, found in taken.items() if found]
    if told:
        yield f"Shared options: {'; '.join(told)}."


def _taken(panel: str, rows: Sequence[str], whole: Sequence[str]) -> str:
    link = f"[{panel}](#{panel.lower().replace(' ', '-')})"
    return link if len(rows) == len(whole) else f"{link}: {', '.join(map(_flags, rows))}"


def _flags(row: str) -> str:
    return row.split(" | ")[0].removeprefix("| ").split(", ")[0]


def _options(command: Any) -> Iterator[tuple[str, str]]:
    """The panel of each option and its row of a table."""
    for parameter in [*command.params, *command.late]:
        yield getattr(parameter, "rich_help_panel", None) or "General", _option(parameter)


def _shared(commands: Iterable[Any]) -> dict[str, list[str]]:
    """Rows of options that two commands or more have, by panel."""
    counts = Counter(entry for command in commands for entry in dict.fromkeys(_options(command)))
    found: dict[str, list[str]] = {}
    for (panel, row), count in counts.items():
        if count > 1:
            found.setdefault(panel, []).append(row)
    return found


def _shared_options(shared: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "## Shared options"
    for panel, rows in shared.items():
        yield f"### {panel}"
        yield _table(rows)


def _table(rows: Sequence[str]) -> str:
    return "\n".join(["| option | value | default | meaning |", "|---|---|---|---|", *rows])


def _option(parameter: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        return f"| `{parameter.metavar}` | text | required | {_escape(parameter.help or '')} |"
    kind = "" if parameter.is_flag else (parameter.metavar or _kind(parameter.type_descriptor.annotation))
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    shown = "required" if parameter.required else _shown(default)
    return f"| {flags} | {_escape(kind)} | {_escape(shown)} | {_escape(parameter.help or '')} |"


def _kind(annotation: Any) -> str:
    names = {str: "text", int: "whole number", float: "number", Path: "path"}
    inner = [one for one in (annotation, *get_args(annotation)) if one in names]
    return names[inner[0]]


def _shown(default: Any) -> str:
    return {None: "none", False: "off", True: "on"}.get(default, str(default))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write all files."""
    (FOLDER / "api.md").write_text(api_reference(), encoding="utf-8")
    (FOLDER / "cli.md").write_text(cli_reference(), encoding="utf-8")
    (FOLDER / "bench.schema.json").write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
