from collections.abc import Sequence
from dataclasses import replace

import pytest

from gamaneh.bench.advise.costs import Surface
from gamaneh.bench.advise.trace import tally
from gamaneh.bench.advise.whatif import assume, assumed_costs, replay, replay_costs, scenario
from gamaneh.bench.advise.workload import WorkloadRequest
from gamaneh.core import Draft, Needs, ProposalRow
from gamaneh.engine.llm import LLM
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.proposers.lookup import LookupProposer
from gamaneh.testing import BYTE_VOCAB
from gamaneh.testing.tiny import tiny_model


def encode(text: str) -> list[int]:
    return list(text.encode())


def request(name: str, prompt: str, answer: str, **more: str) -> WorkloadRequest:
    return WorkloadRequest(
        id=name,
        category=more.get("category", "chat"),
        language="en",
        prompt=tuple(encode(prompt)),
        answer=tuple(encode(answer)),
        reference=more.get("reference"),
        max_tokens=len(answer),
    )


class Recorder:
    """Notes what it is shown; drafts the tree that it was given."""

    name = "recorder"
    needs = Needs()

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.seen: list[bytes] = []
        self.dropped: list[str] = []

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        self.seen.append(bytes(rows[0].tokens))
        return [self.draft]

    def end(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def forget(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def memory_bytes(self) -> int:
        return 0


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_replay_is_what_the_engine_does_with_greedy_answers(k: int) -> None:
    prompts = ["abcabcabcabc", "the cat sat on the mat, the cat sat"]
    llm = LLM(tiny_model(), speculation=SpeculationOptions(proposer="lookup", draft_length=k))
    llm.engine.quarantine.leaves_out_slow = False
    answers = llm.generate(prompts, SamplingParams(max_tokens=60, ignore_eos=True))
    recorded = [
        WorkloadRequest(
            id=str(at),
            category="chat",
            language="en",
            prompt=tuple(encode(prompt)),
            answer=tuple(answer.tokens),
            max_tokens=60,
        )
        for at, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    found = replay(llm.engine.proposers["lookup"], recorded, k, BYTE_VOCAB, encode)
    for trace, answer in zip(found.traces, answers, strict=True):
        made = [(report.depth, report.accepted, report.emitted) for report in answer.reports]
        assert [(one.depth, one.accepted, one.emitted) for one in trace.rounds] == made
    assert sum(report.accepted for answer in answers for report in answer.reports) > 0


def test_the_text_grows_as_the_answer_did() -> None:
    proposer = Recorder(Draft.chain(encode("xy")))
    found = replay(proposer, [request("a", "P", "axyb")], 2, BYTE_VOCAB, encode)
    assert proposer.seen == [b"Pa"]
    assert [(one.depth, one.accepted, one.emitted) for one in found.traces[0].rounds] == [(2, 2, 3)]
    assert proposer.dropped == ["a"]


def test_branches_are_followed() -> None:
    tree = Draft(tuple(encode("qxry")), (-1, -1, 1, 1))
    found = replay(Recorder(tree), [request("a", "P", "axyzz")], 2, BYTE_VOCAB, encode)
    assert (found.traces[0].rounds[0].depth, found.traces[0].rounds[0].accepted) == (2, 2)
    assert found.traces[0].rounds[0].rows == 4


def test_references_are_searched() -> None:
    one = request("a", "Say it.", "the brown fox jumps", reference="so the brown fox jumps over")
    counts = [
        tally(replay(LookupProposer(), [each], 8, BYTE_VOCAB, encode).traces[0].rounds).emitted
        / len(replay(LookupProposer(), [each], 8, BYTE_VOCAB, encode).traces[0].rounds)
        for each in (one, replace(one, reference=None))
    ]
    assert counts[0] > 2 * counts[1]


def test_proposers_that_read_hidden_states_are_refused() -> None:
    proposer = Recorder(Draft())
    proposer.needs = Needs(hidden_layers=(1,))
    with pytest.raises(InvalidOption, match="proposer must be one that does without the target's hidden states"):
        replay(proposer, [request("a", "P", "ab")], 2, BYTE_VOCAB, encode)


def test_a_proposer_that_fails_is_named_with_its_failure() -> None:
    class Broken(Recorder):
        def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
            raise ZeroDivisionError("nothing to divide")

    broken = Broken(Draft())
    with pytest.raises(GamanehError, match="recorder failed: ZeroDivisionError: nothing to divide"):
        replay(broken, [request("a", "P", "abc")], 2, BYTE_VOCAB, encode)
    assert broken.dropped == ["a"]


def test_assumed_acceptance_comes_out_as_assumed() -> None:
    requests = [request(str(at), "P", "a" * 400) for at in range(10)]
    counts = tally([one for trace in assume(requests, 0.7, 5) for one in trace.rounds])
    assert counts.survival[0] == pytest.approx(0.7, abs=0.03)
    assert counts.survival[2] == pytest.approx(0.7**3, abs=0.04)
    assert all(trace.tokens == 399 for trace in assume(requests, 0.7, 5))


def test_without_costs_tokens_per_round_are_the_speedup() -> None:
    traces = assume([request(str(at), "P", "a" * 200) for at in range(5)], 0.8, 4)
    found = scenario("x", traces, replay_costs(None, {}), replayed=True)
    assert found.best.speedup.value == pytest.approx(found.best.tokens_per_round, rel=0.01)
    assert found.by_batch == ()


def test_assumed_costs_are_in_plain_rounds() -> None:
    steps = Surface({(1, 0): (2.0,), (1, 8): (2.0,)})
    assert assumed_costs(steps, 0.25).round_seconds(1, 4, 4) == pytest.approx(2.0 + 4 * 0.5)
    assert assumed_costs(None, 0.25).round_seconds(1, 4, 4) == pytest.approx(1.0 + 4 * 0.25)


def test_drafts_for_several_requests_follow_one_another() -> None:
    steps = Surface({(1, 0): (1.0,)})
    costs = replay_costs(steps, {(1, 0): [0.0], (1, 4): [0.1]})
    assert costs.round_seconds(3, 0, 4) == pytest.approx(1.3, rel=0.02)


def test_categories_are_told_apart() -> None:
    requests = [request("a", "P", "a" * 50, category="code"), request("b", "P", "a" * 50)]
    found = scenario("x", assume(requests, 0.5, 3), replay_costs(None, {}), replayed=False)
    assert list(found.by_category) == ["code", "chat"]
    assert [one.k for one in found.by_k] == [1, 2, 3]
