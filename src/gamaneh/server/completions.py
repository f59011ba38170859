"""`/v1/completions`: prompts as text or ids, each with some answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gamaneh.core import StepOutput, TokenLogprob
from gamaneh.server.events import Event, Job
from gamaneh.server.schemas import CompletionRequest
from gamaneh.server.tokens import SupportsTokens, finite, shown
from gamaneh.server.writer import Delta


class CompletionFormat:
    """Text completions.

    Args:
        jobs: the answers to be made.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"
    reasoning_tokens = 0

    def __init__(self, request: CompletionRequest, jobs: Sequence[Job], tokenizer: SupportsTokens) -> None:
        self._choices = [_Choice(job, tokenizer, request) for job in jobs]

    def deltas(self, event: Event, *, always: bool = False) -> list[Delta]:
        text, logprobs = self._choices[event.choice].add(event.output)
        reason = event.output.finish_reason
        if not (always or text or logprobs or reason):
            return []
        return [
            {
                "index": event.choice,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": None if reason is None else reason.value,
            }
        ]

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        logprobs = [delta["logprobs"] for delta in deltas if delta["logprobs"]]
        return {
            "index": deltas[0]["index"],
            "text": "".join(delta["text"] for delta in deltas),
            "logprobs": {key: [each for part in logprobs for each in part[key]] for key in logprobs[0]}
            if logprobs
            else None,
            "finish_reason": deltas[-1]["finish_reason"],
        }


class _Choice:
    """One answer: what stands before it, and where its tokens begin."""

    def __init__(self, job: Job, tokenizer: SupportsTokens, request: CompletionRequest) -> None:
        self._job, self._tokenizer = job, tokenizer
        self._top = request.logprobs
        self._echo = bool(request.echo)
        self._offset = 0

    def add(self, output: StepOutput) -> tuple[str, dict[str, Any] | None]:
        """Text of one step, and its log-probabilities if they are wanted and there are any."""
        echo, self._echo = self._echo, False
        text = self._prompt_text() if echo else ""
        entries = self._prompt_entries(output) if echo else []
        entries += [(entry.token, entry) for entry in output.logprobs]
        return text + output.text, self._logprobs(entries) if self._top is not None and entries else None

    def _prompt_text(self) -> str:
        return self._tokenizer.decode(self._job.prompt) if self._job.text is None else self._job.text

    def _prompt_entries(self, output: StepOutput) -> list[tuple[int, TokenLogprob | None]]:
        return list(zip(self._job.prompt, output.prompt_logprobs or (), strict=False))

    def _logprobs(self, entries: Sequence[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        texts = [shown(self._tokenizer, token) for token, _ in entries]
        return {
            "tokens": texts,
            "token_logprobs": [None if entry is None else finite(entry.logprob) for _, entry in entries],
            "top_logprobs": [None if entry is None else self._most_likely(entry) for _, entry in entries],
            "text_offset": [self._advance(text) for text in texts],
        }

    def _most_likely(self, entry: TokenLogprob) -> dict[str, float]:
        """The most likely tokens, and the one that was chosen."""
        top = {shown(self._tokenizer, token): finite(logprob) for token, logprob in entry.top}
        return top | {shown(self._tokenizer, entry.token): finite(entry.logprob)}

    def _advance(self, text: str) -> int:
        offset = self._offset
        self._offset += len(text)
        return offset
