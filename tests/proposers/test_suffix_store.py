import pytest

from gamaneh.proposers.suffix_store import GENERATIONS, SharedStore, owner_of


def texts(store: SharedStore, owner: str) -> list[list[int]]:
    """Of one owner, the oldest first."""
    return [list(text) for tree in reversed(list(store.trees(owner))) for text in tree.texts()]


def test_answers_are_kept_by_owner() -> None:
    store = SharedStore(1000, 8)
    store.add("a", [1, 2, 3])
    store.add("b", [4, 5])
    store.add("a", [6])
    assert texts(store, "a") == [[1, 2, 3], [6]]
    assert texts(store, "b") == [[4, 5]]
    assert texts(store, "c") == []


@pytest.mark.parametrize("capacity", [1, 7, 64, 1000])
@pytest.mark.parametrize("length", [1, 5, 90])
def test_the_store_is_never_larger_than_it_may_be(capacity: int, length: int) -> None:
    store = SharedStore(capacity, 8)
    for number in range(300):
        store.add(f"owner {number % 3}", [number] * length)
        assert len(store) <= capacity
        assert len(store) == sum(len(tree) for owner in range(3) for tree in store.trees(f"owner {owner}"))


def test_the_oldest_answers_are_forgotten_first() -> None:
    store = SharedStore(80, 8)
    for number in range(40):
        store.add("a", [number] * 4)
    kept = [text[0] for text in texts(store, "a")]
    assert kept == list(range(kept[0], 40))
    assert len(kept) > 40 / GENERATIONS


def test_who_was_silent_for_longest_is_forgotten_first() -> None:
    store = SharedStore(64, 8)
    store.add("silent", [1, 2, 3])
    for number in range(40):
        store.add("busy", [number] * 4)
    assert texts(store, "silent") == []
    assert texts(store, "busy")


def test_an_owner_that_goes_on_is_remembered() -> None:
    store = SharedStore(64, 8)
    for number in range(40):
        store.add("slow", [1])
        store.add("busy", [number] * 4)
        assert [1] in texts(store, "slow")


def test_of_a_long_answer_the_end_is_kept() -> None:
    store = SharedStore(80, 8)
    store.add("a", list(range(100)))
    (kept,) = texts(store, "a")
    assert kept == list(range(100))[-len(kept) :]
    assert len(kept) >= 80 / GENERATIONS - 1


def test_the_newest_come_first() -> None:
    store = SharedStore(80, 8)
    for number in range(12):
        store.add("a", [number] * 4)
    newest, *older = store.trees("a")
    assert [11] * 4 in [list(text) for text in newest.texts()]
    assert older


def test_all_answers_added_again_make_the_same_store() -> None:
    store, again = SharedStore(200, 8), SharedStore(200, 8)
    for number in range(30):
        store.add(f"owner {number % 2}", [number, number + 1, number])
    for owner, text in store.texts():
        again.add(owner, text)
    for owner in ("owner 0", "owner 1"):
        assert texts(again, owner) == texts(store, owner)


def test_a_salt_is_not_given_away_by_its_owner() -> None:
    assert owner_of("secret") == owner_of("secret") != owner_of("other")
    assert "secret" not in owner_of("secret")


def test_bytes_grow_with_the_store() -> None:
    store = SharedStore(1000, 8)
    assert store.nbytes == 0
    store.add("a", list(range(100)))
    assert store.nbytes > 100 * 4
