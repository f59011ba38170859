"""`transformers` with the weights of our model, to be measured beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.generation.streamers import BaseStreamer

from gamaneh.core import FinishReason
from gamaneh.engine.llm import Generation
from gamaneh.errors import InvalidRequest
from gamaneh.models.gguf import GgufWeights, gguf_config
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.weights import read_tensor
from gamaneh.options import SamplingParams
from tools.speed.configuration import fixed_length


class Peer:
    """A model of `transformers` behind the face of an `LLM`: greedy, a fixed number of tokens, with a KV cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        # Without end tokens nothing ends early; a model's own defaults would fill in what is not set here.
        model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, use_cache=True, pad_token_id=0
        )

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        *,
        references: Sequence[str | None] | None = None,
        salt: str = "",
    ) -> list[Generation]:
        """Answer prompts of token ids one after the other.

        `references` are for proposers and not read; nor is `salt`, for nothing is kept between requests.

        Raises:
            InvalidRequest: `params` are more than greedy decoding of a fixed number of tokens.
        """
        if params.max_tokens is None or params != fixed_length(params.max_tokens):
            raise InvalidRequest("params", "must be greedy and of fixed length", params)
        return [self._answer([int(token) for token in prompt], params.max_tokens) for prompt in prompts]

    @torch.inference_mode()
    def _answer(self, prompt: list[int], max_tokens: int) -> Generation:
        ids, clock = torch.tensor([prompt]), _Clock()
        whole: Tensor = self._model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, streamer=clock
        )
        _, first_token, *_ = clock.seconds  # the prompt is put first
        return Generation(
            request_id="",
            prompt_tokens=prompt,
            tokens=whole[0, len(prompt) :].tolist(),
            finish_reason=FinishReason.LENGTH,
            seconds=clock.seconds[-1],
            first_token_seconds=first_token,
        )


class _Clock(BaseStreamer):
    """Notes when tokens arrive."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = time.perf_counter()

    def put(self, value: Tensor) -> None:
        self.seconds.append(time.perf_counter() - self._started)

    def end(self) -> None:
        """Nothing is left to note."""


def load_peer(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model at `path`, a Hugging Face folder or a GGUF file, in `transformers`.

    The tensors of a GGUF file come from our own reader: the same weights to the bit, and never a
    second copy of them in float32.
    """
    model = _from_folder(path, dtype) if path.is_dir() else _from_gguf(path, dtype)
    model.train(False)
    return model


def _from_folder(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    return model


def _from_gguf(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model: PreTrainedModel = kind.from_pretrained(
        None, config=config, state_dict=_gguf_tensors(path, dtype), dtype=dtype
    )
    return model


def _gguf_tensors(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    with closing(GgufFile(path)) as file:
        weights = GgufWeights(file, gguf_config(file))
        return {name: read_tensor(weights, name, dtype) for name in weights.names}
