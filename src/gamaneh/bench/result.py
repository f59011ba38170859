"""A run of `gamaneh bench` as data: what its JSON holds. Version 1.

Two sides, plain and speculative, were asked the same prompts under one load or several. A `Point` is
one load; its `Group`s are all prompts, then the prompts of each category, language and length.

Times are in seconds, memory in bytes. What was not measured is None, never 0. Fields may be added
within a version; a reader passes over those that it does not know.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from gamaneh.errors import InvalidOption

FORMAT = "gamaneh.bench"
VERSION = 1

ALL = "all"
Pattern = Literal["closed", "constant", "poisson", "gamma", "replay"]
Mode = Literal["offline", "serving"]
GroupKind = Literal["all", "category", "language", "length"]
TokenSource = Literal["engine", "usage", "tokenizer", "deliveries"]
"""Who counted output tokens: the engine, the server, the target's tokenizer over the text, or nobody: then each
delivery counts as one token, although a delivery may hold several."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """How some values are spread. There is at least one value; without any, the field is None.

    Args:
        p50, p95, p99: the value that this many percent of them do not exceed.
        quantiles: 0, 5, 10, ... 100 percent: 21 values, to draw the distribution by.
    """

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    largest: float
    quantiles: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the seconds of the requests went, summed over them.

    Args:
        queue: waiting for a place in the batch.
        prefill: from there to the first token.
        decode: from the first token to the last.
        draft, verify, other: the parts of `decode`.
    """

    queue: float | None
    prefill: float | None
    decode: float
    draft: float | None = None
    verify: float | None = None
    other: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was drafted and what became of it.

    Args:
        source: `requests` (each request told its own counts) or `server` (counters before and after).
        rounds, drafts: verifications of one request; those with a draft.
        acceptance_rate: pooled: accepted / drafted over all requests together.
        mean_accepted_length: accepted / rounds, rounds without a draft included.
        acceptance_rate_macro: mean over the requests of each one's accepted / drafted.
        tokens_per_round, tokens_per_round_macro: emitted / rounds, in the same two ways.
        accepted_per_draft: accepted / drafts.
        survival: element i: share of the drafts with at least i + 1 candidates whose first i + 1 were accepted.
            Each counts only the drafts that are long enough for it, so that later elements may be larger.
        offered: element i: how many drafts that is, the denominator of `survival`.
    """

    source: Literal["requests", "server"]
    drafts: int | None
    drafted: int | None
    accepted: int
    acceptance_rate: float | None
    accepted_per_draft: float | None
    rounds: int | None = None
    emitted: int | None = None
    acceptance_rate_macro: float | None = None
    tokens_per_round: float | None = None
    tokens_per_round_macro: float | None = None
    survival: tuple[float, ...] = ()
    offered: tuple[int, ...] = ()
    mean_accepted_length: float | None = None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every objective of `Run.slo`.

    Args:
        share: of the requests.
        requests_per_second, tokens_per_second: of those that met them.
    """

    met: int
    share: float
    requests_per_second: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class SideFigures:
    """What one side did in one group of prompts, all measured rounds together.

    `seconds`, and what is divided by it, exist for the group `all` only: the requests of the other
    groups run among those of all.

    Args:
        requests: answered by both sides; the figures are of these.
        left_out: reason -> answers of this side that the figures leave out.
        tokens_from: the least reliable source of `output_tokens` among the requests.
        approximate: the side's rule does not keep the target's distribution, so its outputs are others.
        seconds: sum over the rounds of first request sent to last answer ended.
        decode_tokens_per_second: sum of (tokens - 1) / sum of (E2E - TTFT): one request's speed.
        tokens_per_character: output tokens / characters of the output.
        utilisation: processor seconds / (seconds * cores) of the process that ran the models.
        cost_per_million: price of a million output tokens at `Run.price`.
    """

    requests: int
    prompt_tokens: int | None
    output_tokens: int
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    output_length: Distribution | None
    decode_tokens_per_second: float | None
    tokens_per_character: float | None
    split: TimeSplit
    speculation: Speculation | None
    seconds: float | None = None
    tokens_per_second: float | None = None
    requests_per_second: float | None = None
    utilisation: float | None = None
    goodput: Goodput | None = None
    cost_per_million: float | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    tokens_from: TokenSource | None = None
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """Where plain and speculative output of one prompt part, for greedy or seeded requests.

    Args:
        position: first character that differs.
        token_position: first output token that differs; None where the tokens are not known.
        plain_token, speculative_token: the tokens there; None where that output had ended.
        plain, speculative: the outputs from there on, cut short.
        gap: difference of the log-probabilities of the target's two most likely tokens there.
        tie: the gap is within the rounding of the target's type, so that either token is right.
    """

    prompt: str
    position: int
    plain: str
    speculative: str
    gap: float | None
    tie: bool | None
    token_position: int | None = None
    plain_token: int | None = None
    speculative_token: int | None = None


