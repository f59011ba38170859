"""The names by which the golden scenarios reach the system. What a restructuring renames is renamed here, once.

The heads in `heads/` were trained until they knew the greedy answers of the tiny target to two of the prompts, so that
drafts are accepted as well as refused.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from gamaneh import LLM, Drafting, Engine, EngineOptions, Precision, SamplingParams, SpeculationOptions, StepOutput
from gamaneh.cli.main import app as cli_app
from gamaneh.core import BatchReport, Request, StepReport
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.heads.artifact import Artifact, load_artifact, mark_target
from gamaneh.models.fetch import find
from gamaneh.models.loading import LoadedModel, load
from gamaneh.sampling.grammar_mask import Grammar
from gamaneh.server.access import KeyRing
from gamaneh.server.app import build_app
from gamaneh.server.server_options import ServerOptions
from gamaneh.server.service import Service
from gamaneh.testing import (
    TINY_CONFIGS,
    ByteTokenizer,
    PieceTokenizer,
    Script,
    ScriptedProposer,
    ScriptedRunner,
    scripted_engine,
    tiny_model,
)

HERE = Path(__file__).parent
HEADS = HERE / "heads"
SMALL = "smollm2-135m-instruct"

sys.path.append(str(HERE.parent / "docs"))
from tiny_catalogue import write_tiny_gguf  # noqa: E402

PLUGIN_MODULE = '''
from gamaneh import Draft, Proposer, Recipe


class Counting(Proposer):
    """Guesses that the last token is followed by the next numbers."""

    name = "golden_counting"

    def __init__(self, needs):
        self.needs = needs

    def propose(self, rows):
        return [Draft.chain((row.tokens[-1] + at) % 128 for at in range(1, row.max_depth + 1)) for row in rows]

    def memory_bytes(self):
        return 0


def build(parts):
    from gamaneh import Needs

    return Counting(Needs())


recipe = Recipe("golden_counting", build)
'''


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))


def pinned(engine: Engine) -> Engine:
    """The engine without the decisions that depend on measured time; draft lengths are fixed by the scenarios."""
    engine.quarantine.leaves_out_slow = False
    return engine


_REQUESTS = {entry.name for entry in fields(Drafting)}


def speculation_of(**speculation: Any) -> SpeculationOptions:
    """Options of requests, and those of the proposer; `min_confidence` only where there is something to be sure of."""
    of_requests = {name: value for name, value in speculation.items() if name in _REQUESTS}
    own = {name: value for name, value in speculation.items() if name not in _REQUESTS}
    if speculation.get("proposer") == "medusa":
        own.pop("min_confidence", None)
    return SpeculationOptions(**of_requests, proposer_options=own)


def engine_of(llm: LLM) -> Engine:
    """The engine inside, with its observers."""
    return llm.engine


def tiny_llm(
    family: str = "llama",
    *,
    draft_seed: int | None = None,
    heads: Sequence[str] = (),
    options: EngineOptions | None = None,
    **speculation: Any,
) -> LLM:
    """A tiny target with bits that do not depend on the batch, without speculation unless it is asked for."""
    target = tiny_model(family)
    return pinned_llm(
        target,
        draft_model=None if draft_seed is None else tiny_model(family, seed=draft_seed),
        heads=[_heads(name, target) for name in heads],
        speculation=speculation_of(**speculation),
        options=options or EngineOptions(max_batch=8, step_tokens=256, invariant=True, kv_blocks=64),
    )


def _heads(name: str, target: LoadedModel) -> Artifact:
    """Heads of the folder, marked for the target as this machine makes it: random weights differ in their last bits."""
    return replace(load_artifact(HEADS / name), target=mark_target(target))


def crossed_llm(target: PieceTokenizer, draft: PieceTokenizer, **speculation: Any) -> LLM:
    """A tiny target, and a tiny draft model with another tokenizer."""
    models = [
        replace(
            tiny_model(
                config=replace(TINY_CONFIGS["llama"], vocab_size=own.vocab_size, eos_ids=own.eos_ids), seed=seed
            ),
            tokenizer=own,  # type: ignore[arg-type]
        )
        for seed, own in enumerate((target, draft))
    ]
    return pinned_llm(
        models[0],
        draft_model=models[1],
        speculation=speculation_of(**speculation),
        options=EngineOptions(max_batch=8, step_tokens=256, invariant=True, kv_blocks=64),
    )


@cache
def _small_model() -> LoadedModel:
    path = find(SMALL)
    assert path is not None, f"{SMALL} is not in the cache: run `gamaneh pull {SMALL}`"
    return load(path, precision=Precision(weights="float32"))


def small_llm(**speculation: Any) -> LLM:
    """The real small model, with its shipped heads of the kind that the proposer needs."""
    proposer = speculation.get("proposer")
    return pinned_llm(
        _small_model(),
        heads=[f"{SMALL}/{proposer}"] if proposer in ("medusa", "eagle") else [],
        speculation=speculation_of(**speculation),
        options=EngineOptions(max_batch=4, invariant=True, kv_blocks=64),
    )


def pinned_llm(model: Any, **options: Any) -> LLM:
    """An `LLM` whose decisions do not depend on time."""
    llm = LLM(model, **options)
    pinned(llm.engine)
    return llm


def scripted(
    script: Script,
    vocab_size: int,
    *,
    draft_length: int | None = None,
    accuracy: float = 0.7,
    branches: int = 0,
    num_blocks: int = 256,
    max_context: int = 256,
    fault: Callable[[], None] | None = None,
    options: EngineOptions | None = None,
    **speculation: Any,
) -> Engine:
    """An engine over a script; without a draft length it does not speculate."""
    runner = ScriptedRunner(script, vocab_size, num_blocks=num_blocks, max_context=max_context)
    if draft_length is None:
        return pinned(scripted_engine(runner, ChatBytes(), options=options))
    proposer = ScriptedProposer(script, vocab_size, accuracy, branches, fault=fault)
    chosen = SpeculationOptions(proposer="scripted", draft_length=draft_length, **speculation)
    return pinned(scripted_engine(runner, ChatBytes(), proposer=proposer, speculation=chosen, options=options))


def _request(prompt: Sequence[int], params: SamplingParams, options: Mapping[str, Any]) -> Request:
    names = {"request_id": "id", "speculation": "drafting"}
    return Request(prompt, params, **{names.get(name, name): value for name, value in options.items()})


def add(engine: Engine, prompt: Sequence[int], params: SamplingParams, **options: Any) -> str:
    """Queue a request at an engine."""
    return engine.add(_request(prompt, params, options))


def watch(engine: Engine, rounds: Callable[[StepReport], None], steps: Callable[[BatchReport], None]) -> None:
    """Call back with each round's and each step's report."""
    engine.observers.append(rounds)
    engine.batch_observers.append(steps)


def held_blocks(engine: Engine) -> int:
    """Blocks of the cache that are in use by requests."""
    engine.check_integrity()
    return engine.backend.kv.pool.in_use


def json_grammar(schema: Mapping[str, Any]) -> Grammar:
    """The grammar of a JSON schema for the byte tokenizer."""
    return Grammar.from_json_schema(schema, ByteTokenizer())


class Running:
    """An engine in its thread, asked as `async` callers ask it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def submit(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> AsyncIterator[StepOutput]:
        return await self._engine.submit(_request(prompt, params, options))

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[Running]:
    """The engine started, and stopped at the end."""
    shell = AsyncEngine(engine)
    shell.start()
    try:
        yield Running(shell)
    finally:
        await asyncio.to_thread(shell.stop)


@asynccontextmanager
async def http(engine: Engine, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server's application over this engine, all in this process."""
    shell = AsyncEngine(engine)
    service = Service(shell, ChatBytes(), "golden", ServerOptions(**options), KeyRing(()))
    shell.start()
    transport = httpx.ASGITransport(build_app(service))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        await asyncio.to_thread(shell.stop)


def model_files(folder: Path) -> Iterator[Path]:
    """Two tiny models as files that the command line can load."""
    for seed in range(2):
        yield write_tiny_gguf(folder / f"golden-{seed}.gguf", seed)


def command(*arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Run `gamaneh` with these arguments.

    Returns:
        Its exit code, standard output and standard error.
    """
    result = CliRunner().invoke(cli_app, list(arguments), input=stdin)
    return result.exit_code, result.stdout, result.stderr
