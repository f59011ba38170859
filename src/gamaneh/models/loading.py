"""From a name or a path to a model that runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gamaneh.errors import CorruptModel, InvalidOption, ModelError, OutOfMemory, UnsupportedModel
from gamaneh.models.canonical import ModelTensors, read_all, with_own_head
from gamaneh.models.catalogue import names
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.end_tokens import end_ids, folder_ends
from gamaneh.models.families import decoder_config
from gamaneh.models.gguf import GgufWeights, gguf_config
from gamaneh.models.gguf_file import GgufFile, split_name
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.models.weights import ADAPTER, SafetensorsWeights, WeightSource, read_json
from gamaneh.options import Precision

LOGGER = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True, eq=False)
class OpenModel:
    """A model whose files are open and checked; no weights are read.

    Args:
        name: what the user called it.
        path: where it lies.
        tensors: its weights, as they are stored or as numbers.
    """

    name: str
    path: Path
    config: DecoderConfig
    tokenizer: Tokenizer
    tensors: ModelTensors

    def close(self) -> None:
        """Let go of the files. No tensor can be read afterwards."""
        self.tensors.close()


@dataclass(frozen=True, slots=True)
class Role:
    """Whose weights are loaded, and which option names them."""

    title: str
    option: str


TARGET = Role("target", "model")
DRAFT = Role("draft model", "draft_model")
HEADS = Role("heads", "heads")


@contextmanager
def blaming(role: Role, place: str | Path) -> Iterator[None]:
    """Let errors of loading say whose weights they are about, where those lie, and which option named them.

    Raises:
        ModelError: as the body does.
        OutOfMemory: as the body does.
    """
    try:
        yield
    except (ModelError, OutOfMemory) as error:
        raise type(error)(f"{role.title} {place} (option {role.option}): {error}") from error


def open_model(model: str | Path, *, role: Role = TARGET) -> OpenModel:
    """Open a model: a Hugging Face folder, a GGUF file, a name of the catalogue or a hub id.

    Config, tokenizer and the shapes of all tensors are read and checked; the weights themselves are not read.

    Args:
        role: whose weights they are, for errors.

    Raises:
        ModelError: the model is not there, is damaged, contradicts itself, or needs something that we do not have.
    """
    with blaming(role, model):
        path = resolve(model)
        config, tokenizer, source = _open_gguf(path) if path.is_file() else _open_folder(path)
        try:
            tokenizer.warn_of_rows(config.vocab_size, str(path))
            config = with_own_head(config, source, str(path))
            ends = end_ids(config.eos_ids, tokenizer, config.vocab_size)
            tokenizer.eos_ids = ends
            return OpenModel(
                name=_name(model, path),
                path=path,
                config=replace(config, eos_ids=ends),
                tokenizer=tokenizer,
                tensors=ModelTensors(config, source),
            )
        except ModelError:
            source.close()
            raise


def load(
    model: str | Path | OpenModel,
    *,
    precision: Precision | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    role: Role = TARGET,
) -> LoadedModel:
    """Read a model: a Hugging Face folder, a GGUF file, a name of the catalogue or a hub id.

    Args:
        model: which; one that is open already is closed.
        precision: how its numbers are kept and computed; by default bfloat16 where the device computes with it
            natively, else float32.
        device: as torch names it, or `auto`: CUDA where there is one, else the CPU.
        role: whose weights they are, for errors.

    Raises:
        ModelError: the model is not there, is damaged, or needs something that we do not have.
        InvalidOption: `device` is wrong, or `precision` asks for what this backend does not have.
        OutOfMemory: the weights do not fit.
    """
    chosen_device, asked = choose_device(device), precision or Precision()
    choose_dtype(asked, chosen_device)
    opened = model if isinstance(model, OpenModel) else open_model(model, role=role)
    chosen_dtype = choose_dtype(asked, chosen_device, opened.tensors.formats)
    with blaming(role, opened.name):
        decoder = _decoder(opened, chosen_dtype, chosen_device, progress)
    return LoadedModel(
        name=opened.name,
        path=opened.path,
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
        ModelError: there is no such model, or a folder holds none or several.
    """
    path = Path(model).expanduser()
    if path.exists():
        return _chosen_in(path)
    name = str(model)
    if _is_path(path, name):
        raise ModelError(f"no file or folder is at {path}")
    if "/" in name:
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