@dataclass(frozen=True, slots=True)
class Equality:
    """Are the outputs the same?

    Args:
        expected: the rule promises the same tokens; otherwise it promises the same distribution, or
            (approximate rules) neither, and differences mean nothing.
        compared, equal: pairs of answers.
        ties: differing pairs explained by rounding.
    """

    expected: bool
    compared: int
    equal: int
    ties: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Both sides on some of the prompts.

    The ratios are geometric means over the prompts, each prompt's own ratio being taken over its
    rounds first, with a 95 % bootstrap interval over the prompts. Above 1 is a gain.

    Args:
        kind, name: `all` `all`, `category` `code`, `language` `fa`, `length` `short` or `long`.
        speedup: plain TPOT / speculative TPOT.
        e2e_speedup: plain E2E / speculative E2E: prompt and queue included.
    """

    kind: GroupKind
    name: str
    prompts: int
    speedup: Interval | None
    e2e_speedup: Interval | None
    plain: SideFigures
    speculative: SideFigures


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive.

    Args:
        pattern: `closed`: `level` requests are under way at any time. Otherwise they arrive by the
            clock, `level` a second on average, whoever is still waiting.
        burstiness: of `gamma`: 1 is Poisson, less is burstier.
        requests: of each round.
        rounds: measured, on each side.
    """

    pattern: Pattern
    level: float
    requests: int
    rounds: int
    burstiness: float = 1.0


@dataclass(frozen=True, slots=True)
class Saturation:
    """Whether requests arrived faster than they were served.

    Args:
        growth: requests under way that were added per second, by a straight line through their number.
    """

    plain: bool
    speculative: bool
    plain_growth: float
    speculative_growth: float


@dataclass(frozen=True, slots=True)
class Point:
    """Both sides under one load.

    Args:
        throughput: tokens per second of speculative / of plain: geometric mean over the rounds with a
            95 % bootstrap interval over them.
        groups: `all` first.
        saturation: None in closed loops.
    """

    load: Load
    throughput: Interval | None
    groups: tuple[Group, ...]
    saturation: Saturation | None = None

    @property
    def whole(self) -> Group:
        """All prompts together."""
        return self.groups[0]

    def by(self, kind: GroupKind) -> tuple[Group, ...]:
        """The groups of one kind."""
        return tuple(group for group in self.groups if group.kind == kind)


