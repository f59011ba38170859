"""Never slower: an engine in simulated time, whose drafts are right 90 %, 50 % or 5 % of the time."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from gamaneh.control.fallback import FIRST_ROUNDS, Fault
from gamaneh.core import PLAIN, Draft, ReasonCode, ReasonDetails, Request, StepReport
from gamaneh.engine.calibration import calibrate
from gamaneh.engine.engine import Engine
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, SimulatedClock, TimedProposer, TimedRunner, next_token_table, scripted_engine

VOCAB = 260
SCRIPT = next_token_table({token: (token * 7 + 3) % 256 for token in range(VOCAB)}, VOCAB)
PLAIN_SECONDS = 0.02
ADAPTIVE = SpeculationOptions(proposer="scripted")
TOKENS = {1: 128, 4: 96, 16: 64}
"""Length of each output, by batch."""


def flat(rows: int, context: int) -> float:
    """Sixteen rows cost what one costs, as where reading the weights takes the time."""
    return PLAIN_SECONDS * -(-rows // 16)


def rising(rows: int, context: int) -> float:
    """Each row costs a fifth of a plain step, as where arithmetic takes much of the time."""
    return PLAIN_SECONDS * (0.8 + 0.2 * rows) + 2e-6 * context


def engine_for(seconds, accuracy: float = 0.0, token_seconds: float = 0.002, speculation=ADAPTIVE) -> Engine:
    clock = SimulatedClock()
    proposer = TimedProposer(SCRIPT, VOCAB, accuracy, clock=clock, seconds=token_seconds, lag_seconds=1e-5)
    runner = TimedRunner(SCRIPT, VOCAB, clock, seconds, tile=16 if seconds is flat else 1)
    options = EngineOptions(max_batch=16, step_tokens=512)
    engine = scripted_engine(
        runner, ByteTokenizer(), proposer=proposer, speculation=speculation, options=options, clock=clock
    )
    calibrate(engine.cost, engine.backend, clock=clock)
    clock.now = 0.0
    return engine


def serve(engine: Engine, batch: int = 1, tokens: int | None = None, name: str = "r") -> list[StepReport]:
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    for at in range(batch):
        params = SamplingParams(max_tokens=tokens or TOKENS[batch], ignore_eos=True)
        engine.add(Request([at, 1], params, id=f"{name}{at}"))
    while engine.has_work:
        engine.step()
    engine.observers.remove(reports.append)
    engine.check_integrity()
    return reports


@cache
def plain_seconds(seconds, batch: int) -> float:
    engine = engine_for(seconds, speculation=SpeculationOptions())
    serve(engine, batch)
    return engine.clock()


def gain(seconds, batch: int, accuracy: float, token_seconds: float) -> float:
    engine = engine_for(seconds, accuracy, token_seconds)
    serve(engine, batch)
    return plain_seconds(seconds, batch) / engine.clock()


class TestNeverSlower:
    """CASES kind 39."""

    @pytest.mark.parametrize("seconds", [flat, rising])
    @pytest.mark.parametrize("batch", [1, 4, 16])
    @pytest.mark.parametrize("accuracy", [0.9, 0.5, 0.05])
    @pytest.mark.parametrize("token_seconds", [0.002, 0.01], ids=lambda cost: f"draft{cost / PLAIN_SECONDS:g}")
    def test_adapting_loses_less_than_a_twentieth(
        self, seconds, batch: int, accuracy: float, token_seconds: float
    ) -> None:
        assert gain(seconds, batch, accuracy, token_seconds) >= 0.95

    @pytest.mark.parametrize(("seconds", "batch", "least"), [(flat, 1, 2.5), (flat, 4, 2.0), (rising, 1, 1.1)])
    def test_drafts_that_are_mostly_right_pay(self, seconds, batch: int, least: float) -> None:
        assert gain(seconds, batch, accuracy=0.9, token_seconds=0.002) >= least

    def test_prompts_that_a_drafter_has_to_read_first_do_not_keep_it_from_drafting(self) -> None:
        """Reading a prompt takes five plain steps here, and pays over the answer; the best fixed length gives 1.5."""

        def seconds(speculation: SpeculationOptions) -> float:
            engine = engine_for(flat, 0.9, 0.006, speculation)
            engine.proposers["scripted"].lag_seconds = 1e-3
            for at in range(10):
                engine.add(Request([at] + [1] * 99, SamplingParams(max_tokens=96, ignore_eos=True)))
                while engine.has_work:
                    engine.step()
            return engine.clock()

        assert seconds(SpeculationOptions()) / seconds(ADAPTIVE) > 1.3

    def test_a_drafter_as_slow_as_the_target_is_hardly_used(self) -> None:
        assert gain(flat, 1, accuracy=1.0, token_seconds=2 * PLAIN_SECONDS) >= 0.95


class TestOffAndOn:
    def test_drafting_begins_again_when_drafts_become_good(self) -> None:
        engine = engine_for(flat, accuracy=0.0)
        bad = serve(engine, tokens=200)
        engine.proposers["scripted"].accuracy = 1.0
        good = serve(engine, tokens=600, name="good")
        assert {report.reason_code for report in bad[60:-1]} <= {ReasonCode.NO_GAIN, ReasonCode.PROBE}
        assert good[-2].reason_code is ReasonCode.PAYS
        assert good[-2].depth > 4

    def test_no_drafter_is_asked_while_drafting_is_off(self) -> None:
        engine = engine_for(flat, accuracy=0.0, token_seconds=PLAIN_SECONDS)
        reports = serve(engine, tokens=400)
        asked = engine.proposers["scripted"].asked
        assert len(asked) == sum(report.decision > 0 for report in reports)
        assert len(asked) < 20

    def test_output_is_that_of_plain_decoding(self) -> None:
        def output(engine: Engine) -> dict[str, list[int]]:
            tokens: dict[str, list[int]] = {}
            for at in range(3):
                engine.add(Request([at, 1], SamplingParams(max_tokens=60, ignore_eos=True), id=f"r{at}"))
            while engine.has_work:
                for step in engine.step():
                    tokens.setdefault(step.request_id, []).extend(step.tokens)
            return tokens

        assert output(engine_for(rising, accuracy=0.6)) == output(engine_for(rising, speculation=SpeculationOptions()))


class TestFallback:
    FIXED = SpeculationOptions(proposer="scripted", draft_length=4)

    def test_a_proposer_that_is_much_slower_than_what_it_saves_is_left_out_even_where_it_is_asked_for(self) -> None:
        engine = engine_for(flat, accuracy=0.5, token_seconds=5 * PLAIN_SECONDS, speculation=self.FIXED)
        reports = serve(engine, tokens=300)
        assert engine.quarantine.counts["scripted", Fault.SLOW] >= 2
        assert ReasonCode.QUARANTINE in {report.reason_code for report in reports}

    def test_a_proposer_that_becomes_slow_is_not_waited_for(self) -> None:
        engine = engine_for(flat, accuracy=0.9)
        serve(engine)
        engine.proposers["scripted"].seconds = 1.0
        reports = serve(engine, name="slow")
        assert sum(report.decision > 0 for report in reports) <= 3
        assert engine.quarantine.counts["scripted", Fault.SLOW] >= 1

    @pytest.mark.parametrize(
        ("error", "fault"), [(RuntimeError("broken"), Fault.ERROR), (MemoryError("no memory left"), Fault.MEMORY)]
    )
    def test_failures_are_counted_by_kind_and_the_proposer_is_tried_again(self, error, fault) -> None:
        engine = engine_for(flat, accuracy=0.9, speculation=self.FIXED)
        faults = [error]

        def fail() -> None:
            if faults:
                raise faults.pop()

        engine.proposers["scripted"].fault = fail
        reports = serve(engine)
        assert engine.quarantine.counts == {("scripted", fault): 1}
        left_out = [report for report in reports if report.reason_code is ReasonCode.QUARANTINE]
        assert len(left_out) == FIRST_ROUNDS - 1
        assert reports[-1].proposer != PLAIN

    @pytest.mark.parametrize("chance", [float("nan"), 0.0, -1.0, 7.0])
    def test_probabilities_that_are_none_are_nonsense(self, chance: float) -> None:
        engine = engine_for(flat, speculation=self.FIXED)
        probs = torch.full((1, VOCAB), chance)
        engine.proposers["scripted"].propose = lambda rows: [Draft.chain([1], probs) for _ in rows]
        serve(engine, tokens=10)
        assert engine.quarantine.counts["scripted", Fault.NONSENSE] == 1


class TestSnapshot:
    def test_it_tells_what_is_done_and_why(self) -> None:
        engine = engine_for(flat, accuracy=1.0)
        engine.add(Request([1], SamplingParams(max_tokens=400, ignore_eos=True), id="r"))
        for _ in range(10):
            engine.step()
        snapshot = engine.snapshot()
        proposer, request = snapshot.proposers["scripted"], snapshot.requests["r"]
        assert proposer.state == "ready"
        assert proposer.totals.accepted <= proposer.totals.drafted
        assert proposer.survival[0].bound < proposer.survival[0].estimate
        assert (request.proposer, request.code) == ("scripted", ReasonCode.PAYS)
        assert request.reason == (
            f"scripted asked for by a request (greedy, short prompt); best measured rate at {request.depth}"
        )
        assert request.details == ReasonDetails(("scripted",), request.depth, ("greedy", "short prompt"), chosen=False)
        assert snapshot.verify_seconds[16] == pytest.approx(PLAIN_SECONDS)

    def test_it_tells_of_a_quarantine(self) -> None:
        engine = engine_for(flat, accuracy=0.9)
        engine.quarantine.report("scripted", "RuntimeError: broken")
        proposer = engine.snapshot().proposers["scripted"]
        assert (proposer.state, proposer.rounds_left) == ("quarantine", FIRST_ROUNDS)
        assert (proposer.reason, proposer.fault) == ("RuntimeError: broken", "error")
        assert proposer.failures == {"error": 1}

    def test_requests_that_ended_are_not_in_it(self) -> None:
        engine = engine_for(flat, accuracy=0.9)
        serve(engine, tokens=10)
        assert engine.snapshot().requests == {}
