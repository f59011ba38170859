"""`gamaneh chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import LiveText, notices, output
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams

if TYPE_CHECKING:
    from rich.console import Console

    from gamaneh.cli.speaker import Speaker, Spoken, SpokenToken

MAX_TOKENS = 1024
"""Of an answer, where nothing else was asked for."""

HISTORY_LINES = 1000
FENCE = '"""'

HELP = f"""\
Write a message and press Enter. Several lines: begin with {FENCE} and end with {FENCE}, or end a line with \\.
/set NAME VALUE   set sampling (temperature, top_p, seed, max_tokens, stop, ...) or drafting
                  (proposer, draft_length, max_draft_length, rule); /set NAME takes it back, /set shows all
/why              show what was drafted in the last answer: who, how much of it was accepted, what it saved
/system TEXT      set the system prompt; without TEXT take it away
/reset            begin a new conversation; settings and system prompt stay
/save FILE        write the conversation to a JSON file
/help             show this
/quit             end, as Ctrl-D does; Ctrl-C stops an answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatModel(ModelChoice):
    """The model; none is needed where a server answers."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A Hugging Face folder or id, a .gguf file, or a name of `gamaneh models`; with --url, the server's.",
            show_default="none",
        ),
    ] = ""


@command
def hold_chat(
    model: ChatModel,
    proposer: ProposerChoice,
    sampling: SamplingChoice,
    url: Annotated[
        str | None,
        typer.Option(
            help="Talk to a server at this address; a key is taken from GAMANEH_API_KEY.", show_default="none"
        ),
    ] = None,
    system: Annotated[str, typer.Option(help="System prompt.", show_default="none")] = "",
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Colour what is guessed.", show_default="at a terminal"),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep the lines that were typed, in the cache folder.")
    ] = True,
) -> None:
    """Talk with a model; type /help for what can be done besides. Lines may be piped in."""
    if not url and not model.model:
        raise InvalidOption("--model", "must be given where --url is not", model.model)
    settings = _settings(sampling)
    if url:
        from gamaneh.cli.speaker import RemoteSpeaker

        settings |= _drafting_settings(proposer)
        speaker: Speaker = RemoteSpeaker(url, model.model)
    else:
        speaker = _local(model, proposer, sampling, settings)
    chat = Chat(speaker, settings, output(color), system=system)
    chat.run(read_messages(_lines(history)))


def _local(model: ModelChoice, proposer: ProposerChoice, sampling: SamplingChoice, settings: dict[str, Any]) -> Speaker:
    from gamaneh.cli.session import open_llm
    from gamaneh.cli.speaker import LocalSpeaker

    if not (proposer.lookup or proposer.plain or proposer.proposer):
        proposer = replace(proposer, proposer="auto")  # all are there, so that `/set proposer` can choose
    llm = open_llm(model, proposer)
    if sampling.bad_word:
        settings["bad_words"] = sampling.params(lambda word: llm.tokenizer.encode(word, special=False)).bad_words
    return LocalSpeaker(llm, model.model)


def _settings(sampling: SamplingChoice) -> dict[str, Any]:
    """What was asked for on the command line."""
    params, usual = sampling.params(), SamplingParams()
    names = [entry.name for entry in fields(SamplingParams) if entry.name != "bad_words"]
    given = {name: value for name in names if (value := getattr(params, name)) != getattr(usual, name)}
    return {"max_tokens": MAX_TOKENS, **given}


def _drafting_settings(proposer: ProposerChoice) -> dict[str, Any]:
    from gamaneh.cli.speaker import DRAFTING

    speculation = proposer.speculation()
    asked = {name: getattr(proposer, name) for name in DRAFTING if name != "proposer"}
    given = {name: value for name, value in asked.items() if value is not None}
    if proposer.proposer or proposer.plain or proposer.lookup:
        given["proposer"] = speculation.proposer
    return given


