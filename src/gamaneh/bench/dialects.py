"""Kinds of servers: how each is told not to speculate, and what its counters are called.

Names of series: the documentation of vLLM, SGLang and TGI; what llama.cpp's server shows with `--metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Series:
    """Names of a server's series at `/metrics`; None where it has none.

    Args:
        rounds: verifications; drafts: those with a draft.
        emitted: output tokens. Where a server counts rounds and these alone, the difference is what was accepted.
        accepted_at, offered_at: by the label `position`.
        cpu_seconds, resident, device: processor time and memory of the process.
        private: of its memory what must not grow; caches may, up to their size.
        models: bytes by the label `model`.
        kv_used: blocks of the KV cache in use.
    """

    accepted: str | None = None
    drafts: str | None = None
    drafted: str | None = None
    rounds: str | None = None
    emitted: str | None = None
    accepted_at: str | None = None
    offered_at: str | None = None
    cpu_seconds: str = "process_cpu_seconds_total"
    resident: str = "process_resident_memory_bytes"
    private: str | None = None
    device: str | None = None
    models: str | None = None
    kv_used: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    Args:
        name: what to call it.
        owner: `owned_by` of its models; prefix: of its series. Either tells the kind.
        plain, speculative: fields of a request that switch speculation off and on; without a switch, None.
        salt: field of a request that takes its salt, so that prompts that come back are read again.
        forgetful: fields that do so without a salt.
    """

    name: str
    owner: str
    prefix: str
    plain: Mapping[str, Any] | None = None
    speculative: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    salt: str | None = None
    forgetful: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    series: Series = field(default_factory=Series)

    @property
    def reads_anew(self) -> bool:
        """Whether it can be told to read a prompt again that it has read before."""
        return self.salt is not None or bool(self.forgetful)


def _usual_series(prefix: str, **more: str) -> Series:
    """The names that several servers have for what their drafts came to."""
    return Series(
        accepted=f"{prefix}spec_decode_num_accepted_tokens_total",
        drafts=f"{prefix}spec_decode_num_drafts_total",
        drafted=f"{prefix}spec_decode_num_draft_tokens_total",
        accepted_at=f"{prefix}spec_decode_num_accepted_tokens_per_pos_total",
        **more,
    )


GAMANEH = Dialect(
    name="gamaneh",
    owner="gamaneh",
    prefix="gamaneh_",
    plain={"speculation": {"enabled": False, "metrics": True}},
    speculative={"speculation": {"enabled": True, "metrics": True}},
    salt="cache_salt",
    series=_usual_series(
        "gamaneh_",
        offered_at="gamaneh_spec_decode_num_draft_tokens_per_pos_total",
        cpu_seconds="gamaneh_process_cpu_seconds_total",
        resident="gamaneh_process_peak_memory_bytes",
        private="gamaneh_process_private_memory_bytes",
        device="gamaneh_device_peak_memory_bytes",
        models="gamaneh_model_memory_bytes",
        kv_used="gamaneh_kv_used_blocks",
    ),
)

VLLM = Dialect(
    name="vLLM",
    owner="vllm",
    prefix="vllm:",
    salt="cache_salt",
    series=_usual_series("vllm:"),
)

SGLANG = Dialect(
    name="SGLang",
    owner="sglang",
    prefix="sglang:",
    series=Series(rounds="sglang:spec_verify_calls_total", emitted="sglang:generation_tokens_total"),
)

LLAMA_CPP = Dialect(
    name="llama.cpp",
    owner="llamacpp",
    prefix="llamacpp:",
    forgetful={"cache_prompt": False},
    series=_usual_series("llamacpp:", emitted="llamacpp:tokens_predicted_total"),
)

TGI = Dialect(
    name="TGI",
    owner="text-generation-inference",
    prefix="tgi_",
    series=Series(accepted="tgi_request_skipped_tokens_sum", rounds="tgi_request_skipped_tokens_count"),
)

OTHER = Dialect(name="OpenAI-compatible", owner="", prefix="")
"""A server that says nothing of itself."""

DIALECTS = (GAMANEH, VLLM, SGLANG, LLAMA_CPP, TGI)


def recognise(owner: str, series: str) -> Dialect:
    """The kind of a server.

    Args:
        owner: `owned_by` of its first model.
        series: text of its `/metrics`; empty if it has none.
    """
    for dialect in DIALECTS:
        if owner == dialect.owner or f"\n{dialect.prefix}" in f"\n{series}":
            return dialect
    return OTHER
