"""`/v1/completions`: prompts as text or ids, each with some answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gamaneh.core import StepOutput, TokenLogprob
from gamaneh.engine.detokenizer import Detokenizer
from gamaneh.server.choice import Choice, Delta, Job, SupportsTokens, cuts, finite, shown
from gamaneh.server.schemas import CompletionRequest


@dataclass(frozen=True, slots=True)
class _Entry:
    """A token in `logprobs`: where its text begins in the choice's, and how much of it a stop text cuts off."""

    token: int
    logprob: TokenLogprob | None
    offset: int
    cut: int = 0


class CompletionChoice(Choice):
    """An answer of a text completion: what stands before it, and where its tokens begin."""

    kind = chunk_kind = "text_completion"

    def __init__(self, index: int, job: Job, tokenizer: SupportsTokens, request: CompletionRequest) -> None:
        super().__init__(index, job, tokenizer)
        self._top = request.logprobs
        self._echo = bool(request.echo)
        self._length = 0

    def deltas(self, output: StepOutput, *, always: bool) -> list[Delta]:
        text, logprobs = self._said(output)
        reason = output.finish_reason
        if not (always or text or logprobs or reason):
            return []
        finish = None if reason is None else reason.value
        return [{"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish}]

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        logprobs = [delta["logprobs"] for delta in deltas if delta["logprobs"]]
        return {
            "index": self.index,
            "text": "".join(delta["text"] for delta in deltas),
            "logprobs": {key: [each for part in logprobs for each in part[key]] for key in logprobs[0]}
            if logprobs
            else None,
            "finish_reason": deltas[-1]["finish_reason"],
        }

    def _said(self, output: StepOutput) -> tuple[str, dict[str, Any] | None]:
        """Text of one step, and its log-probabilities if they are wanted and there are any."""
        echo, self._echo = self._echo, False
        text = self._prompt_text() if echo else ""
        entries = self._prompt_entries(text, output) if echo and self._top is not None else []
        offset = self._length + len(text)
        for piece, entry, cut in zip(output.texts, output.logprobs, cuts(output), strict=False):
            entries.append(_Entry(entry.token, entry, offset, cut))
            offset += len(piece)
        text += output.text
        self._length += len(text)
        return text, self._logprobs(entries) if self._top is not None and entries else None

    def _prompt_text(self) -> str:
        """The text that was sent; of a prompt of ids all tokens, special ones too."""
        return self.tokenizer.decode(self.job.prompt, skip_special=False) if self.job.text is None else self.job.text

    def _prompt_entries(self, text: str, output: StepOutput) -> list[_Entry]:
        """Tokens of the prompt; one that the text does not have, such as a begin token, takes no room in it."""
        entries, offset = [], 0
        places = Detokenizer(self.tokenizer, skip_special=False)
        for token, entry in zip(self.job.prompt, output.prompt_logprobs or (), strict=False):
            entries.append(_Entry(token, entry, offset))
            for piece in places.feed([token]).texts:
                offset += len(piece) if text.startswith(piece, offset) else 0
        return entries

    def _logprobs(self, entries: Sequence[_Entry]) -> dict[str, Any]:
        known = [entry.logprob for entry in entries]
        return {
            "tokens": [shown(self.tokenizer, entry.token, entry.cut) for entry in entries],
            "token_logprobs": [None if each is None else finite(each.logprob) for each in known],
            "top_logprobs": [
                None if each.logprob is None else self._most_likely(each.logprob, each.cut) for each in entries
            ],
            "text_offset": [entry.offset for entry in entries],
        }

    def _most_likely(self, entry: TokenLogprob, cut: int) -> dict[str, float]:
        """The most likely tokens, and the one that was chosen."""
        top = {shown(self.tokenizer, token): finite(logprob) for token, logprob in entry.top if token != entry.token}
        return top | {shown(self.tokenizer, entry.token, cut): finite(entry.logprob)}
