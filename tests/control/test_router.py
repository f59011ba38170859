"""The router names the proposers that a request may use, and says why."""

from __future__ import annotations

import pytest

from gamaneh.control.fallback import Quarantine
from gamaneh.control.router import LONG_PROMPT, USUAL_OUTPUT, Features, Router
from gamaneh.control.text_kind import text_kind
from gamaneh.core import AUTO, PLAIN, Failure, Needs, ReasonCode


def features(**more) -> Features:
    return Features(**({"prompt_len": 10, "limit": 100, "greedy": True} | more))


def router() -> Router:
    return Router(Quarantine(), {"copier": Needs(instant=True), "drafter": Needs()})


def names(routes) -> list[str]:
    return [route.proposer for route in routes]


def test_the_proposer_that_was_asked_for_is_taken() -> None:
    assert names(router().routes("drafter", features())) == ["drafter"]


def test_auto_offers_all_of_them() -> None:
    routes = router().routes(AUTO, features())
    assert names(routes) == ["copier", "drafter"]
    assert [route.instant for route in routes] == [True, False]


def test_a_proposer_in_quarantine_is_left_out_and_the_reason_given() -> None:
    under_test = router()
    under_test.quarantine.report("drafter", "RuntimeError: broken")
    assert names(under_test.routes(AUTO, features())) == ["copier"]
    route = under_test.routes("drafter", features())[0]
    assert (route.proposer, route.code) == (PLAIN, ReasonCode.QUARANTINE)
    assert "RuntimeError: broken" in route.reason
    assert route.details.failures == (Failure("drafter", "error", "RuntimeError: broken"),)


def test_plain_decoding_is_given_where_it_was_asked_for() -> None:
    assert router().routes(PLAIN, features())[0].code is ReasonCode.ASKED_PLAIN


def test_the_last_token_is_not_drafted() -> None:
    assert router().routes("drafter", features(), emitted=99)[0].code is ReasonCode.SHORT


def test_auto_without_proposers_is_plain() -> None:
    assert names(Router(Quarantine(), {}).routes(AUTO, features())) == [PLAIN]


class TestGrammar:
    """A proposer that needs a grammar gets requests with one and no others."""

    router = Router(Quarantine(), {"copier": Needs(), "forced": Needs(grammar=True)})

    @pytest.mark.parametrize(("grammar", "there"), [(True, ["copier", "forced"]), (False, ["copier"])])
    def test_auto_offers_it_where_there_is_one(self, grammar: bool, there: list[str]) -> None:
        assert names(self.router.routes(AUTO, features(grammar=grammar))) == there

    def test_a_request_that_asks_for_it_by_name_is_told_why_it_is_plain(self) -> None:
        assert names(self.router.routes("forced", features(grammar=True))) == ["forced"]
        (route,) = self.router.routes("forced", features())
        assert (route.proposer, route.code) == (PLAIN, ReasonCode.NO_DRAFT)
        assert route.reason == "forced drafts for requests with a grammar only"


@pytest.mark.parametrize(
    "other", [{"greedy": False}, {"grammar": True}, {"prompt_len": LONG_PROMPT}], ids=lambda other: next(iter(other))
)
def test_what_matters_for_drafting_makes_another_kind(other) -> None:
    assert features(**other).kind != features().kind


def test_an_output_is_expected_to_be_as_long_as_usual_within_its_limit() -> None:
    under_test = router()
    assert under_test.expected_tokens(features(limit=1000)) == USUAL_OUTPUT
    assert under_test.expected_tokens(features(limit=20)) == 20
    for _ in range(200):
        under_test.finished(10)
    assert under_test.expected_tokens(features(limit=1000)) == pytest.approx(10, abs=0.1)


def test_an_output_that_is_longer_than_usual_is_expected_to_go_on() -> None:
    assert router().expected_tokens(features(limit=1000), emitted=500) == 500


@pytest.mark.parametrize(
    ("text", "reference", "kind"),
    [
        ("What is a good way to spend a rainy day? I like books and long walks.", False, "prose"),
        ("def add(a, b):\n    return a + b\n\nprint(add(1, 2))", False, "code"),
        ("Write a Python function that returns the median of a list.", False, "code"),
        ("امروز هوا چطور است و فردا چه می‌شود؟", False, "other script"),
        ("def add(a, b): return a + b", True, "editing"),
        ("", False, "prose"),
    ],
)
def test_the_kind_of_a_text(text: str, reference: bool, kind: str) -> None:
    assert text_kind(text, reference=reference) == kind


def test_texts_of_another_kind_are_another_kind_of_request() -> None:
    assert features(text="code").kind != features(text="prose").kind
