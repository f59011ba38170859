"""What one caller asked and was answered is told to no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from served import VOCAB, ChatBytes, Running
from torch import Tensor

from gamaneh.proposers.suffix import SuffixProposer
from gamaneh.proposers.suffix_store import SharedStore
from gamaneh.server.server_options import ServerOptions
from gamaneh.testing import EOS_ID, ScriptedRunner, fixed_output, scripted_engine

STRANGER = "QWZXYVK"
"""A prompt of seven letters, of which the answer has none."""
SECRET = "the code is 4711, keep it"
FIELDS: dict[str, Any] = {"temperature": 0, "speculation": {"tokens": True, "proposer": "suffix", "draft_length": 4}}


def served(start: Callable[..., Running], **options: Any) -> Running:
    """A server that says the secret to whoever asks with five letters, and something alike to others."""
    secret = fixed_output([*SECRET.encode(), EOS_ID], VOCAB, 5)
    alike = fixed_output([*b"the code is not for you", EOS_ID], VOCAB, 7)

    def script(history: Sequence[int]) -> Tensor:
        return (secret if bytes(history[:5]) == b"owner" else alike)(history)

    proposer = SuffixProposer(SharedStore(1000, 32))
    engine = scripted_engine(ScriptedRunner(script, VOCAB), ChatBytes(), proposer=proposer)
    return start(engine, ServerOptions(**options))


def refused(answer: dict[str, Any]) -> str:
    return "".join("".join(token["refused"]) for token in answer["gamaneh"]["tokens"])


def test_answers_are_not_shared_with_callers_without_a_key(start) -> None:
    running = served(start)
    assert running.complete("owner", **FIELDS)["choices"][0]["text"] == SECRET
    other = running.complete(STRANGER, **FIELDS)
    assert not set(refused(other)) & set("4711")
    assert not any(token["origin"] == "accepted" for token in other["gamaneh"]["tokens"])


def test_a_caller_learns_from_its_own_answers_under_one_salt(start) -> None:
    running = served(start)
    for _ in range(2):
        answer = running.complete("owner", **FIELDS, cache_salt="mine")
    assert any(token["origin"] == "accepted" for token in answer["gamaneh"]["tokens"])


@pytest.mark.parametrize("salt", [None, ""])
def test_where_the_operator_shares_answers_refused_candidates_are_not_told(start, salt: str | None) -> None:
    running = served(start, share_answers=True)
    running.complete("owner", **FIELDS)
    other = running.complete(STRANGER, **FIELDS, cache_salt=salt)
    assert any(token["origin"] == "accepted" for token in other["gamaneh"]["tokens"])
    assert refused(other) == ""


def test_cached_prefixes_are_shared_without_a_key_and_not_between_salts(start) -> None:
    running = served(start)
    prompt = "owner of a long prompt"

    def cached(**fields: Any) -> int:
        usage = running.complete(prompt, max_tokens=1, **fields)["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached() == 0 < cached()
    assert cached(cache_salt="one") == 0