@dataclass(frozen=True, slots=True)
class SideSetup:
    """What one side was; all but the fields from `proposer` on must be the same for both.

    Args:
        hardware: the machine that the models ran on, in words.
        sampling: parameters of every request that differ from their defaults.
        batch: most requests that the engine runs at once.
        proposer: `none` for plain decoding; None if the server does not say.
        k: fixed draft length; None if it adapts or is not known.
        server: base address; None in the same process.
        dialect: kind of server.
        fields: sent in each request of this side alone.
    """

    target: str
    target_sha256: str | None
    precision: str | None
    hardware: str
    sampling: dict[str, Any]
    max_tokens: int | None
    batch: int | None
    requests: int
    warmups: int
    prompts_sha256: str
    proposer: str | None
    k: int | None = None
    rule: str | None = None
    exact: bool | None = None
    invariant: bool | None = None
    server: str | None = None
    dialect: str | None = None
    fields: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What an audit or a comparison is of, for printing beside the numbers. `k` is None when it adapts."""

    model: str
    dtype: str
    device: str
    proposer: str
    k: int | None
    rule: str
    exact: bool
    invariant: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of a fair comparison.

    Args:
        equal: None when one of the values is not known.
    """

    name: str
    plain: Any
    speculative: Any
    equal: bool | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one side.

    Args:
        peak_resident: largest resident size of the process that ran the models; in one process both
            sides share it.
        peak_device: largest amount of accelerator memory; None without one.
        target: weights and caches of the target; target_kv: the caches alone.
        proposers: weights and caches of each proposer.
    """

    peak_resident: int | None
    peak_device: int | None
    target: int | None
    target_kv: int | None
    proposers: dict[str, int]


@dataclass(frozen=True, slots=True)
class Slo:
    """Objectives of a request, in seconds; None asks for nothing."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of the machine costs, and when that was so (`YYYY-MM-DD`)."""

    per_hour: float
    currency: str
    date: str


@dataclass(frozen=True, slots=True)
class Caution:
    """A known mistake that this run makes, or may make."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that was not answered.

    Args:
        side: `plain` or `speculative`.
        reason: what kind of failure: `refused`, `broken`, `malformed`, `empty` or `error`.
    """

    side: str
    prompt: str
    error: str
    reason: str = "error"


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and software of a measurement."""

    processor: str
    cores: int
    memory_bytes: int
    threads: int
    python: str
    torch: str


@dataclass(frozen=True, slots=True)
class ModelMark:
    """A model that took part: `role` is `target`, `draft_model` or `heads`."""

    role: str
    name: str
    sha256: str | None
    dtype: str | None


@dataclass(frozen=True, slots=True)
class PromptMark:
    """The prompts: where they came from, and a hash of the texts in their order."""

    source: str
    sha256: str
    count: int
    categories: tuple[str, ...]
    languages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunProvenance:
    """Where the figures come from.

    Args:
        commit: of this project's source, with `+` when files differed from it; None outside a checkout.
        machine: of the client; with servers elsewhere not that of the models.
        seeds: of the arrivals and of the first request.
    """

    date: str
    command: str
    version: str
    commit: str | None
    versions: dict[str, str]
    machine: Machine
    models: tuple[ModelMark, ...]
    prompts: PromptMark
    seeds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `gamaneh bench`.

    Args:
        name: what to call it in a report.
        formulas: name of a figure -> its formula.
        complete: every request of every load was answered on both sides.
        stopped: why it ended before its time.
    """

    format: str
    version: int
    name: str
    mode: Mode
    provenance: RunProvenance
    plain: SideSetup
    speculative: SideSetup
    fairness: tuple[Check, ...]
    points: tuple[Point, ...]
    plain_memory: Memory
    speculative_memory: Memory
    equality: Equality | None
    cautions: tuple[Caution, ...]
    failures: tuple[FailedRequest, ...]
    slo: Slo | None
    price: Price | None
    formulas: dict[str, str]
    complete: bool
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, ready for `json.dumps`."""
        return asdict(self)


class _Head(NamedTuple):
    format: Any
    version: Any


def read_run(path: Path) -> Run:
    """A run from its file.

    Raises:
        InvalidOption: the file cannot be read, is no run, is of another version, or misses something;
            the message names the file and the field.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption(str(path), f"must be a readable JSON file ({error})", path.name) from error
    head = _head(values)
    if head.format != FORMAT:
        raise InvalidOption(str(path), f"must be a result of `gamaneh bench`: format {FORMAT}", head.format)
    if head.version != VERSION:
        raise InvalidOption(str(path), f"must be of version {VERSION}", head.version)
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidOption(f"{path} {where}", first["msg"][:1].lower() + first["msg"][1:], first["input"]) from error


def _head(values: object) -> _Head:
    known = values if isinstance(values, dict) else {}
    return _Head(known.get("format"), known.get("version"))


def schema() -> dict[str, Any]:
    """JSON Schema of a run's file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_ADAPTER.json_schema(mode="serialization")}


_ADAPTER = TypeAdapter(Run)
