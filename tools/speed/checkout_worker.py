"""Answers prompts from whichever checkout `PYTHONPATH` names. Uses no name that the first version did not have."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import gamaneh
from gamaneh import LLM, SamplingParams, SpeculationOptions


def open_llm(settings: dict[str, Any]) -> LLM:
    """Load the models, with the types and the backend that were asked for as far as this checkout knows them."""
    known = inspect.signature(LLM.__init__).parameters
    more: dict[str, Any] = {}
    if settings["dtype"] is not None:
        dtype = settings["dtype"]
        if "dtype" in known:
            more["dtype"] = dtype
        else:
            more["precision"] = gamaneh.Precision(weights=dtype, compute=dtype, kv=dtype)
    if settings["backend"] is not None and "backend" in known:
        more["backend"] = settings["backend"]
    usual = SpeculationOptions(proposer="auto")
    return LLM(settings["model"], draft_model=settings["draft_model"], speculation=usual, **more)


def main() -> None:
    """Answer the lines of standard input, one line each."""
    settings = json.loads(sys.argv[1])
    llm = open_llm(settings)
    ways = {"plain": SpeculationOptions(), "auto": SpeculationOptions(proposer="auto")}
    params = SamplingParams(temperature=0.0, max_tokens=settings["tokens"], ignore_eos=True)
    for line in sys.stdin:
        way, prompt, salt = json.loads(line)
        answer = llm.generate([prompt], params, speculation=ways[way], salt=salt)[0]
        if answer.error is not None:
            raise SystemExit(answer.error)
        tpot = (answer.seconds - answer.first_token_seconds) / (len(answer.tokens) - 1)
        print(json.dumps({"tpot": tpot, "tokens": answer.tokens}), flush=True)


if __name__ == "__main__":
    main()