def choose_dtype(precision: Precision, device: torch.device, formats: Sequence[str] = ()) -> torch.dtype:
    """The type that torch keeps and computes a model in.

    Args:
        formats: of the matrices in the file, where they are known.

    Raises:
        InvalidOption: torch does not have what is asked for.
    """
    weights = precision.weights
    if weights == "auto":
        weights = precision.compute
    if weights == "auto":
        weights = "bfloat16" if _computes_bfloat16(device) else "float32"
    if weights == "stored":
        if len(formats) > 1 or not DTYPES.keys() >= set(formats):
            rule = "must be float32 or bfloat16 where torch runs the model, and the file holds others"
            raise InvalidOption("weights", rule, f"stored ({', '.join(formats)})")
        weights = next(iter(formats), "float32")
    if weights not in DTYPES:
        rule = f"must be auto, stored, {' or '.join(DTYPES)} where torch runs the model"
        raise InvalidOption("weights", rule, weights)
    for name in ("compute", "kv"):
        value = getattr(precision, name)
        if value not in ("auto", weights):
            rule = f"must be auto or that of the weights ({weights}) where torch runs the model"
            raise InvalidOption(name, rule, value)
    return DTYPES[weights]


def _open_folder(folder: Path) -> tuple[DecoderConfig, Tokenizer, WeightSource]:
    """Config, tokenizer and weights of a Hugging Face folder."""
    config = decoder_config(read_json(folder / "config.json"), str(folder / "config.json"))
    source = SafetensorsWeights(folder)
    tokenizer = Tokenizer.from_folder(folder)
    stated = folder_ends(folder, config.eos_ids, tokenizer, config.vocab_size)
    return replace(config, eos_ids=stated), tokenizer, source


def _open_gguf(path: Path) -> tuple[DecoderConfig, Tokenizer, WeightSource]:
    """Config, tokenizer and weights of a GGUF file."""
    file = GgufFile(path)
    config = gguf_config(file)
    return config, Tokenizer.from_gguf(file), GgufWeights(file, config)


def _decoder(opened: OpenModel, dtype: torch.dtype, device: torch.device, progress: Progress | None) -> Decoder:
    try:
        return Decoder(opened.config, read_all(opened.tensors, dtype=dtype, device=device, progress=progress))
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error):
            raise
        raise OutOfMemory(f"weights must fit into the memory of {device} as {dtype}: {error}") from error
    finally:
        opened.close()


def _computes_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    abilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(abilities.get("amx_bf16") or abilities.get("avx512_bf16"))


def _chosen_in(path: Path) -> Path:
    """A file as it is; in a folder the model that it holds, as safetensors with a config or as GGUF.

    Raises:
        ModelError: the folder holds an adapter alone, no model, or several.
    """
    if path.is_file():
        return path
    ggufs = _gguf_models(path)
    has_config = (path / "config.json").is_file()
    if has_config and (len(ggufs) != 1 or any(path.glob("*.safetensors"))):
        if ggufs:
            LOGGER.warning("%s holds a folder's model and %s; the GGUF file is left out", path, ggufs[0].name)
        return path
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        names = ", ".join(file.name for file in ggufs)
        raise CorruptModel(f"{path} must hold one model, got {len(ggufs)} GGUF files; name one of them: {names}")
    if (path / ADAPTER).is_file():
        base = read_json(path / ADAPTER).get("base_model_name_or_path", "another model")
        raise UnsupportedModel(f"{path} must hold a model, got an adapter ({ADAPTER}) for {base}; merge it into that")
    raise CorruptModel(f"{path} must hold config.json or one GGUF file, got neither")


def _gguf_models(folder: Path) -> list[Path]:
    """GGUF files, of split models only the first part that is there."""
    models: dict[object, Path] = {}
    for file in sorted(folder.glob("*.gguf")):
        named = split_name(file)
        models.setdefault(file.name if named is None else (named[0], named[2]), file)
    return list(models.values())


def _is_path(path: Path, name: str) -> bool:
    """Whether a name that leads nowhere was meant as a path."""
    if name.startswith((".", "~")) or path.is_absolute() or path.suffix in (".gguf", ".safetensors", ".json"):
        return True
    return "/" in name and (not _HUB_ID.fullmatch(name) or path.parent.is_dir())


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(f"model must be a path or a repository of the hub, got {name!r}: {error}") from error


def _from_catalogue(name: str) -> Path:
    from gamaneh.models import fetch

    if name not in names():
        known = ", ".join(names())
        raise ModelError(f"model must be a file or folder, a hub id or one of the catalogue's ({known}), got {name!r}")
    path = fetch.find(name)
    if path is None:
        raise ModelError(f"model {name} must be fetched first: gamaneh pull {name}")
    return path


def _name(model: str | Path, path: Path) -> str:
    if Path(model).expanduser().exists():
        return path.stem if path.is_file() else path.resolve().name
    return str(model)
