"""`python -m tools.quality MODEL ...`: what compiled arithmetic costs, against float32 of the same weights.

The same windows of text are read by the compiled backend (weights as they are stored, or rounded with `--weights`;
activations rounded to int8 in groups of 32), by torch with the stored weights expanded to float32, and with `--peer` by
llama.cpp from the same file (`llama-perplexity`, built by `tools.peer`). As that program does, the second half of each
window is scored. It tells logits apart down to 16 below the best: tokens that float32 puts more than 12 below count as
one. Printed per text, then as one line of JSON.

Formulas
    KL            mean over tokens of sum p (log p - log q), p by float32, in nats
    perplexity    exp of the mean negative log-probability of the next token
    same argmax   share of tokens after which the same token is most likely as in float32
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import gamaneh
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan, Weights
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.rounding import rounded
from gamaneh.backends.compiled.stored_weights import rounded_kind, stored_weights
from gamaneh.backends.compiled.vectors import BLOCK
from gamaneh.backends.compiled.workers import usable_cores
from gamaneh.bench.machine import describe_machine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.kv import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.formats.known import QUANTISED, from_floats
from gamaneh.models.formats.stored import StoredTensor
from gamaneh.models.loading import OpenModel, open_model
from gamaneh.models.runner import DecoderRunner
from tools.peer import find_peer

PACKAGE = Path(gamaneh.__file__).parent
CODE = ("rope.py", "rope_settings.py", "families.py")
WINDOW, WINDOWS = 512, 4
FLOOR = 16.0
"""llama.cpp's file does not tell logits apart that lie further below the best."""

KNOWN = 12.0
"""Tokens that float32 puts further below the best are one event of the KL, so that the floor does not matter."""

OURS, THEIRS = "ours", "llama.cpp"
STORED = "stored"

Windows = Sequence[Sequence[int]]
Scorer = Callable[[Sequence[int]], Tensor]
"""Tokens of a window -> logits `[num_tokens, vocab]`."""


@dataclass(frozen=True)
class Quality:
    """One side on one text, see the formulas above."""

    text: str
    side: str
    tokens: int
    kl: float
    perplexity: float
    float32_perplexity: float
    same_argmax: float


def texts() -> Mapping[str, str]:
    """English and Persian prompts, and modules of the package."""
    prompts = PACKAGE / "bench" / "prompts"
    found = {}
    for name, language in (("English", "en"), ("Persian", "fa")):
        lines = (prompts / f"{language}.jsonl").read_text(encoding="utf-8").splitlines()
        found[name] = "\n\n".join(max(json.loads(line)["prompt"].split("\n\n"), key=len) for line in lines)
    found["code"] = "\n".join((PACKAGE / "models" / name).read_text(encoding="utf-8") for name in CODE)
    return found


