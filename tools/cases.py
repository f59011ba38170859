"""What races and the table of methods ask, and whoever generates like an `LLM` as a client of the measuring loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gamaneh.bench.record import Ask, Delivery, RequestFailed
from gamaneh.engine.llm import Generation
from gamaneh.options import SamplingParams


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt as it goes to the model: text or token ids."""

    id: str
    category: str
    prompt: str | Sequence[int]
    reference: str | None = None


class Generator(Protocol):
    """An `LLM`, or anything that generates like one."""

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        *,
        references: Sequence[str | None] | None = None,
        salt: str = "",
    ) -> list[Generation]:
        """Return one answer for each prompt, in order."""
        ...


class GeneratorClient:
    """Answers requests whose text is the id of a case.

    Attributes:
        answers: all answers so far, with the times that the generator took itself.
    """

    def __init__(self, generator: Generator, cases: Sequence[Case]) -> None:
        self.answers: list[Generation] = []
        self._generator = generator
        self._cases: Mapping[str, Case] = {case.id: case for case in cases}

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Yield the whole answer as one delivery.

        Raises:
            RequestFailed: the generator did not answer.
        """
        case = self._cases[ask.text]
        (answer,) = self._generator.generate([case.prompt], ask.params, references=[case.reference], salt=ask.salt)
        if answer.error is not None:
            raise RequestFailed(answer.error)
        self.answers.append(answer)
        tops = [sorted((logprob for _, logprob in each.top), reverse=True) for each in answer.logprobs]
        gaps = tuple(top[0] - top[1] for top in tops if len(top) > 1)
        yield Delivery(answer.text, len(answer.tokens), gaps=gaps, ids=tuple(answer.tokens))
