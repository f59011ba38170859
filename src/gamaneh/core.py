"""The nouns of speculative decoding. Everything imports this module; it imports only options.

Glossary
    target      the model whose output is wanted
    proposer    anything that makes drafts
    draft       a tree of candidate tokens; a chain is a tree with one path
    accepted    a draft token that was kept
    correction  the token that the rule puts after the first refusal
    bonus       the target's token after a fully accepted path
    emitted     accepted + 1
    round       one propose + verify + commit
    plain       decoding with no speculation
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from gamaneh.options import Drafting, DraftSampling, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_SAMPLING = SamplingParams()

Clock = Callable[[], float]
"""Seconds from any moment on."""

ANYBODY = "\0"
"""Salt of callers whom nobody can tell apart: they may share cached prefixes, but no answers to guess from."""

ROOT = -1
"""Parent of the first candidates: the last committed token, which is not a node of the draft."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A tree of candidate tokens that follow the last committed token.

    Args:
        tokens: one token id per node; a parent comes before its children.
        parents: index of each node's parent, `ROOT` for the first candidates.
        probs: `[num_nodes, vocab]`, the distribution each node was drawn from; None means a
            point mass (the proposer was deterministic).
        grade: how sure the proposer is of this draft, in its own few classes from 0 up. What becomes
            of its drafts is learned for each class apart.
        sources: name of the proposer of each node, where several made this draft; empty where one did.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: Tensor | None = None
    grade: int = 0
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"parent of node {node} must come before it, got {parent}")
        if self.probs is not None and self.probs.shape[0] != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {self.probs.shape[0]} rows of probs")
        if self.sources and len(self.sources) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.sources)} sources")

    @classmethod
    def chain(cls, tokens: Iterable[int], probs: Tensor | None = None) -> Draft:
        """A draft with one path."""
        ids = tuple(tokens)
        return cls(ids, tuple(range(ROOT, len(ids) - 1)), probs)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def depths(self) -> list[int]:
        """Depth of each node; the first candidates have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    @property
    def depth(self) -> int:
        """Candidates on the longest path: the draft length k."""
        return max(self.depths, default=0)

    def cut(self, max_depth: int) -> Draft:
        """The part of the draft that is no deeper than `max_depth`."""
        kept = [node for node, depth in enumerate(self.depths) if depth <= max_depth]
        if len(kept) == len(self):
            return self
        places = {node: place for place, node in enumerate(kept)}
        return Draft(
            tuple(self.tokens[node] for node in kept),
            tuple(places.get(self.parents[node], ROOT) for node in kept),
            None if self.probs is None else self.probs[kept],
            self.grade,
            tuple(self.sources[node] for node in kept) if self.sources else (),
        )

    def first(self, count: int) -> Draft:
        """The first `count` nodes: a parent comes before its children, so they are a tree."""
        if count >= len(self):
            return self
        probs = None if self.probs is None else self.probs[:count]
        return Draft(self.tokens[:count], self.parents[:count], probs, self.grade, self.sources[:count])

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first candidate down to `node`; empty for `ROOT`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        return tuple(self.tokens[i] for i in self.path(node))


EMPTY_DRAFT = Draft()

Glimpses = Mapping[tuple[str, str], Draft]
"""Drafts that instant proposers showed before the decision, by (proposer, request)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided about one draft.

    Args:
        path: accepted nodes of the draft, from the first candidate down.
        tokens: emitted tokens: those of `path`, then one correction or bonus.
        bonus: the last token follows a path that was accepted to its end.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    bonus: bool

    @property
    def accepted(self) -> int:
        return len(self.path)


class Origin(StrEnum):
    """Where an emitted token came from."""

    PLAIN = "plain"
    ACCEPTED = "accepted"
    CORRECTION = "correction"
    BONUS = "bonus"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Use(StrEnum):
    """What a random draw is for. Draws for different uses are independent."""

    TARGET = "target"
    DRAFT = "draft"
    ACCEPT = "accept"
    RESIDUAL = "residual"


