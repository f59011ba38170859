"""Exact speculative decoding of language models: faster answers, the same answers.

Names that bring torch along are imported when they are first used, so that `import gamaneh` is quick.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gamaneh.errors import (
    BadLogits,
    CorruptModel,
    GamanehError,
    InvalidOption,
    InvalidRequest,
    ModelError,
    OutOfMemory,
    TokenizerMismatch,
    UnsupportedModel,
)
from gamaneh.options import Drafting, EngineOptions, Precision, SamplingParams, SpeculationOptions

__version__ = version("gamaneh")

__all__ = [
    "LLM",
    "BadLogits",
    "CorruptModel",
    "Draft",
    "Drafting",
    "Engine",
    "EngineOptions",
    "FinishReason",
    "Frame",
    "GamanehError",
    "Generation",
    "Grammar",
    "Ingredients",
    "InvalidOption",
    "InvalidRequest",
    "ModelError",
    "Needs",
    "Origin",
    "OutOfMemory",
    "Precision",
    "ProposalRow",
    "Proposer",
    "ProposerOption",
    "ReadyModel",
    "Recipe",
    "Request",
    "Rule",
    "SamplingParams",
    "SpeculationOptions",
    "SpeculationStats",
    "StepOutput",
    "StepReport",
    "TokenLogprob",
    "TokenizerMismatch",
    "UnsupportedModel",
    "Verdict",
    "__version__",
    "assemble",
]

if TYPE_CHECKING:
    from gamaneh.core import (
        Draft,
        FinishReason,
        Needs,
        Origin,
        ProposalRow,
        Proposer,
        Request,
        Rule,
        StepOutput,
        StepReport,
        TokenLogprob,
        Verdict,
    )
    from gamaneh.engine.assembly import assemble
    from gamaneh.engine.engine import Engine
    from gamaneh.engine.llm import LLM, Generation
    from gamaneh.metrics.collector import SpeculationStats
    from gamaneh.proposers.recipe import Ingredients, ProposerOption, ReadyModel, Recipe
    from gamaneh.sampling.grammar_mask import Frame, Grammar
else:
    _HOMES = {
        "gamaneh.core": (
            "Draft FinishReason Needs Origin ProposalRow Proposer Request Rule StepOutput StepReport TokenLogprob "
            "Verdict"
        ),
        "gamaneh.engine.assembly": "assemble",
        "gamaneh.engine.engine": "Engine",
        "gamaneh.engine.llm": "LLM Generation",
        "gamaneh.metrics.collector": "SpeculationStats",
        "gamaneh.proposers.recipe": "Ingredients ProposerOption ReadyModel Recipe",
        "gamaneh.sampling.grammar_mask": "Frame Grammar",
    }
    _LAZY = {name: home for home, names in _HOMES.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
