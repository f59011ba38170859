"""`PYTHONPATH=tests python -m soak`: thousands of mixed requests, aborts, errors, faults; nothing hangs or is wrong.

The answers that are right are those of plain decoding of one request alone, made first. Then the
requests come in random order, many at once, speculating in all ways, while proposers fail. Each
answer is compared, whole or up to where it was aborted. In the end everything must be free again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.bench.servers import HttpClient
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.errors import GamanehError
from gamaneh.models.loading import DTYPES, load
from gamaneh.options import EngineOptions, Precision, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from soak.findings import QUICK, Effort, Findings, describe
from soak.in_process import Soak
from soak.over_http import ServerSoak

EXIT_FAILED, EXIT_ERROR = 1, 2

SAMPLES = 200
"""Sizes of memory that the JSON holds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak what the arguments name; 0 when nothing was found."""
    options = _parser().parse_args(arguments)
    usual = QUICK if options.quick else Effort()
    given = {
        name: value for name in ("requests", "concurrency", "seed") if (value := getattr(options, name)) is not None
    }
    effort = replace(usual, **given)
    try:
        findings = asyncio.run(_soak_server(options, effort) if options.url else _soak_engine(options, effort))
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    print(describe(findings))
    print(json.dumps(_document(effort, findings), ensure_ascii=False))
    return 0 if findings.passed else EXIT_FAILED


async def _soak_server(options: argparse.Namespace, effort: Effort) -> Findings:
    async with HttpClient(options.url, options.key) as client:
        return await ServerSoak(client, [prompt.prompt for prompt in load_prompts()], effort).run()


async def _soak_engine(options: argparse.Namespace, effort: Effort) -> Findings:
    precision = Precision(weights=options.weights)
    target = load(options.model, precision=precision)
    draft = None if options.draft_model is None else load(options.draft_model, precision=precision)
    limits = EngineOptions(invariant=True, max_batch=effort.concurrency)
    engine = build_engine(target, draft, SpeculationOptions(proposer=options.proposer), limits)
    prompts = [as_tokens(target.tokenizer, prompt.prompt) for prompt in load_prompts()]
    caches = [
        proposer.reader.backend.kv for proposer in engine.proposers.values() if isinstance(proposer, DraftModelProposer)
    ]
    return await Soak(engine, prompts, effort, caches).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__.split("\n")[0])
    add_target(parser)
    parser.add_argument("--requests", type=int, help=f"default {Effort().requests}")
    parser.add_argument("--concurrency", type=int, help=f"default {Effort().concurrency}")
    parser.add_argument("--seed", type=int, help=f"default {Effort().seed}")
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is put under load."""
    parser.add_argument("--url", help="a running server; its own settings decide how it speculates")
    parser.add_argument("--key", help="API key for --url")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="path or catalogue name, without --url")
    parser.add_argument("--draft-model", help="path or catalogue name, without --url")
    parser.add_argument("--weights", choices=["auto", *DTYPES], default="auto", help="without --url")
    parser.add_argument("--proposer", default=AUTO, help="without --url (default auto)")


def _document(effort: Effort, findings: Findings) -> dict[str, Any]:
    samples = findings.memory[:: max(len(findings.memory) // SAMPLES, 1)]
    return {
        "benchmark": "soak",
        "passed": findings.passed,
        "effort": asdict(effort),
        **{entry.name: getattr(findings, entry.name) for entry in fields(findings)},
        "memory": samples,
        "growth": findings.growth,
        "machine": asdict(describe_machine()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