class ReasonCode(StrEnum):
    """Why a request drafted, or did not, in one round. A few values, to count by; the words stand beside them."""

    PREFILL = "prefill"
    """The prompt was still being read."""
    ASKED_PLAIN = "asked_plain"
    """The request asked for plain decoding."""
    FIXED = "fixed"
    """The draft length is fixed by an option."""
    PAYS = "pays"
    """Drafting is faster by measurement."""
    TRIAL = "trial"
    """Drafting may be faster and is not known well enough yet: it is tried, within a budget of what may be lost."""
    PROBE = "probe"
    """Plain decoding is faster, and a short draft checks whether that still holds."""
    MEASURE = "measure"
    """A plain step is timed, to compare drafts with."""
    NO_GAIN = "no_gain"
    """Plain decoding is faster: too few drafts are accepted, or they cost too much."""
    LOAD = "load"
    """Drafting would be faster for this request alone, but not in the batch at hand."""
    NO_DRAFT = "no_draft"
    """The proposer has nothing to offer here."""
    SHORT = "short"
    """Too few tokens are left to be emitted."""
    QUARANTINE = "quarantine"
    """The proposer failed or was slow, and is left out for a while."""
    NO_ROOM = "no_room"
    """The KV cache or the step has no room for a draft."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one proposer is in quarantine: the kind of failure, and what it was in words."""

    proposer: str
    fault: str
    words: str


@dataclass(frozen=True, slots=True)
class ReasonDetails:
    """What the words of a reason are made of, beside its code: for whoever puts them into another language.

    Args:
        proposers: those that it speaks of.
        draft_length: that was found best; None where the reason names none.
        kind: of request, trait by trait; where nothing is drafted, the kind that is drafted for.
        chosen: the router chose the proposer, it was not asked for by name; None where that is not said.
        failures: of the proposers in quarantine.
    """

    proposers: tuple[str, ...] = ()
    draft_length: int | None = None
    kind: tuple[str, ...] = ()
    chosen: bool | None = None
    failures: tuple[Failure, ...] = ()


