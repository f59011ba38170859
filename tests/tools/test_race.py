"""The race: what is asked, how ratios are taken, and servers that start, fail and stop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import httpx
import pytest

from gamaneh.bench.prompt_set import load_set
from gamaneh.bench.record import Ask, Delivery, Ending
from gamaneh.errors import GamanehError, InvalidOption
from tools.race import __main__ as program
from tools.race import laps as laps_module
from tools.race.contestants import MODES, Files, Server, Way, our_command, their_command
from tools.race.laps import BATCH, DECODE, KINDS, PROMPT, QUICK, Course, Lap, Track, of_kind
from tools.race.outcome import aims_of, describe, groups_of, growth, step_times
from tools.race.record import Setting, command_line, document_of

FILES = Files(Path("target.gguf"), Path("draft.gguf"))


def lap(way: str, speed: float, case: str = "a", *, event: str = DECODE, group: str = "code", number: int = 0) -> Lap:
    return Lap(event, group, 0.0, case, number, way, speed, ttft=1.0 / speed, tokens=48, prompt_tokens=100)


class TestOutcome:
    LAPS = (
        *(lap("ours plain", speed, case) for case, speed in {"a": 20.0, "b": 40.0}.items()),
        *(lap("ours auto", speed, case) for case, speed in {"a": 40.0, "b": 80.0}.items()),
        *(lap("theirs plain", speed, case) for case, speed in {"a": 10.0, "b": 10.0}.items()),
        *(lap("theirs draft", speed, case) for case, speed in {"a": 5.0, "b": 15.0}.items()),
        *(lap("theirs ngram-mod", speed, case) for case, speed in {"a": 20.0, "b": 20.0}.items()),
    )

    def test_ratios_are_geometric_means_over_the_cases(self) -> None:
        group = groups_of(self.LAPS)[0]
        assert group.plain is not None and group.our_gain is not None and group.ttft is not None
        assert group.plain.value == pytest.approx((2.0 * 4.0) ** 0.5)
        assert group.plain.low == pytest.approx(2.0) and group.plain.high == pytest.approx(4.0)
        assert group.our_gain.value == group.our_gain.low == group.our_gain.high == pytest.approx(2.0)
        assert group.ttft.value == pytest.approx((2.0 * 4.0) ** 0.5)

    def test_their_best_is_their_fastest_way_in_the_group(self) -> None:
        group = groups_of(self.LAPS)[0]
        assert group.their_best == "theirs ngram-mod"
        assert group.best is not None and group.best.value == pytest.approx((2.0 * 4.0) ** 0.5)
        assert group.their_gain is not None and group.their_gain.value == pytest.approx(2.0)

    def test_their_plain_may_be_their_best_and_has_no_gain(self) -> None:
        group = groups_of([one for one in self.LAPS if one.way != "theirs ngram-mod"])[0]
        assert (group.their_best, group.their_gain) == ("theirs plain", None)
        assert group.best is not None and group.best.value == pytest.approx((4.0 * 8.0) ** 0.5)

    def test_kinds_are_told_apart_and_together(self) -> None:
        groups = groups_of([*self.LAPS, lap("ours plain", 10.0, "c", group="chat")])
        assert [group.group for group in groups] == ["code", "chat", "all"]
        assert groups[-1].speeds["ours plain"] == 20.0

    def test_laps_of_different_rounds_are_not_compared(self) -> None:
        group = groups_of([lap("ours plain", 10.0, number=0), lap("theirs plain", 5.0, number=1)])[0]
        assert group.plain is None

    def test_a_step_is_compared_with_the_bandwidth(self) -> None:
        ours, theirs = step_times(groups_of(self.LAPS), target_bytes=10**9, bandwidth=60e9)
        assert (ours.side, ours.seconds, ours.bytes_per_second) == ("ours", pytest.approx(1 / 30), pytest.approx(30e9))
        assert ours.bandwidth_share == pytest.approx(0.5)
        assert theirs.seconds == pytest.approx(0.1)

    def test_growth_is_the_step_of_many_over_that_of_one(self) -> None:
        laps = [
            lap("ours plain", 10.0, "1", event=BATCH, group="1"),
            lap("ours plain", 40.0, "8", event=BATCH, group="8"),
        ]
        assert growth(groups_of(laps), "ours plain") == {"1": 1.0, "8": pytest.approx(2.0)}
        assert growth(groups_of(laps), "theirs plain") == {}

    def test_aims_are_held_against_what_was_measured(self) -> None:
        batch = (("1", 10.0), ("8", 20.0))
        laps = [*self.LAPS, *(lap("ours plain", speed, size, event=BATCH, group=size) for size, speed in batch)]
        groups = groups_of(laps)
        steps = step_times(groups, target_bytes=10**9, bandwidth=60e9)
        aims = {aim.figure: aim for aim in aims_of(groups, steps, ready_seconds=2.0, target_bytes=10**9)}
        assert {figure: aim.met for figure, aim in aims.items()} == {
            "plain against plain": True,
            "best against best, code": True,
            "step of 8 requests over one": False,
            "share of the bandwidth in a plain step": False,
            "seconds until ready": True,
        }
        assert aims["step of 8 requests over one"].value == pytest.approx(4.0)

    def test_everything_is_described(self) -> None:
        text = "\n".join(describe(groups_of(self.LAPS)))
        assert "plain against plain: 2.83 [2.00, 4.00]" in text
        assert "ours auto against theirs ngram-mod" in text


class FakePeer:
    """Answers at a speed of its own; takes the place of an HTTP client."""

    asked: ClassVar[list[tuple[str, Ask]]] = []

    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        FakePeer.asked.append((self.url, ask))
        for _ in range(ask.params.max_tokens or 0):
            await asyncio.sleep(0)
            yield Delivery("a", 1)
        yield Delivery("", 0, Ending(prompt_tokens=500))


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Way]:
    monkeypatch.setattr(laps_module, "HttpClient", FakePeer)
    FakePeer.asked = []
    ours, plain, draft = (Server(name, [], tmp_path / "log") for name in ("ours", "theirs plain", "theirs draft"))
    return [Way("ours plain", ours, False), Way("ours auto", ours), Way(plain.name, plain), Way(draft.name, draft)]


def raced(ways: list[Way], **course: Any) -> list[Lap]:
    return laps_module.run(Track(ways, load_set("full"), Course(**course), lambda what: None))


class TestTrack:
    def test_every_way_is_asked_the_same(self, ways: list[Way]) -> None:
        laps = raced(ways, events=(DECODE,), prompts=2, tokens=4)
        assert len(laps) == len(ways) * len(KINDS) * 2 * 2
        cases = {way.name: [(one.case, one.temperature) for one in laps if one.way == way.name] for way in ways}
        assert len({tuple(asked) for asked in cases.values()}) == 1
        lengths = {(ask.params.max_tokens, ask.params.ignore_eos) for _, ask in FakePeer.asked[len(ways) :]}
        assert lengths == {(4, True)}

    def test_ways_take_turns_to_begin(self, ways: list[Way]) -> None:
        laps = raced(ways, events=(DECODE,), kinds=("code",), temperatures=(0.0,), prompts=3, tokens=4)
        assert len({one.way for one in laps[:: len(ways)]}) > 1

    def test_a_prompt_is_asked_once_at_each_temperature_however_many_rounds(self, ways: list[Way]) -> None:
        laps = raced(ways, events=(DECODE,), kinds=("code",), prompts=1, tokens=4, rounds=3)
        assert len(laps) == len(ways) * 2

    def test_no_request_shares_its_salt(self, ways: list[Way]) -> None:
        raced(ways, events=(DECODE, BATCH), prompts=2, tokens=4, batches=(2,), batch_tokens=4)
        salts = [ask.salt for _, ask in FakePeer.asked[len(ways) :]]
        assert len(set(salts)) == len(salts)

    def test_our_plain_is_told_not_to_speculate(self, ways: list[Way]) -> None:
        raced(ways, events=(DECODE,), kinds=("chat",), temperatures=(0.0,), prompts=1, tokens=4)
        ours = [ask.speculate for url, ask in FakePeer.asked[len(ways) :] if url == ways[0].server.url]
        assert sorted(ours) == [False, True]

    def test_batches_are_asked_of_servers_that_have_room(self, ways: list[Way]) -> None:
        laps = raced(ways, events=(BATCH,), batches=(1, 3), batch_tokens=4, rounds=2)
        assert {one.way for one in laps} == {"ours plain", "ours auto", "theirs plain"}
        assert {(one.group, one.tokens) for one in laps} == {("1", 4), ("3", 12)}
        assert {one.round for one in laps} == {0, 1}

    def test_prompts_to_read_are_cut_by_the_peers_tokenizer(
        self, ways: list[Way], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            asked = json.loads(request.content)
            if request.url.path == "/tokenize":
                return httpx.Response(200, json={"tokens": list(range(len(asked["content"])))})
            return httpx.Response(200, json={"content": "x" * len(asked["tokens"])})

        real = httpx.AsyncClient
        monkeypatch.setattr(
            laps_module.httpx, "AsyncClient", lambda **options: real(transport=httpx.MockTransport(answer), **options)
        )
        laps = raced(ways, events=(PROMPT,), lengths=(512,), rounds=1)
        assert {one.way for one in laps} == {"ours plain", "theirs plain"}
        texts = {ask.text for _, ask in FakePeer.asked[len(ways) :]}
        assert texts == {"x" * (512 - laps_module.TEMPLATE_TOKENS)}

    @pytest.mark.parametrize(
        ("event", "message"),
        [(DECODE, "ours plain must answer: no room"), (BATCH, "ours plain must answer 2 requests at once: no room")],
    )
    def test_an_answer_that_fails_is_told_with_its_way(
        self, ways: list[Way], monkeypatch: pytest.MonkeyPatch, event: str, message: str
    ) -> None:
        answer = FakePeer.stream

        async def broken(client: FakePeer, ask: Ask) -> AsyncGenerator[Delivery]:
            if ask.salt != "warm-up":
                raise GamanehError("no room")
            async for delivery in answer(client, ask):
                yield delivery

        monkeypatch.setattr(FakePeer, "stream", broken)
        with pytest.raises(GamanehError, match=message):
            raced(ways[:1] + ways[2:], events=(event,), batches=(2,))


def test_every_kind_has_prompts() -> None:
    prompts = load_set("full")
    assert all(len(of_kind(prompts, kind)) >= Course().prompts for kind in KINDS)
    assert {prompt.language for prompt in of_kind(prompts, "persian")} == {"fa"}


class TestCommands:
    def test_both_sides_serve_the_same_files(self) -> None:
        ours = our_command(FILES, 16, ["--plain"])
        theirs = their_command(Path("llama-server"), FILES, "draft", 4, 1000, 2, ["--poll", "0"])
        for command in (ours, theirs):
            assert {"target.gguf", "draft.gguf", "127.0.0.1"} <= set(command)
        assert ours[-1] == "--plain" and theirs[-2:] == ["--poll", "0"]
        assert theirs[theirs.index("--ctx-size") + 1] == "4000"

    def test_a_mode_that_needs_a_draft_model_is_refused_without_one(self) -> None:
        with pytest.raises(InvalidOption, match="--theirs must do without a draft model"):
            their_command(Path("llama-server"), Files(Path("a.gguf"), None), "draft", 1, 10, 1, [])


SERVES = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class TestServers:
    def test_a_server_is_timed_weighed_and_stopped(self, tmp_path: Path) -> None:
        with Server("fake", [sys.executable, "-c", SERVES, "PORT"], tmp_path / "log") as server:
            assert server.start.ready_seconds > 0 and server.start.resident_bytes > 1_000_000
            assert server.cpu_seconds() > 0
            process = server.process
        assert not process.is_running()

    def test_a_server_that_ends_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
        with (
            pytest.raises(GamanehError, match=r"(?s)fake must start, it ended with 1: .*no such model"),
            Server("fake", command, tmp_path / "log"),
        ):
            pass

    def test_a_server_that_never_gets_ready_is_stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tools.race.contestants.START_SECONDS", 0.0)
        server = Server("fake", [sys.executable, "-c", "input()"], tmp_path / "log")
        with pytest.raises(GamanehError, match="fake must be ready after 0 seconds"), server:
            pass
        with pytest.raises(AssertionError):
            _ = server.process


def course(*arguments: str) -> Course:
    return program.make_course(program._parser().parse_args(arguments))


class TestProgram:
    def test_options_replace_parts_of_the_course(self) -> None:
        assert course() == Course()
        assert course("--quick") == QUICK
        shorter = course("--quick", "--kinds", "persian", "--tokens", "16", "--batches", "4")
        assert (shorter.kinds, shorter.tokens, shorter.batches, shorter.lengths) == (
            ["persian"],
            16,
            [4],
            QUICK.lengths,
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--tokens", "1"], "--tokens must be at least 2, got 1"),
            (["--batches", "4", "0"], "--batches must be at least 1, got 0"),
            (["--batch-tokens", "1"], "--batch-tokens must be at least 2, got 1"),
            (["--target", "absent.gguf"], "--target and --draft must be .gguf files, or models that were pulled"),
            (["--target", "no-such-model"], "no-such-model"),
        ],
    )
    def test_a_wrong_option_is_one_line(
        self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert program.main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1

    def test_modes_begin_with_plain_and_need_what_there_is(self) -> None:
        assert program.choose_modes(None, quick=False, draft=True) == list(MODES)
        assert program.choose_modes(["ngram-mod"], quick=False, draft=True) == ["plain", "ngram-mod"]
        assert program.choose_modes(None, quick=True, draft=False) == ["plain", "ngram-simple-short"]
        with pytest.raises(InvalidOption, match="--theirs must be among plain"):
            program.choose_modes(["medusa"], quick=False, draft=True)

    def test_servers_that_would_not_fit_are_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = tmp_path / "target.gguf"
        model.write_bytes(b"\0" * 1000)
        monkeypatch.setattr(program.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100})())
        assert program.main(["--target", str(model), "--draft", "none"]) == 2
        assert "--theirs must fit in memory" in capsys.readouterr().err

    def test_the_race_ends_with_one_line_of_json(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        fake_servers: None,
    ) -> None:
        model, kept = tmp_path / "target.gguf", tmp_path / "race.json"
        model.write_bytes(b"\0" * 1000)
        monkeypatch.setattr(program, "read_bandwidth", lambda: 1e10)
        monkeypatch.setattr(program, "IDLE_SECONDS", 0.01)
        monkeypatch.setattr(laps_module, "HttpClient", FakePeer)
        arguments = ["--target", str(model), "--draft", "none", "--theirs", "ngram-mod", "--events", DECODE, BATCH]
        assert program.main([*arguments, "--prompts", "1", "--tokens", "4", "--json", str(kept)]) == 0
        *text, line = capsys.readouterr().out.splitlines()
        document = json.loads(line)
        assert json.loads(kept.read_text()) == document
        assert any(one.startswith("== decode") for one in text)
        assert document["starts"].keys() == {"ours", "theirs plain", "theirs ngram-mod"}
        assert document["first_ttft"].keys() == {"ours plain", "ours auto", "theirs plain", "theirs ngram-mod"}
        assert document["bandwidth"] == 1e10 and document["peer"]["source"].startswith("llama-cpp-python==")
        assert {step["side"] for step in document["steps"]} == {"ours", "theirs"}
        assert document["growth"]["ours plain"].keys() == {"1", "2", "4", "8", "16"}

    def test_another_call_adds_its_laps_to_the_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], fake_servers: None
    ) -> None:
        model, kept = tmp_path / "target.gguf", tmp_path / "race.json"
        model.write_bytes(b"\0" * 1000)
        bandwidths = iter((1e10, 3e10))
        monkeypatch.setattr(program, "read_bandwidth", lambda: next(bandwidths))
        monkeypatch.setattr(program, "IDLE_SECONDS", 0.01)
        monkeypatch.setattr(laps_module, "HttpClient", FakePeer)
        common = ["--target", str(model), "--draft", "none", "--prompts", "1", "--tokens", "4", "--json", str(kept)]
        first = [*common, "--add", "--theirs", "ngram-mod", "--events", DECODE, "--kinds", "code"]
        second = [*common, "--add", "--theirs", "plain", "--events", DECODE, BATCH, "--kinds", "code", "chat"]
        assert program.main(first) == 0 == program.main(second)
        document = json.loads(kept.read_text())
        decoded = [one for one in document["laps"] if one["event"] == DECODE]
        assert {(one["group"], one["round"]) for one in decoded} == {("code", 0), ("code", 1), ("chat", 1)}
        assert document["starts"].keys() == {"ours", "theirs plain", "theirs ngram-mod"}
        assert len(document["runs"]) == 2 and document["bandwidth"] == 2e10
        assert {one["event"] for one in document["groups"]} == {DECODE, BATCH}

    def test_laps_of_another_model_are_not_added(self) -> None:
        setting = Setting({}, {}, {"target": {"name": "a", "bytes": 1}})
        run = {"date": "", "bandwidth": 1.0, "starts": {"ours": {"ready_seconds": 1.0}}, "first_ttft": {}}
        before = document_of(setting, run, TestOutcome.LAPS)
        other = replace(setting, files={"target": {"name": "b", "bytes": 1}})
        with pytest.raises(GamanehError, match=r"--add must name a race with the same files, got .*'a'.*, here .*'b'"):
            document_of(other, run, TestOutcome.LAPS, before)
        with pytest.raises(GamanehError, match=r"--add must name a file of gamaneh\.race, version 2"):
            document_of(setting, run, TestOutcome.LAPS, {"format": "gamaneh.race", "version": 1})


@pytest.fixture
def fake_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Both commands start a server that only says that it is ready."""
    command = [sys.executable, "-c", SERVES, "PORT"]
    monkeypatch.setattr(program, "our_command", lambda *arguments: command)
    monkeypatch.setattr(program, "their_command", lambda *arguments: command)
    monkeypatch.setattr("tools.peer.Peer.program", lambda peer, name: Path(name))
    yield


def test_recorded_commands_tell_no_folder() -> None:
    words = ["/home/me/bin/llama-server", "--model", "/home/me/cache/a model.gguf", "--threads", "2", "a/b"]
    assert command_line(words) == "llama-server --model 'a model.gguf' --threads 2 a/b"
