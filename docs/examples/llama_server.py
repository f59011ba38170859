"""llama.cpp's own server, as the package `xllamacpp` brings it: `llama_server.py MODEL.gguf --port 8181 --speculate`.

Prints its address when it takes requests, and ends with its standard input.
"""

from __future__ import annotations

import argparse
import sys

from xllamacpp import CommonParams, Server, common_speculative_type

N_GRAM, DRAFT_LENGTH = 3, 8


def make_params(options: argparse.Namespace) -> CommonParams:
    """The server's settings; prompts are not kept, so that reading them is measured each time."""
    params = CommonParams()
    params.model.path = options.model
    params.port = options.port
    params.n_ctx = options.context
    params.cpuparams.n_threads = options.threads
    params.endpoint_metrics = True
    params.cache_prompt = False
    if options.speculate:
        params.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n = N_GRAM
        params.speculative.ngram_simple.size_m = DRAFT_LENGTH
    return params


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Serve a GGUF file with llama.cpp.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8181)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--speculate", action="store_true", help="guess by n-grams of the context")
    server = Server(make_params(parser.parse_args()))
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