def windows_of(tokens: Sequence[int], size: int, most: int) -> list[list[int]]:
    """Whole windows from the start of a text."""
    count = min(len(tokens) // size, most)
    return [list(tokens[at * size : (at + 1) * size]) for at in range(count)]


def compiled_scorer(decoder: CompiledDecoder) -> Scorer:
    config = decoder.config

    def score(tokens: Sequence[int]) -> Tensor:
        blocks = -(-len(tokens) // BLOCK) + 1
        pages = Pages(config.num_layers, blocks, config.num_kv_heads, config.head_dim)
        span = FedSpan(list(tokens), 0, list(range(1, blocks + 1)), logit_rows=len(tokens))
        return decoder.step([span], pages).logits

    return score


def float32_scorer(config: DecoderConfig, weights: Weights) -> Scorer:
    """The torch decoder over the numbers that the weights stand for."""
    numbers = {
        name: torch.cat([torch.from_numpy(part.expand()) for part in value])
        if isinstance(value, tuple)
        else torch.from_numpy(value)
        for name, value in weights.items()
    }
    decoder = Decoder(config, numbers)

    def score(tokens: Sequence[int]) -> Tensor:
        blocks = -(-len(tokens) // BLOCK) + 1
        cache = KVCache(config.num_layers, blocks, BLOCK, config.num_kv_heads, config.head_dim, torch.float32)
        slots = range(BLOCK, BLOCK + len(tokens))
        feed = Placed(list(tokens), 0, len(tokens), slots, logit_rows=len(tokens))
        return DecoderRunner(decoder, cache, invariant=False).forward([feed]).logits[0]

    return score


def scored(logits: Tensor) -> Tensor:
    """Logits of a whole window -> log-probabilities of its second half, cut off at `FLOOR` below the best."""
    rows = logits[len(logits) // 2 : -1]
    found = rows.float().log_softmax(-1)
    return torch.maximum(found, found.amax(-1, keepdim=True) - FLOOR)


def divergence(reference: Tensor, rows: Tensor) -> Tensor:
    """KL of each row, `[num_rows]` in float64, from log-probabilities; unlikely tokens are one event."""
    known = reference >= reference.amax(-1, keepdim=True) - KNOWN
    p, q = (each.double().exp().where(known, 0.0) for each in (reference, rows))
    rest_p, rest_q = ((1 - each.sum(-1)).clamp_min(1e-9) for each in (p, q))
    inside = (p * (reference.double() - rows.double()).where(known, 0.0)).sum(-1)
    return inside + rest_p * (rest_p / rest_q).log()


def compared(text: str, side: str, windows: Windows, found: Sequence[Tensor], exact: Sequence[Tensor]) -> Quality:
    """Return the figures of one text.

    Args:
        found: `scored` windows.
        exact: logits of whole windows, by float32.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    count = 0
    for tokens, rows, logits in zip(windows, found, exact, strict=True):
        reference = logits[len(tokens) // 2 : -1].float().log_softmax(-1)
        following = torch.tensor(tokens[len(tokens) // 2 + 1 :])[:, None]
        sums += torch.stack(
            [
                divergence(reference, rows).sum(),
                -rows.gather(1, following).double().sum(),
                -reference.gather(1, following).double().sum(),
                (rows.argmax(-1) == reference.argmax(-1)).double().sum(),
            ]
        )
        count += len(rows)
    kl, lost, exact_lost, same = (sums / count).tolist()
    perplexities = torch.tensor([lost, exact_lost], dtype=torch.float64).exp().tolist()
    return Quality(text, side, count, kl, perplexities[0], perplexities[1], same)


def rounded_anew(weights: Weights, kind: str) -> Weights:
    """The numbers that weights stand for, rounded to another format: as if they had been floats."""

    def again(name: str, part: StoredTensor) -> StoredTensor:
        return rounded(from_floats(part.expand()), rounded_kind(name, kind), pool)

    with ThreadPoolExecutor(usable_cores()) as pool:
        return {
            name: tuple(again(name, part) for part in each) if isinstance(each, tuple) else each
            for name, each in weights.items()
        }


def measure(
    config: DecoderConfig,
    stored: Weights,
    used: Weights,
    windows: Mapping[str, Windows],
    theirs: Mapping[str, Sequence[Tensor]] | None = None,
) -> list[Quality]:
    """Compare `used` with float32 of `stored`; one model is in memory at a time.

    Args:
        theirs: what another program found, `scored`.
    """
    decoder = CompiledDecoder(config, used)
    score = compiled_scorer(decoder)
    sides = {OURS: {name: [scored(score(each)) for each in parts] for name, parts in windows.items()}}
    decoder.close()
    del decoder, score
    if theirs:
        sides[THEIRS] = {name: list(found) for name, found in theirs.items()}
    exact = float32_scorer(config, stored)
    found = []
    for name, parts in windows.items():
        logits = [exact(each) for each in parts]
        found += [compared(name, side, parts, sides[side][name], logits) for side in sides]
    return found


def peer_scores(model: Path, text: str, size: int, most: int) -> tuple[list[list[int]], list[Tensor]]:
    """What llama.cpp finds in a text: its windows, and `scored` rows of each.

    Raises:
        GamanehError: the program was not built, or failed.
    """
    program = find_peer().program("llama-perplexity")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "text"), Path(folder, "scores")
        source.write_text(text, encoding="utf-8")
        sizes = ("--ctx-size", str(size), "--batch-size", str(size), "--chunks", str(most))
        files = ("--model", str(model), "--file", str(source), "--save-all-logits", str(out))
        command = [str(program), *files, *sizes, "--threads", str(usable_cores())]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or not out.exists():
            raise GamanehError(f"llama-perplexity must end with exit code 0: {done.stderr[-1000:]}")
        return read_scores(out)


def read_scores(path: Path) -> tuple[list[list[int]], list[Tensor]]:
    """Read the file that `llama-perplexity --save-all-logits` writes: windows, and `scored` rows of each.

    It holds the tokens, then for each row a scale and the lowest log-probability as float32, and 16-bit steps of that
    scale above it.
    """
    data = path.read_bytes()
    assert data[:8] == b"_logits_", "another kind of file"
    size, vocab, count = np.frombuffer(data, np.int32, 3, 8).tolist()
    tokens = np.frombuffer(data, np.int32, size * count, 20).reshape(count, size)
    width, rows = 2 * ((vocab + 1) // 2) + 4, size - 1 - size // 2
    values = np.frombuffer(data, np.uint16, offset=20 + tokens.nbytes).reshape(count, rows, width)
    heads = np.ascontiguousarray(values[..., :4]).view(np.float32)
    steps = values[..., 4 : 4 + vocab].astype(np.float32)
    found = steps * heads[..., :1] + heads[..., 1:]
    return tokens.tolist(), [torch.from_numpy(each) for each in found]


def with_begin(windows: Windows, opened: OpenModel) -> Windows:
    """Put the begin token at the start of each window where the tokenizer wants one, as llama.cpp does."""
    bos = opened.config.bos_id
    if bos is None or opened.tokenizer.encode("a")[0] != bos:
        return windows
    return [[bos, *window[1:]] for window in windows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--weights", choices=(STORED, *QUANTISED), default=STORED)
    parser.add_argument("--peer", action="store_true", help="llama.cpp beside ours, from the same GGUF file")
    parser.add_argument("--window", type=int, default=WINDOW, help=f"tokens (default {WINDOW})")
    parser.add_argument("--windows", type=int, default=WINDOWS, help=f"most of each text (default {WINDOWS})")
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.models:
            _measure_model(name, chosen)
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return 2
    return 0


def _measure_model(name: str, chosen: argparse.Namespace) -> None:
    opened = open_model(name)
    if chosen.peer and (opened.path.suffix != ".gguf" or chosen.weights != STORED):
        raise InvalidOption("--peer", "must come with a GGUF file and its stored weights", f"{name}, {chosen.weights}")
    windows: dict[str, Windows] = {}
    theirs: dict[str, Sequence[Tensor]] = {}
    for text, content in texts().items():
        if chosen.peer:
            windows[text], theirs[text] = peer_scores(opened.path, content, chosen.window, chosen.windows)
        else:
            windows[text] = windows_of(opened.tokenizer.encode(content), chosen.window, chosen.windows)
        windows[text] = with_begin(windows[text], opened)
    stored = stored_weights(opened.tensors)
    used = stored if chosen.weights == STORED else rounded_anew(stored, chosen.weights)
    rows = measure(opened.config, stored, used, windows, theirs)
    print(f"{opened.name}, weights {chosen.weights}")
    print(f"{'text':10} {'side':10} {'tokens':>7} {'KL':>9} {'perplexity':>11} {'float32':>9} {'same argmax':>12}")
    for row in rows:
        print(
            f"{row.text:10} {row.side:10} {row.tokens:7} {row.kl:9.5f} {row.perplexity:11.3f} "
            f"{row.float32_perplexity:9.3f} {row.same_argmax:12.4f}"
        )
    line = {
        "model": opened.name,
        "formats": list(opened.tensors.formats),
        "weights": chosen.weights,
        "machine": asdict(describe_machine()),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "texts": [asdict(row) for row in rows],
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
