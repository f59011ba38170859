"""`python -m tools.quality MODEL ...`: what compiled arithmetic costs, against float32 of the same weights.

The same texts are read twice: with the weights as they are stored (or rounded, `--weights`), activations rounded to
int8 in groups of 32; and with the stored weights expanded to float32 and float32 activations. Printed per text, then
as one line of JSON.

Formulas
    KL            mean over tokens of sum p (log p - log q), p by float32, q by the compiled backend, in nats
    perplexity    exp of the mean negative log-probability of the next token
    same argmax   share of tokens after which both find the same token most likely
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import gamaneh
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan, Weights
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.stored_weights import stored_weights
from gamaneh.backends.compiled.vectors import BLOCK
from gamaneh.models.config import DecoderConfig
from gamaneh.models.formats.known import from_floats
from gamaneh.models.loading import open_model

PACKAGE = Path(gamaneh.__file__).parent
TOKENS = 512


@dataclass(frozen=True)
class Quality:
    """One text under both arithmetics, see the formulas above."""

    text: str
    tokens: int
    kl: float
    perplexity: float
    float32_perplexity: float
    same_argmax: float


def texts() -> Mapping[str, str]:
    """English and Persian prompts, and a module of the package."""
    prompts = PACKAGE / "bench" / "prompts"
    found = {}
    for name, language in (("English", "en"), ("Persian", "fa")):
        lines = (prompts / f"{language}.jsonl").read_text(encoding="utf-8").splitlines()
        found[name] = "\n\n".join(max(json.loads(line)["prompt"].split("\n\n"), key=len) for line in lines)
    found["code"] = (PACKAGE / "models" / "rope.py").read_text(encoding="utf-8")
    return found


def scores(decoder: CompiledDecoder, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities after each token, `[num_tokens, vocab]`."""
    config = decoder.config
    blocks = -(-len(tokens) // BLOCK) + 1
    pages = Pages(config.num_layers, blocks, config.num_kv_heads, config.head_dim)
    span = FedSpan(list(tokens), 0, list(range(1, blocks + 1)), logit_rows=len(tokens))
    return decoder.step([span], pages).logits.log_softmax(-1)


def compared(text: str, tokens: Sequence[int], ours: Tensor, exact: Tensor) -> Quality:
    """Return the figures of one text."""
    following = torch.tensor(tokens[1:])[:, None]
    return Quality(
        text=text,
        tokens=len(tokens),
        kl=float((exact.exp() * (exact - ours)).sum(-1).mean()),
        perplexity=float((-ours[:-1].gather(1, following).mean()).exp()),
        float32_perplexity=float((-exact[:-1].gather(1, following).mean()).exp()),
        same_argmax=float((ours.argmax(-1) == exact.argmax(-1)).float().mean()),
    )


def expanded(weights: Weights) -> Weights:
    """The same numbers as float32."""
    return {
        name: tuple(from_floats(part.expand()) for part in value) if isinstance(value, tuple) else value
        for name, value in weights.items()
    }


def measure(config: DecoderConfig, stored: Weights, rounded: Weights, tokens: Mapping[str, list[int]]) -> list[Quality]:
    """Compare `rounded` with float32 of `stored`; one model is in memory at a time."""
    found = []
    for weights in (rounded, expanded(stored)):
        decoder = CompiledDecoder(config, weights)
        found.append({name: scores(decoder, ids) for name, ids in tokens.items()})
        decoder.close()
    return [compared(name, ids, found[0][name], found[1][name]) for name, ids in tokens.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--weights", choices=("stored", "int8", "int4"), default="stored")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each text")
    chosen = parser.parse_args(arguments)
    for name in chosen.models:
        opened = open_model(name)
        tokens = {text: opened.tokenizer.encode(content)[: chosen.tokens] for text, content in texts().items()}
        stored, rounded = (stored_weights(opened.tensors, weights) for weights in ("stored", chosen.weights))
        rows = measure(opened.config, stored, rounded, tokens)
        print(f"{opened.name}, weights {chosen.weights}")
        print(f"{'text':10} {'tokens':>7} {'KL':>9} {'perplexity':>11} {'float32':>9} {'same argmax':>12}")
        for row in rows:
            print(
                f"{row.text:10} {row.tokens:7} {row.kl:9.5f} {row.perplexity:11.3f} {row.float32_perplexity:9.3f} "
                f"{row.same_argmax:12.4f}"
            )
        line = {
            "model": opened.name,
            "weights": chosen.weights,
            "machine": platform.processor() or platform.machine(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "texts": [asdict(row) for row in rows],
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