def _lines(history: bool) -> Iterator[str]:
    """Lines of standard input; at a terminal with editing and, if `history`, those of earlier days."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline

    path = _history_file() if history else None
    if path is not None and path.is_file():
        readline.read_history_file(path)
    try:
        while True:
            try:
                yield input("> ")
            except EOFError:
                return
            except KeyboardInterrupt:  # at the prompt it throws the line away, as shells do
                print()
    finally:
        if path is not None:
            readline.set_history_length(HISTORY_LINES)
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
            path.chmod(0o600)


def _history_file() -> Path:
    from gamaneh.models.fetch import cache_folder

    return cache_folder() / "chat_history"


def read_messages(lines: Iterator[str]) -> Iterator[str]:
    """Put lines together to messages: those between fences, and those that end with a backslash."""
    for line in lines:
        if line.startswith(FENCE):
            parts = [line.removeprefix(FENCE)]
            while not parts[-1].endswith(FENCE):
                following = next(lines, None)
                if following is None:
                    break
                parts.append(following)
            yield "\n".join(parts).removesuffix(FENCE).strip("\n")
            continue
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{next(lines, '')}"
        yield line


class Chat:
    """One conversation: messages are answered, lines that begin with a slash do something else."""

    def __init__(self, speaker: Speaker, settings: Mapping[str, Any], console: Console, system: str = "") -> None:
        self.speaker, self.console, self.system = speaker, console, system
        self.settings = dict(settings)
        self.turns: list[dict[str, str]] = []
        self.last: Spoken | None = None
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/set": self._set,
            "/why": self._why,
            "/system": self._set_system,
            "/reset": self._reset,
            "/save": self._save,
            "/help": lambda rest: self.console.print(HELP, markup=False),
        }

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, with the system prompt."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def run(self, messages: Iterator[str]) -> None:
        """Answer until there is nothing more, or `/quit`. A mistake is one line, and the conversation goes on."""
        notices().print(f"{self.speaker.name}: /help shows what can be done.", style="dim")
        for message in messages:
            name, _, rest = message.strip().partition(" ")
            if name in ("/quit", "/exit"):
                return
            if not name:
                continue
            try:
                if name.startswith("/") and "\n" not in name:
                    self._command(name)(rest.strip())
                else:
                    self._answer(message)
            except GamanehError as error:
                notices().print(f"gamaneh: {error}", markup=False)

    def _command(self, name: str) -> Callable[[str], None]:
        if name not in self._commands:
            raise GamanehError(f"command must be one of {', '.join(self._commands)}, /quit, got {name}")
        return self._commands[name]

    def _answer(self, message: str) -> None:
        from gamaneh.cli.generate import Meter
        from gamaneh.cli.speaker import Spoken

        self.turns.append({"role": "user", "content": message})
        spoken, meter = Spoken(), Meter()
        steps = self.speaker.answer(self.messages, self.settings, spoken)
        try:
            with LiveText(self.console, meter.live) as live:
                for told in steps:
                    meter.count(token.origin for token in told)
                    live.add("".join(token.text for token in told))
        except KeyboardInterrupt:
            notices().print("Stopped.", style="dim")
        except GamanehError:
            if not spoken.text:
                self.turns.pop()  # what was refused can be said again in other words
                raise
            self._keep(spoken)
            raise
        finally:
            steps.close()  # type: ignore[attr-defined]
        self._keep(spoken)
        notices().print(_summary(spoken, meter), style="dim")

    def _keep(self, spoken: Spoken) -> None:
        self.turns.append({"role": "assistant", "content": spoken.text})
        self.last = spoken

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if not name:
            shown = "\n".join(f"{key} = {json.dumps(each, ensure_ascii=False)}" for key, each in self.settings.items())
            self.console.print(shown, markup=False)
            return
        name = name.replace("-", "_")
        changed = {key: each for key, each in self.settings.items() if key != name}
        if value:
            changed[name] = parse_setting(name, value.strip())
        elif name not in self.settings:
            parse_setting(name, "0")
        self.speaker.check(changed)
        self.settings = changed

    def _set_system(self, rest: str) -> None:
        self.system = rest

    def _reset(self, rest: str) -> None:
        self.turns, self.last = [], None

    def _save(self, rest: str) -> None:
        if not rest:
            raise GamanehError("/save must name a file")
        text = json.dumps({"model": self.speaker.name, "messages": self.messages}, ensure_ascii=False, indent=2)
        try:
            Path(rest).expanduser().write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise GamanehError(f"{rest} cannot be written: {error.strerror}") from error

    def _why(self, rest: str) -> None:
        if self.last is None:
            raise GamanehError("/why needs an answer to explain")
        from gamaneh.cli.painting import paint_drafters

        if self.last.tokens:
            colored = self.console.is_terminal and not self.console.no_color
            self.console.print(paint_drafters(_named(self.last), colored))
        self.console.print(explanation(self.last), markup=False)


def _named(spoken: Spoken) -> list[tuple[str, str]]:
    """Texts of tokens, each with who drafted it if it was drafted; the only one that drafted is the one."""
    only = next(iter(spoken.by_proposer), "draft") if len(spoken.by_proposer) == 1 else "draft"
    return [(token.text, _drafter(token, only)) for token in spoken.tokens]


def _drafter(token: SpokenToken, otherwise: str) -> str:
    from gamaneh.core import Origin

    return (token.drafter or otherwise) if token.origin is Origin.ACCEPTED else ""


def parse_setting(name: str, text: str) -> Any:
    """The value of a setting, as it was typed.

    Raises:
        InvalidOption: there is no such setting, or it takes another kind of value.
    """
    if name == "stop":
        return (text.replace("\\n", "\n"),)
    if name in _TEXTS:
        return text
    if name == "ignore_eos":
        if text not in ("true", "false"):
            raise InvalidOption(name, "must be true or false", text)
        return text == "true"
    if name not in _WHOLE | _NUMBERS:
        known = ", ".join(sorted({*_WHOLE, *_NUMBERS, *_TEXTS, "stop", "ignore_eos"}))
        raise InvalidOption("setting", f"must be one of {known}", name)
    if name == "draft_length" and text == "adaptive":
        return None
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        raise InvalidOption(name, "must be a whole number" if name in _WHOLE else "must be a number", text) from None


_WHOLE = frozenset({"max_tokens", "min_tokens", "top_k", "seed", "draft_length", "max_draft_length"})
_NUMBERS = frozenset(
    {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
    | {"epsilon", "delta"}
)
_TEXTS = frozenset({"proposer", "rule", "draft_sampling"})


def _summary(spoken: Spoken, meter: Any) -> str:
    words = [meter.summary()]
    if spoken.cached:
        words.append(f"{spoken.cached} of {spoken.prompt_tokens} prompt tokens from the cache")
    if spoken.finish_reason == "length":
        words.append("cut off at the limit of tokens")
    return "; ".join(words)


def explanation(spoken: Spoken) -> str:
    """Who drafted how much of an answer, what was accepted, and what it saved."""
    if not spoken.by_proposer:
        return "Nothing was drafted."
    lines = [
        f"{name}: {accepted} of {drafted} candidates accepted"
        for name, (drafted, accepted) in spoken.by_proposer.items()
    ]
    if spoken.rounds:
        lines.append(
            f"{len(spoken.tokens)} tokens in {spoken.rounds} rounds; acceptance {spoken.accepted / spoken.drafted:.0%}"
        )
    if spoken.plain_seconds is not None:
        saved = spoken.plain_seconds - spoken.round_seconds
        word = "saved" if saved >= 0 else "lost"
        lines.append(
            f"rounds took {spoken.round_seconds:.2f} s, plain about {spoken.plain_seconds:.2f} s: "
            f"about {abs(saved):.2f} s {word}"
        )
    return "\n".join(lines)
