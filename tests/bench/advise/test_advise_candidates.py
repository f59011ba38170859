from dataclasses import replace

import pytest

from gamaneh.bench.advise import candidate
from gamaneh.bench.advise.candidate import NO_PARTS, Candidate, CandidateParts, CandidateWorkshop, Unusable, token_bytes
from gamaneh.bench.advise.memory_cost import footprint
from gamaneh.cli.option_groups import ProposerChoice
from gamaneh.errors import InvalidOption, ModelError
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, Precision
from gamaneh.testing.tiny import tiny_model

DRAFT = replace(tiny_model(seed=1), name="small", weight_bytes=1000)


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft models are called `small`; there are no others."""

    def load(name: str, *, precision: Precision, device: str, **_: object) -> LoadedModel:
        if name != "small":
            raise ModelError(f"no model {name}")
        return DRAFT

    monkeypatch.setattr(candidate, "load", load)


def workshop() -> CandidateWorkshop:
    return CandidateWorkshop(tiny_model(), EngineOptions(max_batch=2))


def usable(*parts: CandidateParts, only: tuple[str, ...] = ()) -> dict[str, Candidate]:
    found = workshop().candidates(parts, only)
    return {one.title: one for one in found if isinstance(one, Candidate)}


def test_proposers_that_need_nothing_are_always_there() -> None:
    found = usable()
    assert "lookup" in found
    assert {one.parts for one in found.values()} == {NO_PARTS}
    assert {one.tokenizer for one in found.values()} == {"none"}


def test_a_draft_model_is_one_candidate_and_brings_no_others() -> None:
    bare, found = usable(), usable(CandidateParts(draft_model="small"))
    assert set(found) - set(bare) == {"draft_model (small)"}
    one = found["draft_model (small)"]
    assert (one.weight_bytes, one.token_bytes, one.tokenizer) == (1000, token_bytes(DRAFT), "same")
    assert set(one.llm.engine.proposers) >= {"draft_model"}


def test_candidates_can_be_restricted() -> None:
    assert list(usable(CandidateParts(draft_model="small"), only=("draft_model",))) == ["draft_model (small)"]
    assert list(usable(CandidateParts(draft_model="small"), only=("lookup",))) == ["lookup"]


def test_a_name_that_is_no_proposer_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"proposer must be one of .* got 'telepathy'"):
        usable(only=("telepathy",))


def test_a_part_that_cannot_be_used_is_told_with_its_reason() -> None:
    found = list(workshop().candidates([CandidateParts(draft_model="gone")], ("draft_model",)))
    assert found == [Unusable("gone", "no model gone")]


def test_a_proposer_that_is_not_there_by_itself_is_built_when_asked_for() -> None:
    (one,) = usable(only=("early_exit",)).values()
    assert one.asked
    assert one.served.proposer == "early_exit"
    assert one.serve_options(None) == ["--proposer", "early_exit"]


@pytest.mark.parametrize(
    ("k", "options"),
    [
        (None, ["--draft-model", "small"]),
        (3, ["--draft-model", "small", "--proposer", "draft_model", "--draft-length", "3"]),
        (
            20,
            ["--draft-model", "small", "--proposer", "draft_model", "--draft-length", "20", "--max-draft-length", "20"],
        ),
    ],
)
def test_the_options_that_serve_a_candidate_are_options_of_serve(k: int | None, options: list[str]) -> None:
    one = usable(CandidateParts(draft_model="small"), only=("draft_model",))["draft_model (small)"]
    assert one.serve_options(k) == options
    names = [word.removeprefix("--").replace("-", "_") for word in options[::2]]
    given = dict(zip(names, (int(word) if word.isdigit() else word for word in options[1::2]), strict=True))
    assert ProposerChoice(**given).speculation().draft_length == k


def test_the_memory_of_the_draft_takes_room_from_requests() -> None:
    target, one = tiny_model(), usable(CandidateParts(draft_model="small"))["draft_model (small)"]
    memory = footprint(replace(target, weight_bytes=5000), one, context=100, limit=6000 + 250 * token_bytes(target))
    assert (memory.largest_plain_batch, memory.largest_batch) == ((1000 // token_bytes(target) + 250) // 100, 1)
    assert memory.needed(1) == 6000 + 200 * token_bytes(target)


def test_what_does_not_fit_leaves_no_room_at_all() -> None:
    one = usable()["lookup"]
    assert footprint(replace(tiny_model(), weight_bytes=10), one, context=10, limit=5).largest_batch == 0
