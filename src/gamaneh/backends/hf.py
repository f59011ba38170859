"""Any causal language model that `transformers` loads, with that library's own cache: the proof that the door fits.

One sequence is computed at a time and drafts are chains, so this is for models that no other backend knows, not for
speed. Where the library's cache can be cut back, refused candidates are cut off. Where it cannot (a state-space model
folds all it read into one state), the state before the draft is kept, and the accepted tokens are read again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from gamaneh.core import Caps, Feed, Room
from gamaneh.errors import InvalidOption, UnsupportedModel
from gamaneh.models.config import DecoderConfig, LayerSpec
from gamaneh.models.end_tokens import end_ids, folder_ends
from gamaneh.models.loading import LoadedModel, choose_device, choose_dtype
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import Precision


@dataclass(frozen=True, slots=True, eq=False)
class LibraryModel:
    """A model of the library in the place of our decoder: it runs, but shows no layers."""

    model: PreTrainedModel
    config: DecoderConfig

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    def nbytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.model.parameters())


def load_library_model(folder: Path, name: str, precision: Precision, device: str) -> LoadedModel:
    """Load a Hugging Face folder as the library does.

    Raises:
        UnsupportedModel: it is no folder, or the library cannot load it as a causal language model.
        CorruptModel: its tokenizer cannot be read.
        InvalidOption: `device` or `precision` is wrong.
    """
    if not folder.is_dir():
        raise UnsupportedModel(f"backend hf must be given a Hugging Face folder, got the file {folder}")
    where = choose_device(device)
    dtype = choose_dtype(precision, where)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # the library raises what it likes at a folder that it does not know
        raise UnsupportedModel(f"transformers cannot load {folder} as a causal language model: {error}") from error
    torch.nn.Module.to(model, where).train(False)
    tokenizer = Tokenizer.from_folder(folder)
    rows = int(model.config.get_text_config().vocab_size)
    ends = model.config.get_text_config().eos_token_id
    stated = [ends] if isinstance(ends, int) else list(ends or ())
    tokenizer.eos_ids = end_ids(folder_ends(folder, stated, tokenizer, rows), tokenizer, rows)
    described = LibraryModel(model, _described(model, tokenizer.eos_ids))
    return LoadedModel(
        name=name,
        path=folder,
        config=described.config,
        decoder=described,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        dtype=dtype,
        device=where,
        weight_bytes=described.nbytes(),
    )


def _described(model: PreTrainedModel, eos_ids: tuple[int, ...]) -> DecoderConfig:
    """What can be told of any model, in our words; nothing computes with it."""
    config = model.config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0) or 1)
    return DecoderConfig(
        family=str(config.model_type),
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        intermediate_size=int(getattr(config, "intermediate_size", 0) or 0),
        num_heads=heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", 0) or heads),
        head_dim=int(config.hidden_size) // heads,
        layers=(LayerSpec(),) * int(config.num_hidden_layers),
        max_context=_longest(config) or UNBOUNDED,
        eos_ids=eos_ids,
    )


UNBOUNDED = 1 << 17
"""Context of a model that states none: a state-space model goes on for ever."""


def _longest(config: Any) -> int:
    return int(getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 0) or 0)


@dataclass(slots=True)
class _LibrarySequence:
    """One sequence in the library's cache.

    Args:
        length: tokens that are committed; the cache holds no others.
        reserved: tokens that room was made for behind them.
        cache: the library's; None before anything was read.
        before: the cache as it was before a draft, where it cannot be cut back.
    """

    length: int = 0
    reserved: int = 0
    cache: Any = None
    before: Any = None


class HFBackend:
    """Runs a model of `transformers`.

    Args:
        model: on its device, in evaluation mode.
        total: tokens of all sequences together that there is room for.
    """

    def __init__(self, model: PreTrainedModel, total: int) -> None:
        self.model, self.total = model, total
        config = model.config.get_text_config()
        rows = model.lm_head.weight.shape[0] if hasattr(model, "lm_head") else int(config.vocab_size)
        self.caps = Caps(
            vocab_size=rows,
            max_context=_longest(config) or total,
            num_layers=int(config.num_hidden_layers),
            trees=False,
            weight_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        )
        self._parameters = inspect.signature(type(model).forward).parameters
        # The library renamed its parameter; a cache that the model did not take would be read anew each time.
        self._cache_name = next(name for name in ("cache", "past_key_values") if name in self._parameters)
        self._sequences: dict[str, _LibrarySequence] = {}

    def admit(self, request_id: str, tokens: Sequence[int], *, prompt_len: int = 0, salt: str = "") -> int:
        """Take a sequence in. No prefix is ever found: the library's caches are not shared."""
        if request_id in self._sequences:
            raise ValueError(f"request_id must not be in use, got {request_id!r}")
        self._sequences[request_id] = _LibrarySequence()
        return 0

    def length(self, request_id: str) -> int:
        return self._sequences[request_id].length

    def reserve(self, request_id: str, extra: int) -> bool:
        cached = self._sequences[request_id]
        if extra > cached.reserved and extra - cached.reserved > self.room().free:
            return False
        cached.reserved = max(cached.reserved, extra)
        return True

    def room(self) -> Room:
        used = sum(cached.length + cached.reserved for cached in self._sequences.values())
        return Room(self.total - used, self.total)

    @torch.inference_mode()
    def verify(self, feeds: Sequence[Feed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> None:
        """Compute each sequence by itself.

        Raises:
            InvalidOption: a draft branches, or layers are tapped or left out.
        """
        if taps or num_layers is not None:
            raise InvalidOption("backend", "must be another for proposers that read or leave out layers", "hf")
        for feed in feeds:
            cached = self._sequences[feed.request_id]
            start = cached.length + feed.written
            if not feed.draft.is_chain:
                raise InvalidOption("backend", "must be another for drafts that branch", "hf")
            tokens = [*feed.tokens[start : start + feed.count], *feed.draft.tokens]
            if len(feed.draft) and not _can_be_cut(cached.cache):
                cached.before = copy.deepcopy(cached.cache)
            logits = self._read(cached, tokens, start)
            feed.scores = logits[len(tokens) - feed.logit_rows :]
            bad = (~logits.isfinite().all(-1)).nonzero().flatten().tolist() if not bool(logits.sum().isfinite()) else ()
            feed.broken = tuple(bad)

    @torch.inference_mode()
    def commit(self, feeds: Sequence[Feed]) -> None:
        """Keep what was accepted: cut the rest off, or read the kept tokens again from the state before the draft."""
        for feed in feeds:
            cached = self._sequences[feed.request_id]
            kept = feed.count + len(feed.kept)
            fed = self._fed(cached)
            if cached.before is not None:
                if kept < feed.count + len(feed.draft):
                    cached.cache = cached.before
                    self._read(cached, feed.tokens[cached.length : cached.length + kept], cached.length)
                cached.before = None
            elif fed is not None and fed > cached.length + kept:
                cached.cache.crop(cached.length + kept - fed)
            cached.length += kept
            cached.reserved = 0

    def truncate(self, request_id: str, length: int) -> int:
        """Forget the rows from `length` on; all rows where the cache cannot be cut back."""
        cached = self._sequences[request_id]
        if length < cached.length:
            if _can_be_cut(cached.cache) and length > 0:
                cached.cache.crop(length - cached.length)
                cached.length = length
            else:
                cached.cache, cached.length = None, 0
        return cached.length

    def release(self, request_ids: Iterable[str], *, publish: bool = True) -> None:
        for request_id in request_ids:
            del self._sequences[request_id]

    def computed_rows(self, rows: int) -> int:
        return rows

    @torch.inference_mode()
    def time_rows(self, rows: int, clock: Callable[[], float]) -> float:
        started = clock()
        self._read(_LibrarySequence(), [0] * rows, 0)
        return clock() - started

    def memory_bytes(self) -> int:
        """Return the bytes of the weights; the library does not tell those of its caches."""
        return self.caps.weight_bytes

    def check_integrity(self) -> None:
        """Raise AssertionError where a cache does not hold the committed tokens, no more and no less."""
        for request_id, cached in self._sequences.items():
            fed = self._fed(cached)
            assert fed is None or fed == cached.length, f"{request_id}: {fed} tokens cached, {cached.length} committed"

    def _read(self, cached: _LibrarySequence, tokens: Sequence[int], start: int) -> Tensor:
        """`[len(tokens), vocab]` logits; the tokens enter the cache.

        A state is continued by one token at a time: given more, the library begins anew.
        """
        if cached.cache is None:
            cached.cache = DynamicCache(config=self.model.config)
        if start == 0 or len(tokens) == 1 or _can_be_cut(cached.cache):
            return self._forward(cached, tokens, start)
        return torch.cat([self._forward(cached, [token], start + at) for at, token in enumerate(tokens)])

    def _forward(self, cached: _LibrarySequence, tokens: Sequence[int], start: int) -> Tensor:
        device = self.model.device
        keywords: dict[str, Any] = {self._cache_name: cached.cache}
        if "position_ids" in self._parameters:
            keywords["position_ids"] = torch.arange(start, start + len(tokens), device=device)[None]
        ids = torch.tensor([list(tokens)], device=device)
        logits: Tensor = self.model(input_ids=ids, use_cache=True, **keywords).logits[0]
        return logits

    def _fed(self, cached: _LibrarySequence) -> int | None:
        """Tokens that the cache says it holds; None where it does not tell."""
        return int(cached.cache.get_seq_length()) if _can_be_cut(cached.cache) else None


def _can_be_cut(cache: Any) -> bool:
    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
