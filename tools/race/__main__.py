"""`python -m tools.race`: ours against llama.cpp, which `python -m tools.peer build` makes; ends with a line of JSON.

Both sides serve the same files on loopback to one client. All ways are asked the same prompt one after the other, and
the order turns; the servers that wait do not spin, which is measured and told. `--quick` takes about four minutes. A
long race is run in parts: each call with `--json FILE --add` adds its laps to those in the file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import load_set
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.fetch import find
from tools.peer import SOURCE_PACKAGE, find_peer, processor_flags
from tools.race.contestants import (
    AUTO,
    DRAFT,
    MODES,
    OURS,
    PLAIN,
    THEIRS,
    Files,
    Server,
    Way,
    our_command,
    their_command,
    usable_cores,
)
from tools.race.laps import EVENTS, KINDS, QUICK, Course, Track, run
from tools.race.outcome import describe
from tools.race.record import Setting, command_line, document_of, groups_in

TARGET, DRAFT_MODEL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
QUICK_MODES = (PLAIN, "draft", "ngram-simple-short")
NO_DRAFT = "none"
CONTEXT_ROOM = 512
"""Tokens of context beyond the longest prompt and answer."""

MEMORY_FACTOR = 1.5
"""Of the files' sizes: what a server is expected to take, its cache included."""

IDLE_SECONDS = 1.0
BUSY, SPINNING = 0.1, 0.05
"""Shares of all cores, and of one core, above which others, or servers that wait, disturb the race."""

STREAM_BYTES, STREAM_REPEATS = 1 << 30, 5
EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Race as the arguments ask; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        document = _race(options, make_course(options))
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    except (OSError, ValueError) as error:
        print(f"gamaneh: --json must name a file that can be read and written: {error}", file=sys.stderr)
        return EXIT_ERROR
    line = json.dumps(document, ensure_ascii=False, allow_nan=False)
    print(line)
    if options.json is not None:
        options.json.write_text(f"{line}\n", encoding="utf-8")
    return 0


def make_course(options: argparse.Namespace) -> Course:
    """The course that the options ask for.

    Raises:
        InvalidOption: a number is too small, or a name unknown.
    """
    usual = QUICK if options.quick else Course()
    names = ("events", "kinds", "temperatures", "prompts", "tokens", "rounds", "lengths", "batches", "batch_tokens")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    for name in ("prompts", "rounds", "lengths", "batches"):
        _check_least(name, given.get(name, 1), 1)
    for name in ("tokens", "batch_tokens"):
        _check_least(name, given.get(name, 2), 2)
    return replace(usual, **given)


def choose_modes(names: Sequence[str] | None, *, quick: bool, draft: bool) -> list[str]:
    """Their ways to decode, plain always among them; without a draft model those that need one are left out.

    Raises:
        InvalidOption: a name is unknown.
    """
    for name in names or ():
        if name not in MODES:
            raise InvalidOption("--theirs", f"must be among {', '.join(MODES)}", name)
    chosen = names or (QUICK_MODES if quick else tuple(MODES))
    possible = [name for name in chosen if draft or DRAFT not in MODES[name]]
    return list(dict.fromkeys((PLAIN, *possible)))


def resolve_file(name: str) -> Path:
    """A GGUF file, by its path or its name in the catalogue.

    Raises:
        GamanehError: there is no such file, or the model was not pulled.
    """
    path = Path(name) if name.endswith(".gguf") else find(name)
    if path is None or not path.is_file():
        raise InvalidOption("--target and --draft", "must be .gguf files, or models that were pulled", name)
    return path


