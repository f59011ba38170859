"""From a name or a path to a model that runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gamaneh.errors import CorruptModel, InvalidOption, ModelError, OutOfMemory
from gamaneh.models.canonical import canonical_weights
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.families import decoder_config, token_ids
from gamaneh.models.gguf import GgufWeights, gguf_config
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.models.weights import SafetensorsWeights, WeightSource, read_json

Progress = Callable[[int, int], None]
"""Called with the number of tensors read and their total."""

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "vocab.txt", "merges.txt")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    Args:
        name: what the user called it.
        path: where it lies.
        weight_bytes: what its weights take in memory.
    """

    name: str
    path: Path
    config: DecoderConfig
    decoder: Decoder
    tokenizer: Tokenizer
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class _Opened:
    config: DecoderConfig
    tokenizer: Tokenizer
    weights: WeightSource


def load(
    model: str | Path, *, dtype: str = "auto", device: str = "auto", progress: Progress | None = None
) -> LoadedModel:
    """Read a model: a Hugging Face folder, a GGUF file, a name of the catalogue or a hub id.

    Args:
        dtype: `float32`, `bfloat16` or `auto`: bfloat16 where the device computes with
            it natively, else float32.
        device: as torch names it, or `auto`: CUDA where there is one, else the CPU.

    Raises:
        ModelError: the model is not there, is damaged, or needs something that we do not have.
        InvalidOption: `dtype` or `device` is wrong.
        OutOfMemory: the weights do not fit.
    """
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    path = resolve(model)
    opened = _open_gguf(path) if path.is_file() else _open_folder(path)
    decoder = _decoder(opened, chosen_dtype, chosen_device, progress)
    return LoadedModel(
        name=_name(model, path),
        path=path,
        config=opened.config,
        decoder=decoder,
        tokenizer=opened.tokenizer,
        dtype=chosen_dtype,
        device=chosen_device,
        weight_bytes=decoder.nbytes(),
    )


def resolve(model: str | Path) -> Path:
    """The folder or file of a model: a path, a name of the catalogue that was pulled, or a hub id.

    Raises:
        ModelError: there is no such model.
    """
    path = Path(model).expanduser()
    if path.exists():
        return _single_file(path)
    name = str(model)
    if _HUB_ID.fullmatch(name) and not name.endswith(".gguf"):
        return _from_hub(name)
    return _from_catalogue(name)


def choose_device(name: str) -> torch.device:
    """The device called `name`.

    Raises:
        InvalidOption: torch does not know it, or this machine does not have it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidOption("device", "must be auto or a device of this machine", name) from error
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type of weights called `name`.

    Raises:
        InvalidOption: it is none of ours.
    """
    if name == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else torch.float32
    if name not in DTYPES:
        raise InvalidOption("dtype", f"must be auto or one of {', '.join(DTYPES)}", name)
    return DTYPES[name]


def _open_folder(folder: Path) -> _Opened:
    """Config, tokenizer and weights of a Hugging Face folder."""
    config = decoder_config(read_json(folder / "config.json"))
    generation = folder / "generation_config.json"
    eos_ids = token_ids(read_json(generation).get("eos_token_id")) if generation.is_file() else ()
    tokenizer = Tokenizer.from_folder(folder, eos_ids or config.eos_ids)
    return _Opened(replace(config, eos_ids=tokenizer.eos_ids), tokenizer, SafetensorsWeights(folder))


def _open_gguf(path: Path) -> _Opened:
    """Config, tokenizer and weights of a GGUF file."""
    file = GgufFile(path)
    config = gguf_config(file)
    tokenizer = Tokenizer.from_gguf(file, config.eos_ids)
    return _Opened(replace(config, eos_ids=tokenizer.eos_ids), tokenizer, GgufWeights(file, config))


def _decoder(opened: _Opened, dtype: torch.dtype, device: torch.device, progress: Progress | None) -> Decoder:
    try:
        weights = canonical_weights(opened.config, opened.weights, dtype=dtype, device=device, progress=progress)
        return Decoder(opened.config, weights)
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error):
            raise
        raise OutOfMemory(f"weights must fit into the memory of {device} as {dtype}: {error}") from error
    finally:
        opened.weights.close()


def _computes_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    abilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(abilities.get("amx_bf16") or abilities.get("avx512_bf16"))


def _single_file(path: Path) -> Path:
    """A folder that holds one GGUF file and no `config.json` stands for that file."""
    if path.is_file() or (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        raise CorruptModel(f"{path} must hold config.json or one GGUF file, got {len(files)} GGUF files")
    return files[0]


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"model must be a path or a repository of the hub, got {name!r}: {error}") from error


def _from_catalogue(name: str) -> Path:
    from gamaneh.models import fetch

    path = fetch.find(name)
    if path is None:
        raise ModelError(f"model {name} must be fetched first: gamaneh pull {name}")
    return path


def _name(model: str | Path, path: Path) -> str:
    if Path(model).expanduser().exists():
        return path.stem if path.is_file() else path.resolve().name
    return str(model)
