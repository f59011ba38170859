from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_training import tiny_target

from gamaneh.errors import ModelError
from gamaneh.kv.cache import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.runner import DecoderRunner
from gamaneh.train import features, reading
from gamaneh.train.features import compute_features
from gamaneh.train.samples import Sample

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS = (0, 1, 2)


def ignore(done: int, total: int) -> None:
    """Nobody watches."""


def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    texts = [tuple(torch.randint(0, 250, (length,), generator=generator).tolist()) for length in (40, 3, 25, 18)]
    return [Sample(text, ((2, len(text)),), "all") for text in texts]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_features_are_those_of_the_runner_text_by_text(tmp_path: Path, family: str) -> None:
    loaded = tiny_target(family)
    config = loaded.config
    store = compute_features(loaded, samples(), LAYERS, tmp_path, ignore)
    batch = store.batch([0, 1, 2, 3])

    for at, sample in enumerate(samples()):
        cache = KVCache(config.num_layers, 64, 1, config.num_kv_heads, config.head_dim, loaded.dtype)
        runner = DecoderRunner(loaded.decoder, cache, invariant=False)
        length = len(sample.tokens)
        feed = Placed(sample.tokens, 0, 0, range(1, length + 1), first_slot=1, logit_rows=length)
        forward = runner.forward([feed], taps=LAYERS)
        torch.testing.assert_close(batch.hidden[at, :length], forward.hidden[0], atol=1e-4, rtol=1e-4)
        # Known behind the tokens from 1 on, as those from 2 on are learned from.
        logits = forward.logits[0][1:-1]
        assert batch.greedy[at, 1 : length - 1].equal(logits.argmax(-1))
        torch.testing.assert_close(batch.logsumexp[at, 1 : length - 1], logits.logsumexp(-1), atol=1e-4, rtol=1e-4)
        assert batch.learned[at].sum() == sample.num_learned


def test_a_part_that_was_written_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "TOKENS_AT_ONCE", 45)
    loaded = tiny_target()
    whole = compute_features(loaded, samples(), LAYERS, tmp_path / "whole", ignore).batch([0, 1, 2, 3])
    compute_features(loaded, samples(), LAYERS, tmp_path / "part", ignore)
    (file,) = (tmp_path / "part").iterdir()
    row = file.stat().st_size // (40 + 3 + 25 + 18)
    with file.open("r+b") as stream:
        stream.truncate(row * 50 + 7)
    ticks: list[tuple[int, int]] = []

    again = compute_features(loaded, samples(), LAYERS, tmp_path / "part", lambda *tick: ticks.append(tick))

    assert ticks[0] == (43, 86)
    assert again.batch([0, 1, 2, 3]).hidden.equal(whole.hidden)


def test_texts_layers_and_target_tell_files_apart(tmp_path: Path) -> None:
    loaded = tiny_target()
    for layers, texts, target in (
        (LAYERS, samples(), loaded),
        ((2,), samples(), loaded),
        (LAYERS, samples()[1:], loaded),
        (LAYERS, samples(), tiny_target("qwen2")),
    ):
        compute_features(target, texts, layers, tmp_path, ignore)

    assert len(list(tmp_path.iterdir())) == 4


def test_columns_are_found_by_layer(tmp_path: Path) -> None:
    store = compute_features(tiny_target(), samples(), (2, 0), tmp_path, ignore)

    assert store.columns([0, 2]) == [1, 0]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelError, match="must be writable"):
        compute_features(tiny_target(), samples(), LAYERS, tmp_path / "file", ignore)


def test_more_texts_than_fit_at_once_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, texts = tiny_target(), [sample.tokens for sample in samples()]
    together = reading.TargetReader(loaded, 40).read(texts, [2])
    monkeypatch.setattr(reading, "TOKENS_AT_ONCE", 45)

    apart = reading.TargetReader(loaded, 40).read(texts, [2])

    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_groups_keep_to_the_limit_and_leave_nothing_out() -> None:
    groups = list(reading.grouped([5, 4, 12, 1, 1, 9], 10))

    assert groups == [range(2), range(2, 3), range(3, 5), range(5, 6)]
