"""`auto` copies where there is something to copy and asks the draft model where there is not."""

from __future__ import annotations

from collections import Counter

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import AUTO, EMPTY_DRAFT, ReasonCode, Request, StepReport
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.lookup import LookupProposer
from gamaneh.testing import ByteTokenizer, ScriptedRunner, SimulatedClock, fixed_output, next_token_table

VOCAB = 260
LINE = [(at * 37 + 11) % 250 for at in range(40)]
SCRIPT = next_token_table({token: (token * 7 + 3) % 256 for token in range(VOCAB)}, VOCAB)
PARAMS = SamplingParams(max_tokens=120, ignore_eos=True)


class TimedDraftRunner(ScriptedRunner):
    """A draft model whose forwards take a tenth of a plain step."""

    clock: SimulatedClock

    def forward(self, feeds, *, taps=(), num_layers=None):
        self.clock.advance(0.002)
        return super().forward(feeds, taps=taps)


def engine_for(script, speculation: SpeculationOptions) -> Engine:
    """Lookup and a draft model that is always right."""
    clock = SimulatedClock()
    target = ScriptedRunner(script, VOCAB, num_blocks=128, block_size=16, max_context=1024)
    target.computed_rows = lambda rows: -(-rows // 16) * 16
    forward = target.forward

    def timed(placed, *, taps=(), num_layers=None):
        clock.advance(0.02)
        return forward(placed, taps=taps)

    target.forward = timed
    runner = TimedDraftRunner(script, VOCAB, num_blocks=128, block_size=16, max_context=1024)
    runner.clock = clock
    model = DraftModelProposer(PagedBackend(runner, KVManager(BlockPool(128, 16), runner.cache)), vocab_size=VOCAB)
    return assemble(
        PagedBackend(target, KVManager(BlockPool(128, 16), target.cache)),
        ByteTokenizer(),
        proposers={"draft_model": model, "lookup": LookupProposer()},
        speculation=speculation,
        options=EngineOptions(max_batch=8, step_tokens=512),
        clock=clock,
    )


def serve(engine: Engine, prompt: list[int], name: str = "r") -> tuple[list[int], list[StepReport]]:
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    engine.add(Request(prompt, PARAMS, id=name))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.tokens]
    return tokens, reports


def test_a_text_that_repeats_its_prompt_is_copied() -> None:
    script = fixed_output(LINE * 3, VOCAB, len(LINE))
    tokens, reports = serve(engine_for(script, SpeculationOptions(proposer=AUTO)), LINE)
    used = Counter(report.proposer for report in reports)
    assert tokens == LINE * 3
    assert used["lookup"] > used["draft_model"]


def test_a_text_that_repeats_nothing_is_drafted_by_the_model() -> None:
    output = [(at * at * 31 + at * 17) % 255 for at in range(120)]
    tokens, reports = serve(engine_for(fixed_output(output, VOCAB, 3), SpeculationOptions(proposer=AUTO)), [1, 2, 3])
    used = Counter(report.proposer for report in reports)
    assert tokens == output
    assert used["draft_model"] > used["lookup"]


def test_a_draft_cache_that_fell_behind_catches_up() -> None:
    """Off does no work; on again, the draft model reads what it missed and is right at once."""
    script = fixed_output([(at * 31 + at * at) % 255 for at in range(120)], VOCAB, 3)
    engine = engine_for(script, SpeculationOptions(proposer="draft_model", draft_length=4))
    model = engine.proposers["draft_model"].reader
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    engine.add(Request([1, 2, 3], PARAMS, id="r"))
    for _ in range(5):
        engine.step()
    forwards, held = len(model.backend.model.forwards), model.backend.length("r")
    engine.quarantine.report("draft_model", "left out by this test")
    while engine.quarantine.rounds_left("draft_model") > 1:
        engine.step()
    assert (len(model.backend.model.forwards), model.backend.length("r")) == (forwards, held)
    reports.clear()
    while engine.has_work:
        engine.step()
    assert all(report.accepted == report.depth for report in reports)
    assert sum(report.depth for report in reports) > 20


def test_a_draft_model_whose_window_is_full_is_left_within_a_few_rounds() -> None:
    """It may only deliver nothing, in no time: that must not be taken for a proposer that pays."""
    engine = engine_for(SCRIPT, SpeculationOptions(proposer=AUTO))
    model = engine.proposers["draft_model"]
    _, early = serve(engine, [1, 2, 3], "early")
    model.propose = lambda rows: [EMPTY_DRAFT for _ in rows]
    _, reports = serve(engine, [4, 5, 6], "full")
    assert early[-3].reason_code is ReasonCode.PAYS
    asked = [at for at, report in enumerate(reports) if report.proposer == "draft_model"]
    assert len(asked) <= 12
    assert {report.reason_code for report in reports[30:] if report.proposer == "draft_model"} <= {ReasonCode.PROBE}
