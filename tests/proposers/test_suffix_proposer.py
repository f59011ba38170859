from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gamaneh.core import Draft, ProposalRow, Proposer, Sampler
from gamaneh.engine.assembly import build_engine
from gamaneh.errors import InvalidOption
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.proposers.suffix import GRADE_BORDERS, SuffixProposer, fingerprint, open_journal
from gamaneh.proposers.suffix_store import SharedStore
from gamaneh.testing import BYTE_VOCAB, ByteTokenizer, tiny_model

ANSWER = [20, 21, 22, 23, 24, 25]


def make_row(
    tokens: Sequence[int], depth: int = 3, *, name: str = "a", salt: str = "", reference: Sequence[int] = ()
) -> ProposalRow:
    sampler = cast(Sampler, None)
    return ProposalRow(name, tokens, depth, max_nodes=depth, sampler=sampler, reference=reference, salt=salt)


def draft(proposer: SuffixProposer, tokens: Sequence[int], depth: int = 3, **more: object) -> Draft:
    return proposer.propose([make_row(tokens, depth, **more)])[0]  # type: ignore[arg-type]


def sharing(capacity: int = 1000, **more: object) -> SuffixProposer:
    return SuffixProposer(SharedStore(capacity, 8), max_context=8, **more)  # type: ignore[arg-type]


def answer(proposer: SuffixProposer, output: Sequence[int], *, name: str = "first", salt: str = "") -> None:
    """A request that emits this output and ends."""
    tokens = [1, 2]
    draft(proposer, tokens, name=name, salt=salt)
    tokens += output
    proposer.end(name)


def test_the_proposer_follows_the_protocol() -> None:
    proposer: Proposer = SuffixProposer()
    assert (proposer.name, proposer.needs.probs, proposer.needs.instant) == ("suffix", False, True)


def test_the_own_text_is_copied() -> None:
    drafted = draft(SuffixProposer(), [5, 6, 7, 8, 9, 10, 11, 7, 8])
    assert (drafted.tokens, drafted.is_chain, drafted.probs) == ((9, 10, 11), True, None)


def test_the_reference_is_copied() -> None:
    assert draft(SuffixProposer(), [1, 2], reference=[0, 1, 2, 3]).tokens == (3,)


def test_an_earlier_answer_is_copied() -> None:
    proposer = sharing()
    answer(proposer, ANSWER)
    assert draft(proposer, [9, 20, 21], name="second").tokens == (22, 23, 24)


def test_the_last_tokens_of_an_answer_are_kept_too() -> None:
    """They are emitted after the last draft was asked for."""
    proposer = sharing()
    answer(proposer, ANSWER)
    assert draft(proposer, [9, 23, 24], name="second").tokens == (25,)


def test_prompts_are_not_shown_to_other_requests() -> None:
    proposer = sharing()
    draft(proposer, [30, 31, 32, 33], name="first")
    proposer.end("first")
    assert len(draft(proposer, [9, 30, 31], name="second")) == 0


def test_nobody_is_shown_the_answers_of_another_salt() -> None:
    proposer = sharing()
    answer(proposer, ANSWER, salt="alice")
    assert len(draft(proposer, [9, 20, 21], name="second", salt="bob")) == 0
    assert len(draft(proposer, [9, 20, 21], name="third")) == 0
    assert draft(proposer, [9, 20, 21], name="fourth", salt="alice").tokens == (22, 23, 24)


def test_running_requests_do_not_read_each_other() -> None:
    proposer = sharing()
    drafts = proposer.propose([make_row([1, 2, 3, 9], name="a"), make_row([1, 2], name="b")])
    assert [len(each) for each in drafts] == [0, 0]


def test_the_longest_match_wins_and_of_equal_ones_the_own_text() -> None:
    proposer = sharing()
    answer(proposer, [7, 20, 21, 22])
    assert draft(proposer, [20, 21, 90, 7, 20, 21], 1, name="b").tokens == (22,)
    assert draft(proposer, [20, 21, 90, 8, 20, 21], 1, name="c").tokens == (90,)


def test_without_a_store_nothing_is_kept() -> None:
    proposer = SuffixProposer()
    answer(proposer, ANSWER)
    assert len(draft(proposer, [9, 20, 21], name="second")) == 0
    proposer.forget("second")
    assert proposer.memory_bytes() == 0


