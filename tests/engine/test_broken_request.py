"""A request that breaks ends alone, whatever it raises."""

from __future__ import annotations

from collections.abc import Sequence

from conftest import assert_idle, drain
from torch import Tensor

from gamaneh.core import FinishReason, Request
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

VOCAB = 260
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


class BreakingMask:
    """A mask that gives up after some tokens."""

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        self.tokens, self.longest = tokens, longest

    def mask(self, path: Sequence[int]) -> Tensor | None:
        if len(self.tokens) > self.longest:
            raise RuntimeError("the parser is lost")
        return None


class BreakingGrammar:
    def new_mask(self, tokens: Sequence[int], prompt_len: int) -> BreakingMask:
        return BreakingMask(tokens, prompt_len + 4)


def test_the_others_go_on_and_its_blocks_are_free() -> None:
    engine = scripted_engine(ScriptedRunner(hashed(VOCAB), VOCAB), ByteTokenizer())
    engine.add(Request([1, 2, 3], PARAMS, id="well"))
    engine.add(Request([1, 2, 3], PARAMS, id="broken", mask=BreakingGrammar()))
    answers = drain(engine)
    assert (answers["broken"].finish_reason, answers["broken"].error) == (
        FinishReason.ERROR,
        "RuntimeError: the parser is lost",
    )
    assert answers["well"].tokens[:5] == answers["broken"].tokens
    assert len(answers["well"].tokens) == 12
    assert_idle(engine)


def test_the_tokens_before_a_bad_row_are_those_of_plain_decoding() -> None:
    """The row is in the middle of a draft that is accepted up to there."""
    good = hashed(VOCAB)

    def script(history: Sequence[int]) -> Tensor:
        return good(history) * (float("nan") if len(history) == 9 else 1.0)

    outcomes = []
    for proposer in (None, ScriptedProposer(good, VOCAB, accuracy=1.0)):
        speculation = SpeculationOptions(proposer="scripted", draft_length=8) if proposer else None
        runner = ScriptedRunner(script, VOCAB)
        engine = scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation)
        engine.add(Request([1, 2, 3], PARAMS, id="broken"))
        answer = drain(engine)["broken"]
        outcomes.append((answer.tokens, answer.finish_reason, answer.error))
        assert_idle(engine)
    assert len(outcomes[0][0]) == 6
    assert outcomes[1] == outcomes[0]
