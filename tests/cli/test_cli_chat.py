"""`gamaneh chat`: lines in, answers out, by a scripted model in the process and by a server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner, Result

from gamaneh.cli import session, speaker
from gamaneh.cli.main import app
from gamaneh.cli.painting import paint_drafters
from gamaneh.cli.speaker import RemoteSpeaker
from gamaneh.cli.talk import Chat, read_messages
from gamaneh.engine.llm import LLM
from gamaneh.options import SpeculationOptions
from gamaneh.testing import EOS_ID, ByteTokenizer, ScriptedProposer, ScriptedRunner, fixed_output, scripted_engine

VOCAB = 260
ANSWERS = ("Hello, سلام!", "And again.")
HTTP_CHUNKS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
    {
        "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}],
        "gamaneh": {"tokens": [{"text": "Hi", "origin": "accepted", "logprob": -0.1, "refused": []}]},
    },
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
        "gamaneh": {
            "speculation": {
                "rounds": 1,
                "exact": True,
                "proposers": {"lookup": {"drafted": 2, "accepted": 1}},
                "seconds": {"draft": 0.1, "verify": 0.9},
                "estimated_speedup": 1.5,
            }
        },
    },
)


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates, which remembers what it was given."""

    def __init__(self) -> None:
        self.heard: list[list[Mapping[str, Any]]] = []

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        self.heard.append(list(messages))
        return self.encode("".join(f"{each['role']}: {each['content']}\n" for each in messages))


class Scripted(LLM):
    """An `LLM` around a scripted engine, which gives its answers one after the other."""

    def __init__(self, *, accuracy: float = 0.8, **engine: Any) -> None:
        self.words = ChatBytes()
        self.asked: list[int] = []
        self.speculation = SpeculationOptions(proposer="scripted", draft_length=4)
        proposer = ScriptedProposer(self._script, VOCAB, accuracy=accuracy)
        runner = ScriptedRunner(self._script, VOCAB)
        self.engine = scripted_engine(runner, self.words, proposer=proposer, speculation=self.speculation, **engine)
        self._open = {}
        self.engine.observers.append(
            lambda report: self._open[report.request_id].reports.append(report)  # as `LLM` does
        )

    @property
    def tokenizer(self) -> Any:
        return self.words

    def _script(self, history: Sequence[int]) -> Tensor:
        turn = len(self.words.heard) - 1
        prompt = self.words.encode("".join(f"{m['role']}: {m['content']}\n" for m in self.words.heard[turn]))
        answer = [*ANSWERS[turn % len(ANSWERS)].encode(), EOS_ID]
        return fixed_output(answer, VOCAB, len(prompt))(history)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    llm = Scripted()
    monkeypatch.setattr(session, "open_llm", lambda model, proposer: llm)
    return llm


def chat(*lines: str, options: Sequence[str] = ("--model", "scripted"), status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["chat", *options], input="\n".join(lines) + "\n", catch_exceptions=False)
    assert result.exit_code == status, result.stderr
    return result


def served(handle: Any) -> RemoteSpeaker:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "far", "proposers": ["lookup"]}]})
        return handle(request)  # type: ignore[no-any-return]

    return RemoteSpeaker("http://far.invalid/v1", transport=httpx.MockTransport(answer))


def streamed(chunks: Sequence[Mapping[str, Any]]) -> httpx.Response:
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def test_answers_alone_are_on_standard_output(llm: Scripted) -> None:
    assert chat("Hi", "More").stdout == "".join(f"{answer}\n" for answer in ANSWERS)


def test_next_message_carries_the_conversation(llm: Scripted) -> None:
    chat("/system Be brief.", "Hi", "More")
    roles = [("system", "Be brief."), ("user", "Hi"), ("assistant", ANSWERS[0]), ("user", "More")]
    assert [(each["role"], each["content"]) for each in llm.words.heard[1]] == roles


def test_second_turn_finds_the_first_in_the_prefix_cache(llm: Scripted) -> None:
    assert "prompt tokens from the cache" in chat("A message of some length", "More").stderr


def test_reset_forgets_the_turns_and_keeps_the_system_prompt(llm: Scripted) -> None:
    chat("/system Be brief.", "Hi", "/reset", "More")
    assert [each["content"] for each in llm.words.heard[1]] == ["Be brief.", "More"]


def test_guessing_changes_no_token(llm: Scripted) -> None:
    guessed = chat("Hi", "More").stdout
    assert chat("/set proposer none", "/reset", "Hi", "More").stdout == guessed


def test_why_marks_tokens_by_who_drafted_them(llm: Scripted) -> None:
    said = chat("Hi", "/why").stdout
    assert "scripted[" in said
    assert "candidates accepted" in said
    marked = said.splitlines()[1]
    assert marked.replace("scripted[", "").replace("]", "") == ANSWERS[0]


def test_why_of_a_plain_answer_says_that_nothing_was_drafted(llm: Scripted) -> None:
    assert chat("/set proposer none", "Hi", "/why").stdout.endswith("Nothing was drafted.\n")


def test_why_needs_an_answer(llm: Scripted) -> None:
    assert "/why needs an answer to explain" in chat("/why").stderr


def test_set_cuts_the_next_answer(llm: Scripted) -> None:
    result = chat("/set max_tokens 5", "Hi")
    assert result.stdout == "Hello\n"
    assert "cut off at the limit of tokens" in result.stderr


