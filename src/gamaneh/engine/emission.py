"""From a verdict to what the request gets: origins, the end of the output, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from gamaneh.core import Draft, FinishReason, Origin, StepOutput, Verdict
from gamaneh.engine.sequence import SequenceState, Untold
from gamaneh.sampling.logprobs import token_logprob


def origins_of(verdict: Verdict, draft: Draft) -> list[Origin]:
    """Origin of each emitted token; without a draft the token is plain."""
    if len(draft) == 0:
        return [Origin.PLAIN]
    return [Origin.ACCEPTED] * verdict.accepted + [Origin.BONUS if verdict.bonus else Origin.CORRECTION]


def emit(sequence: SequenceState, draft: Draft, verdict: Verdict, logits: Tensor) -> tuple[StepOutput, int]:
    """Append the emitted tokens up to the end of the output; sets `finish_reason` when it is reached.

    Args:
        logits: `[1 + num_nodes, vocab]` of the target, unprocessed.

    Returns:
        What the request gets, and the tokens up to the end of the output, an end token included: as many as plain
        decoding takes rounds for.
    """
    before_end = _before_end_token(verdict.tokens, sequence.end_ids)
    piece = sequence.detokenizer.feed(before_end)
    kept = before_end[: piece.kept_tokens]
    origins = tuple(origins_of(verdict, draft)[: len(kept)])
    sequence.tokens += kept
    sequence.origins += origins
    sequence.untold += _entries(sequence, draft, verdict, kept, logits)
    end_token = len(before_end) < len(verdict.tokens) and not piece.stopped
    sequence.finish_reason = _finish_reason(sequence, piece.stopped or end_token)
    texts = piece.texts
    if sequence.finish_reason and not piece.stopped:
        texts += sequence.detokenizer.flush().texts
    return _told(sequence, texts, origins, piece.cut), len(kept) + end_token


def cut_off(sequence: SequenceState) -> StepOutput:
    """Return the last output of a request that ends before its output does, with all that was held back."""
    return _told(sequence, sequence.detokenizer.flush().texts)


def _told(sequence: SequenceState, texts: Sequence[str], emitted: tuple[Origin, ...] = (), cut: int = 0) -> StepOutput:
    """Tell the next tokens, whose texts these are."""
    entries = [sequence.untold.popleft() for _ in texts]
    return StepOutput(
        sequence.request_id,
        emitted,
        tuple(entry.token for entry in entries),
        tuple(entry.origin for entry in entries),
        tuple(texts),
        tuple(entry.refused for entry in entries),
        tuple(entry.logprob for entry in entries if entry.logprob is not None),
        cut,
        finish_reason=sequence.finish_reason,
    )


def _entries(
    sequence: SequenceState, draft: Draft, verdict: Verdict, kept: Sequence[int], logits: Tensor
) -> Iterator[Untold]:
    """What there is to tell about each token; refused candidates go with the token that came in their place."""
    top = sequence.params.logprobs
    rows = [0, *(node + 1 for node in verdict.path)]
    refused = tuple(token for node, token in enumerate(draft.tokens) if node not in verdict.path)
    for at, (row, token, origin) in enumerate(zip(rows, kept, origins_of(verdict, draft), strict=False)):
        logprob = None if top is None else token_logprob(logits[row], token, top)
        yield Untold(token, origin, refused if at == verdict.accepted else (), logprob)


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


def add_prompt_logprobs(sequence: SequenceState, start: int, logits: Tensor) -> None:
    """Rows `[count, vocab]` predict the tokens after `start`; the first prompt token has no prediction."""
    if not sequence.prompt_logprobs:
        sequence.prompt_logprobs.append(None)
    top = sequence.params.prompt_logprobs or 0
    for row, token in zip(logits, sequence.tokens[start + 1 : sequence.prompt_len], strict=False):
        sequence.prompt_logprobs.append(token_logprob(row, token, top))