def read_bandwidth() -> float:
    """Bytes per second that all cores together read from memory, the best of some sums over a large tensor."""
    values = torch.ones(STREAM_BYTES // 4)
    best = 0.0
    for _ in range(STREAM_REPEATS):
        started = time.perf_counter()
        values.sum()
        best = max(best, STREAM_BYTES / (time.perf_counter() - started))
    return best


def _race(options: argparse.Namespace, course: Course) -> dict[str, Any]:
    before = None
    if options.add and options.json is None:
        raise InvalidOption("--add", "must come with --json", options.add)
    if options.add and options.json.exists():
        before = json.loads(options.json.read_text(encoding="utf-8"))
    files = Files(resolve_file(options.target), None if options.draft == NO_DRAFT else resolve_file(options.draft))
    modes = choose_modes(options.theirs, quick=options.quick, draft=files.draft is not None)
    _check_memory(files, len(modes))
    bandwidth = read_bandwidth()
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        ways = _start(files, modes, options, course, Path(logs), stack)
        servers = list({way.server.name: way.server for way in ways}.values())
        disturbed = _disturbances(servers)
        track = Track(ways, load_set("full"), course, _say)
        laps = run(track)
        resident = {server.name: server.resident_bytes() for server in servers}
    peer = find_peer()
    setting = Setting(
        machine={**asdict(describe_machine()), "flags": sorted(_told_flags())},
        peer={"source": SOURCE_PACKAGE, "options": list(peer.options)},
        files={"target": _file(files.target), "draft": None if files.draft is None else _file(files.draft)},
    )
    run_record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m tools.race {command_line(sys.argv[1:])}",
        "course": asdict(course),
        "bandwidth": bandwidth,
        "disturbed": disturbed,
        "starts": {
            server.name: {**asdict(server.start), "resident_after": resident[server.name]} for server in servers
        },
        "first_ttft": track.first_ttft,
        "commands": {server.name: command_line(server.command) for server in servers},
    }
    document = document_of(setting, run_record, laps, before)
    print("\n".join((*describe(groups_in(document)), *_describe_rest(document))), flush=True)
    return document


def _start(
    files: Files, modes: Sequence[str], options: argparse.Namespace, course: Course, logs: Path, stack: ExitStack
) -> list[Way]:
    """All servers, one after the other, ours first; it makes both of our ways."""
    slots = max(course.batches) if "batch" in course.events else 1
    longest = max(course.lengths) if "prompt" in course.events else 0
    context = max(longest, 2048) + max(course.tokens, course.batch_tokens) + CONTEXT_ROOM
    program = find_peer().program("llama-server")
    ours = Server(OURS, our_command(files, slots, shlex.split(options.ours_args)), logs / OURS)
    _enter(ours, stack)
    ways = [Way(f"{OURS} {PLAIN}", ours, speculate=False), Way(f"{OURS} {AUTO}", ours)]
    for mode in modes:
        extra = shlex.split(options.theirs_args)
        mine = slots if mode == PLAIN else 1
        command = their_command(program, files, mode, mine, context, options.threads or usable_cores(), extra)
        theirs = Server(f"{THEIRS} {mode}", command, logs / mode)
        _enter(theirs, stack)
        ways.append(Way(theirs.name, theirs))
    return ways


def _enter(server: Server, stack: ExitStack) -> None:
    _say(f"starting {server.name}")
    stack.enter_context(server)
    _say(f"{server.name} is ready after {server.start.ready_seconds:.1f} s, {server.start.resident_bytes / 1e6:.0f} MB")


def _disturbances(servers: Sequence[Server]) -> dict[str, Any]:
    """How busy the machine is when all servers wait: by others, as a share of all cores, and by each server, of one."""
    before = [server.cpu_seconds() for server in servers]
    whole = psutil.cpu_percent(IDLE_SECONDS) / 100
    spinning = {
        server.name: (server.cpu_seconds() - start) / IDLE_SECONDS
        for server, start in zip(servers, before, strict=True)
    }
    for name, share in spinning.items():
        if share > SPINNING:
            _say(f"warning: {name} uses {share:.0%} of a core while it waits")
    others = max(whole - sum(spinning.values()) / (psutil.cpu_count() or 1), 0.0)
    if others > BUSY:
        _say(f"warning: others use {others:.0%} of the machine: the figures are noise")
    return {"others": others, "servers": spinning}