def test_the_answer_of_a_preempted_request_is_learned_once_and_whole() -> None:
    proposer, tokens = sharing(), [1, 2]
    proposer.propose([replace(make_row(tokens, 3), prompt_len=2)])
    tokens += ANSWER
    proposer.forget("a")
    assert proposer.store is not None and list(proposer.store.texts()) == []
    proposer.propose([replace(make_row(tokens, 3), prompt_len=2)])
    tokens += [40, 41, 42]
    proposer.end("a")
    proposer.end("never seen")
    assert [list(text) for _, text in proposer.store.texts()] == [[*ANSWER, 40, 41, 42]]


def test_half_an_answer_is_not_learned() -> None:
    proposer, tokens = sharing(), [1, 2]
    draft(proposer, tokens)
    tokens += ANSWER
    proposer.forget("a")
    assert len(draft(proposer, [9, *ANSWER[:2]], name="second")) == 0


def test_tokens_that_were_added_since_the_last_round_are_read() -> None:
    proposer, tokens = SuffixProposer(), [1, 2, 3, 4]
    draft(proposer, tokens)
    tokens += [1, 2]
    assert draft(proposer, tokens).tokens == (3, 4, 1)


@pytest.mark.parametrize(("forbidden", "expected"), [({5}, (3, 4)), ({3, 5}, ()), (set(), (3, 4, 5))])
def test_forbidden_tokens_end_the_draft(forbidden: set[int], expected: tuple[int, ...]) -> None:
    assert draft(SuffixProposer(forbidden=forbidden), [1, 2, 3, 4, 5, 6, 1, 2]).tokens == expected


@pytest.mark.parametrize("size", [2, *GRADE_BORDERS])
def test_the_grade_follows_the_length_of_the_match(size: int) -> None:
    text = list(range(100, 100 + size))
    drafted = draft(SuffixProposer(), [*text, 7, 8, *text])
    assert drafted.grade == sum(size >= border for border in GRADE_BORDERS)


def test_a_prompt_of_8000_tokens() -> None:
    text = [at * at % 251 for at in range(8000)]
    assert draft(SuffixProposer(), [*text, 300, 301, *text[400:420]], 9).tokens == tuple(text[420:429])


def test_a_dropped_request_leaves_nothing_of_its_own_behind() -> None:
    proposer = SuffixProposer()
    draft(proposer, [1, 2, 3, 1, 2])
    assert proposer.memory_bytes() > 0
    proposer.forget("a")
    assert proposer.memory_bytes() == 0


def built(path: Path | None, tokens: int = 1000) -> SuffixProposer:
    store = SharedStore(tokens, 32)
    journal = None if path is None else open_journal(str(path), store, ByteTokenizer(), BYTE_VOCAB)  # type: ignore[arg-type]
    return SuffixProposer(store, journal)


def test_answers_outlive_the_process_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    answer(built(path), ANSWER, salt="alice")
    again = built(path)
    assert draft(again, [9, 20, 21], salt="alice").tokens == (22, 23, 24)
    assert len(draft(again, [9, 20, 21], name="b", salt="bob")) == 0
    assert "alice" not in path.read_text()


def test_a_file_that_is_much_larger_than_the_store_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = built(path, tokens=100)
    for number in range(60):
        answer(first, [number] * 10)
    lines = len(path.read_text().splitlines())
    assert lines == 61
    again = built(path, tokens=100)
    assert again.store is not None
    kept = [list(text) for _, text in again.store.texts()]
    assert 1 + len(kept) == len(path.read_text().splitlines()) < lines
    assert kept[-1] == [59] * 10


def test_the_file_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    class Other(ByteTokenizer):
        def vocab(self) -> dict[str, int]:
            return {piece: (token + 1) % BYTE_VOCAB for piece, token in super().vocab().items()}

    built(tmp_path / "answers")
    with pytest.raises(InvalidOption, match="suffix_store must have the tokenizer"):
        open_journal(str(tmp_path / "answers"), SharedStore(1000, 32), Other(), BYTE_VOCAB)  # type: ignore[arg-type]
    assert fingerprint(ByteTokenizer()) != fingerprint(Other())  # type: ignore[arg-type]


def test_no_store_is_kept_where_none_is_asked_for() -> None:
    options = SpeculationOptions(proposer="suffix", draft_length=1, proposer_options={"suffix_tokens": 0})
    proposer = build_engine(tiny_model(), None, options, EngineOptions(kv_blocks=8)).proposers["suffix"]
    assert isinstance(proposer, SuffixProposer) and proposer.store is None
