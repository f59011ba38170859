"""Rounds of the engine over a target whose output is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Answer, assert_idle, drain, run

from gamaneh.core import FinishReason, Needs, Origin, Request, StepReport
from gamaneh.errors import InvalidRequest
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import (
    ByteTokenizer,
    ScriptedProposer,
    ScriptedRunner,
    fixed_output,
    hashed,
    scripted_engine,
)

VOCAB = ByteTokenizer.vocab_size
EOS = ByteTokenizer.eos_ids[0]
PROMPT = [1, 2, 3, 4, 5]


def engine_for(script, *, k=None, accuracy=1.0, branches=0, options=None, max_context=256, num_blocks=64):
    """Plain without `k`, else a scripted proposer that is right with probability `accuracy`."""
    runner = ScriptedRunner(script, VOCAB, max_context=max_context, num_blocks=num_blocks)
    if k is None:
        return scripted_engine(runner, ByteTokenizer(), options=options)
    proposer = ScriptedProposer(script, VOCAB, accuracy, branches)
    speculation = SpeculationOptions(proposer="scripted", draft_length=k, max_draft_length=max(k, 1))
    return scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation, options=options)


def answer(engine, params: SamplingParams, prompt=PROMPT) -> Answer:
    return run(engine, {"r": (prompt, params)})["r"]


def observed(engine) -> list[StepReport]:
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    return reports


class TestEndInsideABlock:
    """CASES kind 01."""

    @pytest.mark.parametrize("k", range(1, 9))
    @pytest.mark.parametrize("eos_at", range(7))
    def test_nothing_comes_after_an_end_token(self, k: int, eos_at: int) -> None:
        output = [97 + i for i in range(12)]
        output[eos_at] = EOS
        result = answer(engine_for(fixed_output(output, VOCAB, 5), k=k), SamplingParams(max_tokens=20))
        assert result.tokens == output[:eos_at]
        assert result.text == "".join(map(chr, output[:eos_at]))
        assert result.finish_reason is FinishReason.STOP

    @pytest.mark.parametrize("k", [None, 1, 3, 8])
    @pytest.mark.parametrize(
        ("end", "end_tokens"),
        [
            ({}, 0),
            ({"stop_token_ids": (103,)}, 1),
            ({"stop": ("gh",)}, 0),
            ({"stop": ("g",), "stop_token_ids": (104,)}, 0),
        ],
        ids=["length", "end token", "stop text", "stop text before an end token"],
    )
    def test_reports_count_as_emitted_what_plain_decoding_takes_rounds_for(
        self, k: int | None, end: dict[str, Any], end_tokens: int
    ) -> None:
        engine = engine_for(fixed_output([97 + i for i in range(12)], VOCAB, 5), k=k)
        reports = observed(engine)
        result = answer(engine, SamplingParams(max_tokens=10, **end))
        emitted = sum(len(output.emitted) for output in result.outputs)
        assert sum(report.emitted for report in reports) == emitted - 1 + end_tokens
        assert all(report.emitted == 1 for report in reports if not report.drafted)

    def test_candidates_behind_the_end_count_for_nobody_but_the_controller(self) -> None:
        engine = engine_for(fixed_output([97, 98, EOS, 99, 100, 101, 102], VOCAB, 5), k=4)
        reports = observed(engine)
        answer(engine, SamplingParams(max_tokens=20))
        assert [(report.accepted, report.emitted, report.survived) for report in reports] == [(2, 2, 4)]

    @pytest.mark.parametrize("k", range(1, 9))
    def test_either_of_two_end_tokens_ends(self, k: int) -> None:
        output = [97, 98, 99, 100, EOS, 101]
        params = SamplingParams(max_tokens=20, stop_token_ids=(99,))
        assert answer(engine_for(fixed_output(output, VOCAB, 5), k=k), params).tokens == [97, 98]

    @pytest.mark.parametrize("k", range(1, 9))
    def test_end_tokens_are_ordinary_when_they_are_ignored(self, k: int) -> None:
        output = [97, EOS, 98, EOS, 99, 100, 101]
        params = SamplingParams(max_tokens=7, ignore_eos=True)
        result = answer(engine_for(fixed_output(output, VOCAB, 5), k=k), params)
        assert result.tokens == output
        assert result.finish_reason is FinishReason.LENGTH


class TestFirstToken:
    """CASES kind 07."""

    @pytest.mark.parametrize("max_tokens", [1, 2, 9])
    def test_the_token_after_the_prompt_is_emitted_once(self, max_tokens: int) -> None:
        output = list(range(65, 85))
        engine = engine_for(fixed_output(output, VOCAB, 5), k=4)
        for _ in ("cold", "warm"):
            assert answer(engine, SamplingParams(max_tokens=max_tokens)).tokens == output[:max_tokens]

    def test_an_end_token_first_gives_an_empty_answer_and_no_draft(self) -> None:
        engine = engine_for(fixed_output([EOS], VOCAB, 5), k=4)
        result = answer(engine, SamplingParams(max_tokens=9))
        assert result.outcome == ([], "", FinishReason.STOP)
        assert engine.proposers["scripted"].asked == []


class TestContextBorder:
    """CASES kind 09."""

    @pytest.mark.parametrize("prompt_len", range(40, 64))
    def test_the_context_is_filled_exactly(self, prompt_len: int) -> None:
        script = hashed(VOCAB)
        prompt = list(range(prompt_len))
        params = SamplingParams(max_tokens=None, ignore_eos=True)
        speculative = answer(engine_for(script, k=16, max_context=64), params, prompt)
        assert len(speculative.tokens) == 64 - prompt_len
        assert speculative.finish_reason is FinishReason.LENGTH
        assert speculative.tokens == answer(engine_for(script, max_context=64), params, prompt).tokens

    def test_a_prompt_as_long_as_the_context_is_refused(self) -> None:
        engine = engine_for(hashed(VOCAB), k=16, max_context=64)
        with pytest.raises(InvalidRequest, match="prompt must hold at most 63 tokens"):
            engine.add(Request(list(range(64))))

    def test_a_prompt_that_is_only_read_may_fill_the_cache(self) -> None:
        engine = engine_for(hashed(VOCAB), max_context=256, num_blocks=16)
        result = answer(engine, SamplingParams(max_tokens=0, prompt_logprobs=0), list(range(64)))
        assert (result.tokens, result.finish_reason) == ([], FinishReason.LENGTH)

    def test_a_row_at_the_border_does_not_disturb_its_neighbour(self) -> None:
        script, params = hashed(VOCAB), SamplingParams(max_tokens=None, ignore_eos=True)
        engine = engine_for(script, k=16, max_context=64)
        both = run(engine, {"long": (list(range(62)), params), "short": (list(range(10)), params)})
        alone = answer(engine_for(script, max_context=64), params, list(range(10)))
        assert len(both["long"].tokens) == 2
        assert both["short"].tokens == alone.tokens


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("branches", [0, 2])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_blocks", [64, 24], ids=["roomy", "preempting"])
def test_output_is_that_of_plain_decoding(
    accuracy: float, branches: int, batch: int, temperature: float, num_blocks: int, draft_length: int
) -> None:
    script = hashed(VOCAB, sharpness=2.0)
    requests = {
        f"r{at}": ([at, *PROMPT] * (at + 1), SamplingParams(temperature=temperature, seed=at, max_tokens=30))
        for at in range(batch)
    }
    nodes = draft_length * (1 + branches)
    engine = engine_for(script, k=nodes, accuracy=accuracy, branches=branches, num_blocks=num_blocks)
    expected = {name: answer(engine_for(script), params, prompt) for name, (prompt, params) in requests.items()}
    results = run(engine, requests)
    assert {name: result.outcome for name, result in results.items()} == {
        name: result.outcome for name, result in expected.items()
    }
    assert_idle(engine)


class TestAcceptance:
    """CASES kind 03: a cache out of step shows as acceptance below 100 %."""

    @pytest.mark.parametrize("k", [1, 4, 7])
    @pytest.mark.parametrize("prompt_len", [1, 2, 7, 100])
    def test_a_proposer_that_is_always_right_is_always_accepted(self, k: int, prompt_len: int) -> None:
        engine = engine_for(hashed(VOCAB), k=k)
        reports = observed(engine)
        answer(engine, SamplingParams(max_tokens=64, ignore_eos=True), list(range(prompt_len)))
        assert all(report.accepted == report.drafted for report in reports)

    def test_the_cache_lacks_the_last_token_only(self) -> None:
        engine = engine_for(hashed(VOCAB), k=4, accuracy=0.5)
        engine.add(Request(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True), id="r"))
        emitted = 0
        while engine.has_work:
            emitted += sum(len(output.emitted) for output in engine.step())
            if engine.has_work:
                assert engine.backend.kv.length("r") == len(PROMPT) + emitted - 1

    def test_origins_tell_accepted_corrected_and_bonus_tokens_apart(self) -> None:
        output = list(range(65, 91))
        engine = engine_for(fixed_output(output, VOCAB, 5), k=3)
        result = answer(engine, SamplingParams(max_tokens=9))
        assert [origin for step in result.outputs for origin in step.origins] == [
            Origin.PLAIN,
            *([Origin.ACCEPTED] * 3 + [Origin.BONUS]) * 2,
        ]


class TestChunkedPrefill:
    """CASES kind 35."""

    @pytest.mark.parametrize("step_tokens", [64, 63, 1000])
    @pytest.mark.parametrize("accuracy", [0.5, 1.0])
    def test_pieces_change_nothing_and_nothing_is_drafted_before_the_last(
        self, step_tokens: int, accuracy: float
    ) -> None:
        script, prompt = hashed(VOCAB), [i % 250 for i in range(512)]
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        options = EngineOptions(max_batch=8, step_tokens=step_tokens)
        engine = engine_for(script, k=4, accuracy=accuracy, options=options, max_context=1024, num_blocks=512)
        plain = engine_for(script, options=EngineOptions(step_tokens=1024), max_context=1024, num_blocks=512)
        results = run(engine, {"short": (PROMPT, params), "long": (prompt, params)})
        assert results["long"].tokens == answer(plain, params, prompt).tokens
        assert results["short"].tokens == answer(plain, params).tokens
        long_rows = [row for rows in engine.proposers["scripted"].asked for row in rows if row.request_id == "long"]
        assert all(len(row.tokens) > len(prompt) for row in long_rows)

    def test_a_long_prompt_does_not_hold_up_a_request_that_decodes(self) -> None:
        engine = engine_for(
            hashed(VOCAB), options=EngineOptions(max_batch=4, step_tokens=16), max_context=1024, num_blocks=512
        )
        engine.add(Request(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), id="short"))
        engine.step()
        engine.add(Request([i % 250 for i in range(512)], SamplingParams(max_tokens=2), id="long"))
        emitted = [output.request_id for _ in range(10) for output in engine.step()]
        assert emitted == ["short"] * 10


class TestMemory:
    """CASES kinds 13 and 29."""

    def test_blocks_come_back_whatever_ends_a_request(self) -> None:
        script = hashed(VOCAB)
        engine = engine_for(script, k=5, accuracy=0.5, num_blocks=40)
        for again in range(5):
            for at in range(40):
                params = SamplingParams(max_tokens=1 + at % 9, stop=("a",), stop_token_ids=(at,))
                engine.add(Request([at, again, *PROMPT], params, id=f"r{at}"))
                if at % 5 == 0:
                    engine.abort(f"r{at - 1}" if at else "r0")
                if at % 4 == 3:
                    drain(engine)
            drain(engine)
            assert_idle(engine)

    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_an_aborted_request_is_gone_at_once_and_the_others_go_on(self, steps: int) -> None:
        script, params = hashed(VOCAB), SamplingParams(max_tokens=30, ignore_eos=True)
        engine = engine_for(script, k=4, accuracy=0.5)
        for at in range(4):
            engine.add(Request([at, *PROMPT], params, id=f"r{at}"))
        for _ in range(steps):
            engine.step()
        assert engine.abort("r0")
        assert engine.abort("r2")
        assert "r0" not in engine.backend.kv
        outputs = drain(engine)
        assert set(outputs) == {"r1", "r3"}
        assert {"r0", "r2"} <= set(engine.proposers["scripted"].dropped)
        assert_idle(engine)

    def test_aborting_an_unknown_request_says_so(self) -> None:
        assert not engine_for(hashed(VOCAB)).abort("nobody")


class TestTies:
    """CASES kind 27."""

    def test_exact_ties_go_to_the_lowest_id_on_every_path(self) -> None:
        def script(history):
            import torch

            return torch.zeros(VOCAB)

        params = SamplingParams(max_tokens=12, ignore_eos=True)
        assert answer(engine_for(script, k=4), params).tokens == [0] * 12
        assert answer(engine_for(script), params).tokens == [0] * 12


class TestFaults:
    def test_a_proposer_that_raises_is_left_out_and_the_output_stays(self) -> None:
        script, params = hashed(VOCAB), SamplingParams(max_tokens=60, ignore_eos=True)
        engine = engine_for(script, k=3)

        def fail() -> None:
            raise MemoryError("no memory left")

        engine.proposers["scripted"].fault = fail
        assert answer(engine, params).tokens == answer(engine_for(script), params).tokens
        assert "MemoryError: no memory left" in engine.quarantine.reason("scripted")

    def test_a_proposer_is_tried_again_after_its_quarantine(self) -> None:
        script = hashed(VOCAB)
        engine = engine_for(script, k=3)
        faults = iter([RuntimeError("once")])

        def fail_once() -> None:
            error = next(faults, None)
            if error:
                raise error

        engine.proposers["scripted"].fault = fail_once
        answer(engine, SamplingParams(max_tokens=100, ignore_eos=True))
        assert len(engine.proposers["scripted"].asked) > 5

    @pytest.mark.parametrize("lie", ["too long", "out of range", "negative"])
    def test_a_draft_that_breaks_the_rules_is_not_used(self, lie: str) -> None:
        from gamaneh.core import Draft

        script, params = hashed(VOCAB), SamplingParams(max_tokens=20, ignore_eos=True)
        engine = engine_for(script, k=3)
        lies = {"too long": [1] * 9, "out of range": [VOCAB], "negative": [-1]}
        engine.proposers["scripted"].propose = lambda rows: [Draft.chain(lies[lie]) for _ in rows]
        assert answer(engine, params).tokens == answer(engine_for(script), params).tokens
        assert engine.quarantine.failures > 0

    def test_a_request_whose_logits_are_not_numbers_ends_alone(self) -> None:
        import torch

        good = hashed(VOCAB)

        def script(history):
            return torch.full((VOCAB,), float("nan")) if history[0] == 66 and len(history) > 9 else good(history)

        params = SamplingParams(max_tokens=20, ignore_eos=True)
        results = run(engine_for(script, k=3), {"bad": ([66, *PROMPT], params), "good": (PROMPT, params)})
        assert results["bad"].finish_reason is FinishReason.ERROR
        assert results["bad"].error
        assert results["good"].tokens == answer(engine_for(good), params).tokens


class TestBadRequests:
    @pytest.mark.parametrize(
        ("prompt", "params", "message"),
        [
            ([], {}, "prompt must hold at least one token"),
            ([VOCAB], {}, "prompt must hold token ids from 0 to 259, got 260"),
            ([1], {"max_tokens": 0}, "max_tokens must be at least 1"),
            ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
            ([1], {"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
            ([1], {"bad_words": ((VOCAB,),)}, "bad_words"),
        ],
    )
    def test_the_field_the_rule_and_the_value_are_named(self, prompt, params, message) -> None:
        engine = engine_for(hashed(VOCAB))
        with pytest.raises(InvalidRequest, match=message):
            engine.add(Request(prompt, SamplingParams(**params)))
        assert not engine.has_work

    def test_an_unknown_proposer_is_refused_by_name(self) -> None:
        engine = engine_for(hashed(VOCAB))
        with pytest.raises(InvalidRequest, match="proposer must be one of none, auto, got 'oracle'"):
            engine.add(Request([1], drafting=SpeculationOptions(proposer="oracle")))

    def test_a_request_id_in_use_is_refused(self) -> None:
        engine = engine_for(hashed(VOCAB))
        engine.add(Request([1], id="same"))
        with pytest.raises(InvalidRequest, match="request_id must not be in use"):
            engine.add(Request([1], id="same"))


class TestPromptLogprobs:
    """The part of CASES kind 23 that needs no server."""

    @pytest.mark.parametrize("step_tokens", [16, 64])
    @pytest.mark.parametrize("max_tokens", [0, 5])
    def test_there_is_one_for_each_prompt_token_but_the_first(self, step_tokens: int, max_tokens: int) -> None:
        script, prompt = hashed(VOCAB), [i % 7 for i in range(40)]
        params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=2, ignore_eos=True)
        options = EngineOptions(max_batch=4, step_tokens=step_tokens)
        result = answer(engine_for(script, k=4, options=options), params, prompt)
        logprobs = result.outputs[0].prompt_logprobs
        assert logprobs is not None
        assert logprobs[0] is None
        expected = [float(script(prompt[:at]).log_softmax(0)[prompt[at]]) for at in range(1, 40)]
        assert [entry.logprob for entry in logprobs[1:]] == pytest.approx(expected, abs=1e-5)
        assert len(result.tokens) == max_tokens

    def test_log_probabilities_of_accepted_tokens_are_the_targets_own(self) -> None:
        script, params = hashed(VOCAB), SamplingParams(max_tokens=12, logprobs=3, temperature=0.7, seed=3)
        plain = answer(engine_for(script), params)
        drafted = answer(engine_for(script, k=4, accuracy=0.7), params)
        assert [e for o in drafted.outputs for e in o.logprobs] == [e for o in plain.outputs for e in o.logprobs]


class TestHiddenStates:
    @pytest.mark.parametrize("window", [1, 5, 64])
    def test_a_proposer_gets_those_of_the_tokens_that_were_kept(self, window: int) -> None:
        """A tap of the scripted target shows the token itself."""
        script = hashed(VOCAB)
        engine = engine_for(script, k=6, accuracy=0.6, branches=1)
        proposer = engine.proposers["scripted"]
        proposer.needs = Needs(hidden_layers=(1,), hidden_window=window, branching=2)
        seen: list[tuple[list[int], list[int]]] = []
        original = proposer.propose

        def propose(rows):
            seen.extend((rows[0].hidden.flatten().int().tolist(), list(rows[0].tokens)) for _ in rows)
            return original(rows)

        proposer.propose = propose
        answer(engine, SamplingParams(max_tokens=40, ignore_eos=True))
        assert max(len(hidden) for hidden, _ in seen) == min(window, len(seen[-1][1]) - 1)
        assert all(hidden == tokens[-1 - len(hidden) : -1] for hidden, tokens in seen)

    def test_without_a_proposer_that_needs_them_none_are_made(self) -> None:
        engine = engine_for(hashed(VOCAB), k=3)
        answer(engine, SamplingParams(max_tokens=9, ignore_eos=True))
        assert all(row.hidden is None for rows in engine.proposers["scripted"].asked for row in rows)


class TestRefusedCandidates:
    @pytest.mark.parametrize("branches", [0, 2])
    def test_what_was_drafted_and_not_emitted_is_told(self, branches: int) -> None:
        engine = engine_for(hashed(VOCAB), k=6, accuracy=0.6, branches=branches)
        reports: list[StepReport] = []
        engine.observers.append(reports.append)
        result = answer(engine, SamplingParams(max_tokens=40, ignore_eos=True))
        told = [len(refused) for output in result.outputs for refused in output.refused]
        assert len(told) == len(result.tokens)
        assert sum(told) == sum(report.drafted - report.survived for report in reports) > 0


class TestThreads:
    @pytest.mark.parametrize("own", [True, False])
    def test_torch_computes_on_one_thread_where_the_backend_has_threads_of_its_own(self, own: bool) -> None:
        engine = engine_for(hashed(VOCAB))
        engine.backend.model.caps = replace(engine.backend.caps, own_threads=own)
        usual, seen = torch.get_num_threads(), []
        engine.observers.append(lambda report: seen.append(torch.get_num_threads()))
        torch.set_num_threads(2)
        try:
            answer(engine, SamplingParams(max_tokens=4, ignore_eos=True))
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(usual)
        assert set(seen) == {1 if own else 2}
