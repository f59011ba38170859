"""A compiled step computes what the torch decoder computes, and a row's bits depend on its own tokens only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from compiled_models import compiled_decoder, compiled_weights, new_pages, span

from gamaneh.backends.compiled import compiled_decoder as under_test
from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan
from gamaneh.backends.compiled.pages import Pages
from gamaneh.errors import CorruptModel
from gamaneh.kv import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.decoder import Decoder
from gamaneh.models.runner import DecoderRunner
from gamaneh.testing.tiny import TINY_CONFIGS

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

TOKENS = [(7 * i * i + 3 * i + 1) % 251 for i in range(90)]
EXACT = ("float32", "bfloat16", "float16")
ROUNDED = ("int8", "int4")


def expected(family, fmt, tokens, taps=()):
    """Scores and tapped layers of the torch decoder in float32, over the same numbers."""
    config = TINY_CONFIGS[family]
    decoder = Decoder(config, dict(compiled_weights(config, fmt)[1]))
    cache = KVCache(config.num_layers, 20, 16, config.num_kv_heads, config.head_dim, torch.float32)
    feed = Placed(tokens, 0, len(tokens), range(16, 16 + len(tokens)), logit_rows=len(tokens))
    forward = DecoderRunner(decoder, cache, invariant=False).forward([feed], taps=taps)
    return forward.logits[0], forward.hidden[0] if taps else None


def whole(decoder, tokens=TOKENS, **options):
    """Scores of all rows from one step."""
    return decoder.step([span(tokens, 0, len(tokens))], new_pages(decoder.config), **options)


def difference(got, want):
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_float_weights_give_the_scores_of_the_torch_decoder(family):
    want, _ = expected(family, "float32", TOKENS)
    assert difference(whole(compiled_decoder(family, "float32")).logits, want) < 2e-3


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
def test_16_bit_weights_are_the_numbers_that_they_stand_for(fmt):
    want, _ = expected("llama", fmt, TOKENS)
    assert difference(whole(compiled_decoder("llama", fmt)).logits, want) < 2e-3


@pytest.mark.parametrize("fmt", ROUNDED)
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_quantised_weights_cost_only_what_rounding_of_activations_costs(family, fmt):
    want, _ = expected(family, fmt, TOKENS)
    assert difference(whole(compiled_decoder(family, fmt)).logits, want) < 0.05


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_taps_show_the_outputs_of_layers(family):
    _, want = expected(family, "float32", TOKENS, taps=(0, 1, 2))
    hidden = whole(compiled_decoder(family, "float32"), taps=(0, 1, 2)).hidden
    assert hidden.shape == want.shape
    for tap in range(3):
        assert difference(hidden[:, tap], want[:, tap]) < 2e-3


def test_leaving_early_gives_the_scores_of_that_layer():
    decoder = compiled_decoder("gemma3", "float32")
    config = decoder.config
    torch_decoder = Decoder(config, dict(compiled_weights(config, "float32")[1]))
    hidden = whole(decoder, taps=(1,)).hidden[:, 0]
    want = torch_decoder.logits(hidden, [len(TOKENS)])
    assert difference(whole(decoder, num_layers=1).logits, want) < 1e-5


@pytest.mark.parametrize("fmt", [*EXACT, *ROUNDED])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7, 33])
def test_rows_have_the_same_bits_however_the_tokens_are_cut(fmt, chunk):
    decoder = compiled_decoder("llama", fmt)
    pages = new_pages(decoder.config)
    parts = [decoder.step([span(TOKENS, at, min(at + chunk, 90))], pages).logits.clone() for at in range(0, 90, chunk)]
    assert torch.equal(torch.cat(parts), whole(decoder).logits)


@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("fmt", ["float32", "int8", "int4"])
def test_rows_have_the_same_bits_whatever_is_beside_them(family, fmt):
    decoder = compiled_decoder(family, fmt)
    others = [[(i * k + 5) % 251 for i in range(70)] for k in (3, 11, 13)]
    pages = new_pages(decoder.config)
    alone = [whole(decoder, tokens).logits for tokens in (TOKENS, *others)]
    done = [0, 0, 0, 0]
    texts = [TOKENS, *others]
    rng = np.random.default_rng(0)
    while any(at < len(text) for at, text in zip(done, texts, strict=True)):
        order = [int(i) for i in rng.permutation(4) if done[i] < len(texts[i])]
        stops = {i: min(len(texts[i]), done[i] + int(rng.integers(1, 20))) for i in order}
        logits = decoder.step([span(texts[i], done[i], stops[i], sequence=i) for i in order], pages).logits
        for i in order:
            count = stops[i] - done[i]
            got, logits = logits[:count], logits[count:]
            assert torch.equal(got, alone[i][done[i] : stops[i]])
            done[i] = stops[i]


@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("fmt", ["float32", "int8"])
@pytest.mark.parametrize("base", [5, 31, 60])
def test_nodes_of_a_tree_have_the_bits_of_a_chain(family, fmt, base):
    decoder = compiled_decoder(family, fmt)
    parents = [-1, 0, -1, 2, 0, 3, 5, 1]
    nodes = [17, 90, 18, 91, 92, 93, 94, 95]
    pages = new_pages(decoder.config)
    decoder.step([span(TOKENS, 0, base)], pages)
    tokens = [*TOKENS[: base + 1], *nodes]
    tree = decoder.step([span(tokens, base, len(tokens), parents=parents)], pages, taps=(2,))
    for node in range(len(nodes)):
        path, at = [], node
        while at >= 0:
            path.append(nodes[at])
            at = parents[at]
        chain = whole(decoder, [*TOKENS[: base + 1], *path[::-1]], taps=(2,))
        assert torch.equal(tree.logits[1 + node], chain.logits[-1])
        assert torch.equal(tree.hidden[1 + node], chain.hidden[-1])


def test_an_accepted_path_moves_together_and_goes_on_like_a_chain():
    decoder = compiled_decoder("mistral", "int8")
    pages = new_pages(decoder.config)
    base, parents, nodes = 40, [-1, -1, 1, 0], [17, 18, 19, 20]
    decoder.step([span([*TOKENS[:base], *nodes], 0, base + 4, parents=parents)], pages)
    blocks = span(TOKENS, 0, 1).blocks
    slots = [blocks[at // 16] * 16 + at % 16 for at in range(base, base + 4)]
    pages.move([slots[1], slots[2]], [slots[0], slots[1]])
    tokens = [*TOKENS[:base], 18, 19, 33]
    got = decoder.step([span(tokens, base + 2, base + 3)], pages).logits
    assert torch.equal(got[0], whole(decoder, tokens).logits[-1])


def test_the_number_of_threads_changes_no_bit():
    results = [whole(compiled_decoder("qwen3", "int4", threads=threads)).logits for threads in (1, 2, 3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_request_that_decodes_on_does_not_take_more_memory_with_every_token(monkeypatch):
    config, taken = TINY_CONFIGS["llama"], []
    decoder = CompiledDecoder(config, compiled_weights(config, "int8")[0], threads=1)
    pages = Pages(config.num_layers, 80, config.num_kv_heads, config.head_dim)
    allocate = under_test.aligned
    monkeypatch.setattr(under_test, "aligned", lambda *args: taken.append(np.prod(args[0])) or allocate(*args))
    for position in range(1000, 1100):
        decoder.step([FedSpan([5], position, list(range(1, 80)), logit_rows=1)], pages)
    assert sum(taken) < 2_000_000


def test_scores_are_computed_only_where_they_are_asked_for():
    decoder = compiled_decoder("llama", "int8")
    spans = [
        FedSpan(TOKENS[:20], 0, list(range(1, 9)), logit_rows=0),
        FedSpan(TOKENS[:30], 0, list(range(9, 17)), logit_rows=2),
    ]
    got = decoder.step(spans, new_pages(decoder.config)).logits
    assert torch.equal(got, whole(decoder, TOKENS[:30]).logits[-2:])


@pytest.mark.parametrize("fmt", ["float32", "int8"])
def test_a_row_gone_wrong_spoils_neither_its_neighbours_nor_who_gets_its_slots(fmt):
    decoder = compiled_decoder("llama", fmt)
    pages = new_pages(decoder.config)
    pages.keys[:] = np.nan
    pages.values[:] = np.nan
    bad = span(TOKENS, 20, 25, sequence=1)  # reads positions that nobody wrote
    logits = decoder.step([span(TOKENS, 0, 30), bad], pages).logits
    assert torch.equal(logits[:30], whole(decoder, TOKENS[:30]).logits)
    assert logits[30:].isnan().all()


@pytest.mark.parametrize("instructions", processor.available()[1:])
@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("fmt", ["float32", *ROUNDED])
def test_every_instruction_set_fixes_the_bits_of_a_row(fmt, family, instructions):
    decoder = compiled_decoder(family, fmt, instructions)
    want = whole(decoder).logits
    for chunk in (1, 3, 17):
        pages = new_pages(decoder.config)
        starts = range(0, 90, chunk)
        parts = [decoder.step([span(TOKENS, at, min(at + chunk, 90))], pages).logits.clone() for at in starts]
        assert torch.equal(torch.cat(parts), want)


@pytest.mark.parametrize("instructions", ["avxvnni", "avx2"])
@pytest.mark.parametrize("fmt", [*EXACT, *ROUNDED])
def test_other_instructions_give_nearly_the_same_scores(instructions, fmt):
    if instructions not in processor.available():
        pytest.skip(f"this processor has no {instructions}")
    got = whole(compiled_decoder("gemma3", fmt, instructions)).logits
    assert difference(got, whole(compiled_decoder("gemma3", fmt)).logits) < 0.02


@pytest.mark.parametrize("fmt", ["float32", "int8"])
def test_heads_get_the_scores_of_hidden_states(fmt):
    decoder = compiled_decoder("qwen2", fmt)
    outcome = whole(decoder, taps=(2,))
    assert torch.equal(decoder.scores(outcome.hidden[:, 0]), outcome.logits)
    normed = torch.nn.functional.rms_norm(
        outcome.hidden[:, 0],
        (decoder.config.hidden_size,),
        compiled_weights(decoder.config, fmt)[1]["norm"],
        decoder.config.norm_eps,
    )
    assert difference(decoder.scores(normed, norm=False), outcome.logits) < 1e-4


@pytest.mark.parametrize("name", ["embedding", "head", "layers.1.down.weight"])
@pytest.mark.parametrize("fmt", ["float32", "int8"])
def test_weights_that_are_not_finite_are_refused_by_their_tensor(name, fmt):
    config = TINY_CONFIGS["llama"]
    weights = dict(compiled_weights(config, fmt)[0])
    raw = weights[name][0].raw.copy()
    raw[5, :4] = 255
    weights[name] = (replace(weights[name][0], raw=raw), *weights[name][1:])
    told = name.removesuffix(".weight")
    with pytest.raises(CorruptModel, match=f"tensor {told}: .* must be finite numbers, got NaN"):
        CompiledDecoder(config, weights, threads=1)
