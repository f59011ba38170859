"""The exception tree. Messages name the thing, the rule and the value.

GamanehError
├── InvalidRequest        one request is wrong; the others go on
├── BadLogits             one request has no token to choose; the others go on
├── InvalidOption         an option of the engine, the command line or a file is wrong
├── ModelError            a model cannot be found, read or used
│   ├── UnsupportedModel  an architecture, a tensor type or a feature we do not have
│   ├── CorruptModel      truncated, wrong hash, missing tensors, NaN weights
│   └── TokenizerMismatch no text leads from the target's tokens to the draft model's
├── OutOfMemory           the KV cache or the machine cannot hold what was asked for
└── EngineStopped         the engine takes no requests any more, or ended one before its time
"""

from __future__ import annotations


class GamanehError(Exception):
    """Base of everything this package raises on purpose."""


class InvalidRequest(GamanehError):
    """One request breaks a rule; `field` names the part of it that does."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        self.field = field
        super().__init__(f"{field} {rule}, got {value!r}")


class BadLogits(GamanehError):
    """A row of logits holds no token to choose: NaN, infinity, or every token masked."""


class InvalidOption(GamanehError):
    """An option breaks a rule; `field` names the option."""

    def __init__(self, field: str, rule: str, value: object) -> None:
        self.field = field
        super().__init__(f"{field} {rule}, got {value!r}")


class ModelError(GamanehError):
    """A model cannot be found, read or used."""


class UnsupportedModel(ModelError):
    """The model is readable, but needs something this project does not have."""


class CorruptModel(ModelError):
    """The model's files are damaged or incomplete."""


class TokenizerMismatch(ModelError):
    """Draft and target have different tokenizers, and no text leads from one to the other."""


class OutOfMemory(GamanehError):
    """The KV cache or the machine cannot hold what was asked for."""


class EngineStopped(GamanehError):
    """The engine takes no requests any more, or ended one before its time."""