def _check_memory(files: Files, servers: int) -> None:
    """
    Raises:
        InvalidOption: the servers would not fit beside each other.
    """
    sizes = [path.stat().st_size for path in (files.target, files.draft) if path is not None]
    needed = int(MEMORY_FACTOR * sum(sizes) * (servers + 3))  # ours may keep weights larger than its file has them
    free = psutil.virtual_memory().available
    if needed > free:
        raise InvalidOption("--theirs", f"must fit in memory ({free / 1e9:.1f} GB): fewer ways need less", servers)


def _describe_rest(document: Mapping[str, Any]) -> Iterator[str]:
    files = sum(file["bytes"] for file in document["files"].values() if file is not None)
    yield f"== start; the files have {files / 1e6:.0f} MB"
    for name, start in document["starts"].items():
        sizes = " then ".join(f"{start[key] / 1e6:.0f}" for key in ("resident_bytes", "resident_after"))
        yield f"{name}: ready after {start['ready_seconds']:.2f} s, resident {sizes} MB"
    yield "first request, seconds to the first token: " + ", ".join(
        f"{way} {seconds:.2f}" for way, seconds in document["first_ttft"].items()
    )
    yield f"== plain steps; the machine reads {document['bandwidth'] / 1e9:.1f} GB/s"
    for step in document["steps"]:
        read = f"{step['bytes_per_second'] / 1e9:.1f} GB/s, {step['bandwidth_share']:.2f} of the machine's"
        yield f"{step['side']}: {step['seconds'] * 1e3:.1f} ms, {read}"
    for way, ratios in document["growth"].items():
        if ratios:
            told = ", ".join(f"{size}: {ratio:.2f}" for size, ratio in ratios.items())
            yield f"{way}: step of so many requests / of one: {told}"
    yield "== aims"
    for aim in document["aims"]:
        bound = f"at {'least' if aim['at_least'] else 'most'} {aim['bound']:g}"
        yield f"{'met' if aim['met'] else 'MISSED'}: {aim['figure']} {aim['value']:.2f}, aim {bound}"


def _check_least(name: str, value: int | Sequence[int], least: int) -> None:
    for one in [value] if isinstance(value, int) else value:
        if one < least:
            raise InvalidOption(f"--{name.replace('_', '-')}", f"must be at least {least}", one)


def _file(path: Path) -> dict[str, Any]:
    return {"name": path.name, "bytes": path.stat().st_size}


def _told_flags() -> frozenset[str]:
    """Instruction sets that matter here."""
    return frozenset(flag for flag in processor_flags() if flag.startswith(("avx", "amx", "fma", "f16c")))


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    usual = Course()
    parser = argparse.ArgumentParser(prog="python -m tools.race", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--target", default=TARGET, help=f"GGUF file or catalogue name (default {TARGET})")
    add("--draft", default=DRAFT_MODEL, help=f"draft model for both sides, or {NO_DRAFT} (default {DRAFT_MODEL})")
    add("--theirs", nargs="+", metavar="WAY", help=f"of {', '.join(MODES)} (default all)")
    add("--events", nargs="+", choices=EVENTS, help="default all")
    add("--kinds", nargs="+", choices=KINDS, help="default all")
    add("--temperatures", nargs="+", type=float, help=f"default {usual.temperatures}")
    add("--prompts", type=int, help=f"of each kind (default {usual.prompts})")
    add("--tokens", type=int, help=f"of each answer (default {usual.tokens})")
    add("--rounds", type=int, help=f"of prompts to read and of batches (default {usual.rounds})")
    add("--lengths", nargs="*", type=int, help=f"tokens of prompts to read (default {usual.lengths})")
    add("--batches", nargs="*", type=int, help=f"requests at once (default {usual.batches})")
    add("--batch-tokens", type=int, help=f"of each answer of a batch (default {usual.batch_tokens})")
    add("--threads", type=int, help="of theirs (default: cores that may be used)")
    add("--ours-args", default="", help="more options of `gamaneh serve`, in one word")
    add("--theirs-args", default="", help="more options of `llama-server`, in one word")
    add("--quick", action="store_true", help="two kinds, one prompt of each, three of their ways: about four minutes")
    add("--json", type=Path, help="file for the JSON line")
    add("--add", action="store_true", help="add the laps to those that the file has, of the same models and machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