def test_set_without_a_value_takes_it_back(llm: Scripted) -> None:
    assert chat("/set top_k 5", "/set top_k", "/set").stdout == "max_tokens = 1024\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature hot", "temperature must be a number, got 'hot'"),
        ("/set top_k 1.5", "top_k must be a whole number, got '1.5'"),
        ("/set temperature -1", "temperature must be"),
        ("/set proposer ghost", "proposer must be one of none, auto, scripted"),
        ("/set colour red", "setting must be one of "),
        ("/set ignore_eos maybe", "ignore_eos must be true or false"),
        ("/dance", "command must be one of /set"),
        ("/save", "/save must name a file"),
        ("/save /no/such/folder/file", "cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_the_conversation_goes_on(llm: Scripted, line: str, words: str) -> None:
    result = chat(line, "Hi")
    assert f"gamaneh: {words}" in result.stderr or words in result.stderr
    assert result.stdout == f"{ANSWERS[0]}\n"


def test_wrong_value_leaves_the_setting_as_it_was(llm: Scripted) -> None:
    assert "top_k = 5" in chat("/set top_k 5", "/set top_k -3", "/set").stdout


def test_fenced_and_continued_lines_are_one_message() -> None:
    lines = iter(["one\\", "two", '"""', "three", "", '/four"""', "five"])
    assert list(read_messages(lines)) == ["one\ntwo", "three\n\n/four", "five"]


def test_fence_that_is_never_closed_ends_with_the_input() -> None:
    assert list(read_messages(iter(['"""one', "two"]))) == ["one\ntwo"]


def test_save_writes_the_conversation(llm: Scripted, tmp_path: Path) -> None:
    chat("Hi", f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text()) == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ANSWERS[0]}],
    }


def test_help_names_every_command(llm: Scripted) -> None:
    shown = chat("/help").stdout
    assert all(name in shown for name in ("/set", "/why", "/system", "/reset", "/save", "/help", "/quit"))


def test_nothing_is_read_after_quit(llm: Scripted) -> None:
    assert chat("/quit", "Hi").stdout == ""


def test_interrupted_answer_is_kept_as_far_as_it_came(llm: Scripted) -> None:
    class Interrupted:
        name = "far"

        def check(self, settings: Any) -> None: ...

        def answer(self, messages: Any, settings: Any, spoken: speaker.Spoken) -> Iterator[list[speaker.SpokenToken]]:
            spoken.text = "Half"
            yield [speaker.SpokenToken("Half", speaker.Origin.PLAIN)]
            raise KeyboardInterrupt

    talk = Chat(Interrupted(), {}, Console(file=StringIO()))
    talk.run(iter(["Hi"]))
    assert talk.turns == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Half"}]


def test_model_or_server_must_be_named() -> None:
    assert "--model must be given where --url is not" in chat("Hi", options=(), status=2).stderr


def test_server_is_asked_with_what_was_set() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return streamed(HTTP_CHUNKS)

    talk = Chat(served(answer), {"top_k": 5}, Console(file=StringIO()))
    talk.run(iter(["/set draft_length 3", "Hi"]))
    assert bodies == [
        {
            "model": "far",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "top_k": 5,
            "stream_options": {"include_usage": True},
            "speculation": {"tokens": True, "metrics": True, "draft_length": 3},
        }
    ]


def test_why_of_a_server_tells_what_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=200, soft_wrap=True)
    Chat(served(lambda request: streamed(HTTP_CHUNKS)), {}, console).run(iter(["Hi", "/why"]))
    said = capsys.readouterr().out
    assert "lookup[Hi]" in said
    assert "lookup: 1 of 2 candidates accepted" in said
    assert "rounds took 1.00 s, plain about 1.50 s: about 0.50 s saved" in said


def test_refusal_of_a_server_is_told_and_the_message_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Chat(
        served(lambda request: httpx.Response(429, json={"error": {"message": "all is taken"}})),
        {},
        Console(file=StringIO()),
    )
    talk.run(iter(["Hi"]))
    assert talk.turns == []
    assert "the server answered 429: all is taken" in capsys.readouterr().err


def test_server_that_is_not_there_is_one_line() -> None:
    result = chat("Hi", options=("--url", "http://127.0.0.1:9"), status=2)
    assert "the server at http://127.0.0.1:9 cannot be reached" in result.stderr
    assert result.stderr.count("\n") == 1


def test_colours_tell_drafters_apart_and_leave_the_text_alone() -> None:
    painted = paint_drafters([("a", ""), ("b", "lookup"), ("c", "suffix")], colored=True)
    assert painted.plain.splitlines()[0] == "abc"
    assert {str(span.style) for span in painted.spans} >= {"underline green", "underline cyan"}


def test_terminal_shows_a_live_line_and_leaves_the_text() -> None:
    program = (
        "from rich.text import Text\n"
        "from gamaneh.cli.terminal import LiveText, output\n"
        "with LiveText(output(), lambda: '42 tokens/s') as live:\n"
        "    live.add('first\\nsec')\n"
        "    live.add('ond')\n"
    )
    assert _at_a_terminal(program).count("42 tokens/s") >= 1


def _at_a_terminal(program: str) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, env=environment) as process:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # the other side is closed at the end
            while part := os.read(ours, 4096):
                written += part
        assert process.wait() == 0
    os.close(ours)
    return written.decode()