NO_DETAILS = ReasonDetails()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The target's own log-probability of one token, and of the most likely ones beside it."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """One proposer's part of a draft: candidates that were verified, and that were kept."""

    proposer: str
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One request in one round: the event that metrics, controller, router and bench read.

    `draft_seconds` and `verify_seconds` are the durations of the whole batch's draft and verify,
    not a share of them. `decision` is the draft length that the controller allowed. `shares` tell
    whose candidates they were, where several proposers made the draft. `details` are what `reason` is made of.

    `emitted` counts the tokens up to the end of the output, an end token included: as many rounds of plain
    decoding this one stood for. `accepted` counts the candidates among them, in `shares` too. `beyond` counts the
    candidates that the rule accepted behind the end: nobody gets them, but they tell how good the draft was.
    """

    request_id: str
    proposer: str
    rule: str
    drafted: int
    depth: int
    accepted: int
    emitted: int
    batch_size: int
    context_len: int
    draft_seconds: float
    verify_seconds: float
    decision: int
    reason: str
    reason_code: ReasonCode
    shares: tuple[Share, ...] = ()
    details: ReasonDetails = NO_DETAILS
    beyond: int = 0

    @property
    def survived(self) -> int:
        """All candidates that the rule accepted, emitted or not: what survival is estimated from."""
        return self.accepted + self.beyond

    @property
    def by_source(self) -> tuple[Share, ...]:
        """Candidates by the proposer that they came from; empty without a draft."""
        if self.shares or not self.drafted:
            return self.shares
        return (Share(self.proposer, self.drafted, self.accepted),)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One step of the engine, all its requests together.

    Args:
        requests: those that had a part in it.
        prompt_rows: token rows fed to read prompts, or to read requests again after preemption.
        draft_rows: candidates that were verified.
        rows: all token rows of the forward, these included.
        preempted: requests that had to give their blocks back.
        origins: emitted tokens by origin, after cuts at the end of an output.
        draft_seconds: duration of the drafts, by proposer.
        verify_seconds: duration of the target's forward.
        step_seconds: duration of the whole step.
        plain_seconds: what plain decoding would have taken for the emitted tokens, by the cost model;
            None where a prompt was read, or before anything was measured.
    """

    requests: int
    prompt_rows: int
    draft_rows: int
    rows: int
    preempted: int
    origins: Mapping[Origin, int]
    draft_seconds: Mapping[str, float]
    verify_seconds: float
    step_seconds: float
    plain_seconds: float | None


@dataclass(slots=True)
class Stopwatch:
    """Times of one step, in seconds by the engine's clock.

    Args:
        started, drafted, verified: when the step began, and when its drafts and its forward were there.
        draft_seconds: what each proposer took, glimpses included.
        lag: tokens that each proposer had to read first.
    """

    clock: Clock
    started: float = 0.0
    drafted: float = 0.0
    verified: float = 0.0
    draft_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lag: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def verify_seconds(self) -> float:
        return self.verified - self.drafted


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did for one request.

    All that is told about tokens is told of the same ones: those whose text is certain. A token of an incomplete
    character, or of what may become a stop text, waits; a token of a stop text is never told.

    Args:
        emitted: origin of each token that the step emitted, whether it is told now, later or never. An end token is
            none of them.
        tokens, origins, texts: the tokens that are told, where each came from, and what each adds to the output's text.
        refused: for each of them, the candidates that were refused in its place.
        logprobs: for each of them, where they were asked for.
        cut: bytes of UTF-8 at the end of the last of them that belong to a stop text.
    """

    request_id: str
    emitted: tuple[Origin, ...] = ()
    tokens: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    texts: tuple[str, ...] = ()
    refused: tuple[tuple[int, ...], ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    cut: int = 0
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """What this step adds to the output's text."""
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a proposer wants from the engine, declared as data.

    Args:
        hidden_layers: layers of the target whose outputs it reads (0 is the embedding,
            `num_layers` the last layer, before the final norm); empty for none.
        hidden_window: of how many last tokens it wants them.
        probs: it can return `Draft.probs`.
        branching: most candidates per level of its drafts; 1 makes chains.
        max_depth: longest draft that it can make; None for any length.
        instant: drafts cost next to nothing and are often empty. The controller has a look at them
            before it decides; they must not be sampled, as whether they are used depends on them.
        grammar: it has drafts only for requests whose output a mask restricts; others do not get to it.
        about: how it drafts and why so, in words, where there was a choice; shown beside its name.
        expected_survival: s_1, s_2, ... of its drafts as measured on texts held out; empty where nobody knows. The
            controller begins with them instead of finding out.
        reads: token ids that it can read are below this; None for all. A request with another one gets no drafts.
    """

    hidden_layers: tuple[int, ...] = ()
    hidden_window: int = 1
    probs: bool = False
    branching: int = 1
    max_depth: int | None = None
    instant: bool = False
    grammar: bool = False
    about: str = ""
    expected_survival: tuple[float, ...] = ()
    reads: int | None = None


class Sampler(Protocol):
    """Turns one row of logits of one request into a token, by that request's parameters."""

    @property
    def greedy(self) -> bool:
        """Whether the highest score is always taken."""
        ...

    def scores(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        """Logits `[vocab]` -> processed scores `[vocab]`, given draft tokens before this one."""
        ...

    def probs(self, scores: Tensor) -> Tensor:
        """Scores `[vocab]` -> the normalised probabilities `[vocab]` that `pick` draws from."""
        ...

    def pick(self, scores: Tensor, position: int, use: Use) -> int:
        """Draw the token at `position` (0 is the first prompt token) from `scores`."""
        ...

    def ranked(self, scores: Tensor, position: int, use: Use, count: int) -> list[tuple[float, int]]:
        """The `count` best tokens, each behind its score with noise; `pick` takes the first. There may be fewer."""
        ...


class TokenMask(Protocol):
    """Which tokens may come next, for example by a grammar."""

    def mask(self, path: Sequence[int]) -> Tensor | None:
        """`[vocab]`, True where allowed after the committed tokens and `path`; None allows all."""
        ...

    def forced(self, length: int) -> tuple[bytes, ...]:
        """The text that has to come after the committed tokens, in pieces before which blanks are free.

        The first piece comes without blanks in front; it is empty where blanks are free at once. There is no
        piece at all where nothing is certain.

        Args:
            length: bytes from which on no further piece is looked for.
        """
        ...


class MaskSource(Protocol):
    """Makes the mask of each request, for example a compiled grammar."""

    def new_mask(self, tokens: Sequence[int], prompt_len: int) -> TokenMask:
        """The mask over `tokens`, prompt and committed output, which grow between its calls."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What somebody asks for.

    Args:
        prompt: token ids, at least one.
        params: how tokens are chosen and when the answer ends.
        id: its name; empty lets the engine give it one.
        drafting: how to speculate; None for the engine's own way.
        reference: token ids of a text that the answer is likely to repeat.
        mask: restricts the answer, for example a grammar.
        salt: requests with different salts share no cached prefixes and no answers to guess from.
        priority: larger goes first, and is preempted last.
        arrived: when it came in, by the engine's clock; None for now.
    """

    prompt: Sequence[int]
    params: SamplingParams = DEFAULT_SAMPLING
    id: str = ""
    drafting: Drafting | None = None
    reference: Sequence[int] = ()
    mask: MaskSource | None = None
    salt: str = ""
    priority: int = 0
    arrived: float | None = None


@dataclass(slots=True)
class ProposalRow:
    """One request that may draft in this round.

    Args:
        request_id: the request.
        tokens: prompt and emitted tokens; the draft continues them. Not to be changed.
        max_depth: longest path allowed, at least 1.
        max_nodes: most nodes allowed; `max_depth` where the draft must be a chain.
        sampler: the request's own sampling, for proposers that sample.
        use: noise to sample with: `Use.TARGET` couples the draft to the target (rule `match`).
        want_probs: the rule reads `Draft.probs`.
        reference: token ids supplied by the user as a likely source of the output.
        mask: what restricts the output beside the sampling parameters; None for nothing.
        hidden: `[num_known, num_layers, hidden]`: hidden states of the last tokens but one,
            `tokens[-1 - num_known : -1]`, at the proposer's `hidden_layers` in their order. At most
            `hidden_window` tokens; fewer while the request is short, after a prefix was reused and
            after preemption. None when the proposer needs none.
        salt: requests with different salts must not see each other's texts.
        prompt_len: how many of `tokens` are the prompt; None where nobody says.
        draft_sampling: `request` draws candidates as the request draws its tokens, `greedy` takes the most likely.
    """

    request_id: str
    tokens: Sequence[int]
    max_depth: int
    max_nodes: int
    sampler: Sampler
    use: Use = Use.TARGET
    want_probs: bool = False
    reference: Sequence[int] = ()
    mask: TokenMask | None = None
    hidden: Tensor | None = None
    salt: str = ""
    draft_sampling: DraftSampling = "request"
    prompt_len: int | None = None


class Proposer(Protocol):
    """Makes drafts. A class that derives from this one needs `propose` and `memory_bytes` only."""

    name: str
    needs: Needs

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row, no deeper than its `max_depth`; an empty draft is legal."""
        ...

    def end(self, request_id: str) -> None:
        """Free what a request holds whose answer is complete: it may be learned. Unknown ids are legal."""
        self.forget(request_id)

    def forget(self, request_id: str) -> None:
        """Free what a request holds that was aborted or preempted, or that failed: nothing of it is learned."""
        return

    def memory_bytes(self) -> int:
        """Weights and caches of the proposer, in bytes."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Feed:
    """What one sequence puts into one forward of a backend, and what came out.

    Row i of the first `count` is `tokens[cached + written + i]`, with `cached` the tokens that the backend has of the
    sequence; the nodes of the draft follow, each at its own depth behind them.

    Args:
        request_id: the sequence.
        tokens: all its tokens, from position 0 on.
        count: how many pending tokens are fed.
        prompt_len: how many of `tokens` are the prompt; 0 where that does not matter.
        draft: candidates fed behind the pending tokens.
        logit_rows: how many of the last rows need scores.
        written: rows behind the cached ones that earlier forwards of this round wrote and nobody has committed.
        kept: for `commit`: accepted nodes of the draft, from the first candidate down.
        scores: after `verify`: `[logit_rows, vocab]`, the target's logits.
        hidden: after `verify`: `[count + len(draft), num_taps, hidden]`; None without taps.
        broken: after `verify`: rows whose numbers are not finite. Nobody reads their keys and values again.
    """

    request_id: str
    tokens: Sequence[int]
    count: int
    prompt_len: int = 0
    draft: Draft = EMPTY_DRAFT
    logit_rows: int = 1
    written: int = 0
    kept: tuple[int, ...] = ()
    scores: Tensor | None = None
    hidden: Tensor | None = None
    broken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Caps:
    """What a backend can do, as data.

    Args:
        vocab_size: rows of its output matrix.
        max_context: most tokens of one sequence, by the model.
        num_layers: of the model; a tap is a number from 0 (the embedding) to this.
        invariant: a row's bits do not depend on the rows beside it.
        trees: drafts may branch.
        rollback: the rows behind the cached tokens can be given up again; without it nothing can be verified.
        weight_bytes: what the weights take in memory.
        own_threads: it computes on threads of its own, which those of torch would stand in the way of.
    """

    vocab_size: int
    max_context: int
    num_layers: int = 1
    invariant: bool = False
    trees: bool = True
    rollback: bool = True
    weight_bytes: int = 0
    own_threads: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """How full the cache of a backend is, in tokens.

    Args:
        free: tokens that a new sequence may take, those of prefixes that nobody uses included.
        total: tokens of the whole cache.
        unit: tokens are given out in multiples of this.
    """

    free: int
    total: int
    unit: int = 1

    def fits(self, tokens: int) -> bool:
        """Whether one more sequence of so many tokens has room."""
        return -(-tokens // self.unit) * self.unit <= self.free


class Backend(Protocol):
    """Where a model runs: the only door to it, for a target, a draft model and the layers of a drafter alike.

    The life of a sequence: `admit`, then for each round `reserve`, `verify`, `commit`, and `release` at the end, from
    whatever state. Its cache is its own affair.
    """

    @property
    def caps(self) -> Caps: ...

    def admit(self, request_id: str, tokens: Sequence[int], *, prompt_len: int = 0, salt: str = "") -> int:
        """Take a sequence in; return how many of its first tokens are cached already, at most all but one."""
        ...

    def length(self, request_id: str) -> int:
        """Return the number of tokens whose rows are committed."""
        ...

    def reserve(self, request_id: str, extra: int) -> bool:
        """Make room for `extra` rows behind the committed ones; False, and no change, when short."""
        ...

    def room(self) -> Room:
        """Return how full the cache is."""
        ...

    def verify(self, feeds: Sequence[Feed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> None:
        """Compute all rows in one forward and fill `scores`, `hidden` and `broken` of each feed.

        Args:
            taps: layers whose outputs are returned; 0 is the embedding.
            num_layers: leave after this many layers, for the final norm and the head; None runs all.
        """
        ...

    def commit(self, feeds: Sequence[Feed]) -> None:
        """Keep the pending rows and the nodes in `kept`; give the rest of the reservation back."""
        ...

    def truncate(self, request_id: str, length: int) -> int:
        """Forget the rows from `length` on; return the new length, which may be lower."""
        ...

    def release(self, request_ids: Iterable[str], *, publish: bool = True) -> None:
        """Let sequences go. With `publish` false nothing of them may be found as a prefix by others."""
        ...

    def computed_rows(self, rows: int) -> int:
        """Return how many rows a forward of `rows` rows really computes."""
        ...

    def time_rows(self, rows: int, clock: Callable[[], float]) -> float:
        """Return the seconds of one forward of `rows` rows without context; nothing of it is kept."""
        ...

    def memory_bytes(self) -> int:
        """Return the bytes of weights and cache."""
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError where the books of the cache do not agree."""
        ...


class TargetRows(Protocol):
    """The target's processed scores at the root and at every node of one draft."""

    def scores(self, node: int) -> Tensor:
        """`[vocab]` scores for the token that follows `node` (`ROOT` for the first)."""
        ...

    def probs(self, node: int) -> Tensor:
        """`[vocab]` probabilities for the token that follows `node`."""
        ...

    def pick(self, node: int) -> int:
        """Draw the token that follows `node` with the request's noise."""
        ...

    def uniform(self, node: int, use: Use) -> float:
        """A uniform draw in (0, 1) tied to the position after `node`."""
        ...

    def pick_from(self, probs: Tensor, node: int, use: Use) -> int:
        """Draw the token that follows `node` from other (unnormalised) `[vocab]` probabilities."""
        ...


class Rule(Protocol):
    """Decides which candidates are kept.

    Attributes:
        wants_probs: it reads the probabilities that candidates were drawn from.
        reads_probs: it reads the target's probabilities at the candidates; else only the target's draws.
    """

    name: str
    exact: bool
    wants_probs: bool
    reads_probs: bool
    trees: bool

    def judge(self, draft: Draft, target: TargetRows) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Decision:
    """How far one request may draft in this round, with what, and why.

    Args:
        proposer: name of the proposer; `PLAIN` for none.
        depth: longest path allowed; 0 is a plain step.
        nodes: most candidates allowed, for drafts that branch.
        reason: in words, for a person to read.
        code: the kind of reason, to count by.
        details: what the words are made of.
    """

    proposer: str
    depth: int
    nodes: int
    reason: str
    code: ReasonCode
    details: ReasonDetails = NO_DETAILS


PLAIN = "none"
"""Name of the proposer that never drafts."""

AUTO = "auto"
"""Asks for whichever proposer pays in each round."""
