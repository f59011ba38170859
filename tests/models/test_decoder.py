"""A row's logits depend on its tokens only: not on chunks, neighbours, drafts or the order of slots."""

from __future__ import annotations

import pytest
import torch

from gamaneh.kv import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.decoder import Decoder
from gamaneh.models.runner import DecoderRunner
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_decoder

BLOCKS, BLOCK_SIZE = 40, 16
PROMPT = [(7 * i + 3) % 251 for i in range(70)]


def make_runner(decoder: Decoder, *, invariant: bool) -> DecoderRunner:
    config = decoder.config
    cache = KVCache(config.num_layers, BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim, decoder.dtype)
    return DecoderRunner(decoder, cache, invariant=invariant)


def slots_of(sequence: int, count: int) -> list[int]:
    """Slots of one of several sequences, in blocks that are not consecutive."""
    blocks = [1 + sequence + 3 * i for i in range(-(-count // BLOCK_SIZE))]
    return [block * BLOCK_SIZE + offset for block in blocks for offset in range(BLOCK_SIZE)][:count]


def feed(tokens: list[int], start: int, stop: int, *, sequence: int = 0, prompt_len: int = len(PROMPT)) -> Placed:
    return Placed(tokens[start:stop], start, prompt_len, slots_of(sequence, stop), logit_rows=stop - start)


def reference(decoder: Decoder, tokens: list[int], *, invariant: bool = False) -> torch.Tensor:
    """Logits of every row, prompt in one piece and then token by token."""
    runner = make_runner(decoder, invariant=invariant)
    prompt_len = min(len(PROMPT), len(tokens))
    rows = [runner.forward([feed(tokens, 0, prompt_len)]).logits[0]]
    rows += [runner.forward([feed(tokens, at, at + 1)]).logits[0] for at in range(prompt_len, len(tokens))]
    return torch.cat(rows)


TOKENS = [*PROMPT, *((11 * i + 5) % 251 for i in range(20))]


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_logits_are_those_of_one_piece_however_the_tokens_are_fed(family: str) -> None:
    decoder = tiny_decoder(family)
    runner = make_runner(decoder, invariant=False)
    rows = [runner.forward([feed(TOKENS, at, min(at + 13, 90))]).logits[0] for at in range(0, 90, 13)]
    torch.testing.assert_close(torch.cat(rows), reference(decoder, TOKENS), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 20, 64])
def test_invariant_logits_have_the_same_bits_however_the_tokens_are_fed(
    family: str, dtype: torch.dtype, chunk: int
) -> None:
    decoder = tiny_decoder(family, dtype=dtype)
    runner = make_runner(decoder, invariant=True)
    rows = [runner.forward([feed(TOKENS, at, min(at + chunk, 90))]).logits[0] for at in range(0, 90, chunk)]
    assert torch.equal(torch.cat(rows), reference(decoder, TOKENS, invariant=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_logits_have_the_same_bits_beside_other_requests(dtype: torch.dtype) -> None:
    decoder = tiny_decoder(dtype=dtype)
    runner = make_runner(decoder, invariant=True)
    other = TOKENS[::-1]
    runner.forward([feed(TOKENS, 0, 70), feed(other, 0, 33, sequence=1), feed(other, 0, 70, sequence=2)])
    mixed = runner.forward([feed(other, 33, 61, sequence=1), feed(TOKENS, 70, 77), feed(other, 70, 71, sequence=2)])
    assert torch.equal(mixed.logits[1], reference(decoder, TOKENS, invariant=True)[70:77])


def tree_feed(tokens: list[int], nodes: list[int], parents: tuple[int, ...], pending: int = 1) -> Placed:
    """The last of `tokens` are pending and a tree follows them."""
    start = len(tokens) - pending
    slots = slots_of(0, len(tokens) + len(nodes))
    return Placed([*tokens[start:], *nodes], start, len(PROMPT), slots, parents=parents, logit_rows=1 + len(nodes))


NODES, PARENTS = [5, 9, 77, 3, 200, 8], (-1, -1, 0, 0, 2, 1)


def path_to(node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(NODES[node])
        node = PARENTS[node]
    return path[::-1]


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_each_node_of_a_tree_sees_its_own_path_only(family: str) -> None:
    decoder = tiny_decoder(family)
    runner = make_runner(decoder, invariant=False)
    runner.forward([feed(TOKENS, 0, 80)])
    logits = runner.forward([tree_feed(TOKENS[:81], NODES, PARENTS)]).logits[0]
    for node in range(len(NODES)):
        expected = reference(decoder, [*TOKENS[:81], *path_to(node)])[-1]
        torch.testing.assert_close(logits[1 + node], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("pending", [4, 15], ids=["several", "the end of the prompt too"])
def test_tokens_before_a_tree_see_nothing_of_it(pending: int) -> None:
    decoder = tiny_decoder()
    runner = make_runner(decoder, invariant=False)
    runner.forward([feed(TOKENS, 0, 81 - pending)])
    tree = tree_feed(TOKENS[:81], NODES, PARENTS, pending)
    tree.logit_rows = pending + len(NODES)
    logits = runner.forward([tree]).logits[0]
    expected = reference(decoder, TOKENS[:81])[81 - pending :]
    torch.testing.assert_close(logits[:pending], expected, atol=2e-4, rtol=1e-4)
    last = reference(decoder, [*TOKENS[:81], *path_to(4)])[-1]
    torch.testing.assert_close(logits[pending + 4], last, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_invariant_tree_nodes_have_the_bits_of_plain_decoding(dtype: torch.dtype) -> None:
    decoder = tiny_decoder(dtype=dtype)
    runner = make_runner(decoder, invariant=True)
    runner.forward([feed(TOKENS, 0, 70)])
    runner.forward([feed(TOKENS, 70, 80)])
    logits = runner.forward([tree_feed(TOKENS[:81], NODES, PARENTS)]).logits[0]
    for node in range(len(NODES)):
        expected = reference(decoder, [*TOKENS[:81], *path_to(node)], invariant=True)[-1]
        assert torch.equal(logits[1 + node], expected)


def test_taps_return_hidden_states_in_the_order_of_the_tokens() -> None:
    decoder = tiny_decoder()
    runner = make_runner(decoder, invariant=True)
    whole = runner.forward([feed(TOKENS, 0, 75)], taps=(0, 2)).hidden[0]
    assert whole.shape == (75, 2, decoder.config.hidden_size)
    assert torch.equal(whole[:, 0], decoder.embedding[torch.tensor(TOKENS[:75])])
