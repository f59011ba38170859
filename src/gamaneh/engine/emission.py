"""From a verdict to what the request gets: origins, the end of the output, log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gamaneh.core import Draft, FinishReason, Origin, StepOutput, TokenLogprob, Verdict
from gamaneh.engine.sequence import SequenceState
from gamaneh.sampling.logprobs import token_logprob


@dataclass(frozen=True, slots=True)
class Emission:
    """What a verdict has come to.

    Args:
        output: what the request gets.
        emitted: tokens up to the end of the output, an end token included: as many as plain decoding takes rounds for.
    """

    output: StepOutput
    emitted: int


def origins_of(verdict: Verdict, draft: Draft) -> list[Origin]:
    """Origin of each emitted token; without a draft the token is plain."""
    if len(draft) == 0:
        return [Origin.PLAIN]
    return [Origin.ACCEPTED] * verdict.accepted + [Origin.BONUS if verdict.bonus else Origin.CORRECTION]


def emit(sequence: SequenceState, draft: Draft, verdict: Verdict, logits: Tensor) -> Emission:
    """Append the emitted tokens up to the end of the output; sets `finish_reason` when it is reached.

    Args:
        logits: `[1 + num_nodes, vocab]` of the target, unprocessed.
    """
    before_end = _before_end_token(verdict.tokens, sequence.end_ids)
    piece = sequence.detokenizer.feed(before_end)
    kept = before_end[: piece.kept_tokens]
    logprobs = _logprobs(sequence, verdict, kept, logits)
    origins = origins_of(verdict, draft)[: len(kept)]
    sequence.tokens += kept
    sequence.origins += origins
    end_token = len(before_end) < len(verdict.tokens) and not piece.stopped
    sequence.finish_reason = _finish_reason(sequence, piece.stopped or end_token)
    held_back = sequence.detokenizer.flush() if sequence.finish_reason and not piece.stopped else ""
    output = StepOutput(
        sequence.request_id,
        tuple(kept),
        tuple(origins),
        _refused(verdict, draft),
        piece.text + held_back,
        logprobs,
        finish_reason=sequence.finish_reason,
    )
    return Emission(output, len(kept) + end_token)


def _refused(verdict: Verdict, draft: Draft) -> tuple[int, ...]:
    return tuple(token for node, token in enumerate(draft.tokens) if node not in verdict.path)


def _before_end_token(tokens: Sequence[int], end_ids: frozenset[int]) -> list[int]:
    """End tokens may come anywhere in an accepted block; they are not part of the output."""
    for at, token in enumerate(tokens):
        if token in end_ids:
            return list(tokens[:at])
    return list(tokens)


def _finish_reason(sequence: SequenceState, stopped: bool) -> FinishReason | None:
    if stopped:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.remaining <= 0 else None


def _logprobs(
    sequence: SequenceState, verdict: Verdict, kept: Sequence[int], logits: Tensor
) -> tuple[TokenLogprob, ...]:
    top = sequence.params.logprobs
    if top is None:
        return ()
    rows = [0, *(node + 1 for node in verdict.path)]
    return tuple(token_logprob(logits[row], token, top) for row, token in zip(rows, kept, strict=False))


def add_prompt_logprobs(sequence: SequenceState, start: int, logits: Tensor) -> None:
    """Rows `[count, vocab]` predict the tokens after `start`; the first prompt token has no prediction."""
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    top = sequence.params.prompt_logprobs or 0
    for row, token in zip(logits, sequence.tokens[start + 1 : sequence.prompt_len], strict=False):
        sequence.prompt_logprobs.append(token_logprob(row, token, top))
