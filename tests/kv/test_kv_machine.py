"""Any order of calls: every sequence reads its own rows, and nothing is lost."""

import zlib

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from gamaneh.kv import BlockPool, KVCache, KVManager

BLOCK_SIZE, NUM_BLOCKS = 3, 16
tokens_of_sequence = st.lists(st.integers(0, 1), min_size=1, max_size=14)
tokens_of_draft = st.lists(st.integers(0, 1), max_size=6)


def row_value(tokens: list[int], position: int, prompt_len: int, salt: str) -> int:
    """What a forward would write: it depends on the whole prefix and on the kind of the row."""
    return zlib.crc32(repr((tokens[: position + 1], position < prompt_len, salt)).encode()) + 1


class KVMachine(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(2, NUM_BLOCKS, BLOCK_SIZE, 1, 1, torch.int64)
        self.manager = KVManager(BlockPool(NUM_BLOCKS, BLOCK_SIZE), self.cache)
        self.tokens: dict[str, list[int]] = {}
        self.prompts: dict[str, tuple[int, str]] = {}
        self.counter = 0

    def write(self, request_id: str, tokens: list[int], position: int, slot: int) -> None:
        value = row_value(tokens, position, *self.prompts[request_id])
        self.cache.keys[:, slot], self.cache.values[:, slot] = value, -value

    @rule(target=sequences, tokens=tokens_of_sequence, prompt_len=st.integers(0, 14), salt=st.sampled_from(["", "x"]))
    def admit_anything(self, tokens: list[int], prompt_len: int, salt: str) -> str:
        return self.admit(tokens, prompt_len, salt)

    def admit(self, tokens: list[int], prompt_len: int, salt: str) -> str:
        self.counter += 1
        request_id = str(self.counter)
        self.tokens[request_id], self.prompts[request_id] = tokens, (prompt_len, salt)
        cached = self.manager.admit(request_id, tokens, *self.prompts[request_id])
        assert cached < len(tokens)
        return request_id

    @rule(target=sequences, other=sequences, more=tokens_of_sequence)
    def admit_a_continuation(self, other: str, more: list[int]) -> str:
        return self.admit(self.tokens[other] + more, *self.prompts[other])

    @rule(request_id=sequences)
    def feed_all(self, request_id: str) -> None:
        pending = len(self.tokens[request_id]) - self.manager.length(request_id)
        self.step(request_id, pending, [], [])

    @rule(request_id=sequences, chunk=st.integers(1, 6))
    def feed_chunk(self, request_id: str, chunk: int) -> None:
        pending = len(self.tokens[request_id]) - self.manager.length(request_id)
        self.step(request_id, min(pending, chunk), [], [])

    @rule(request_id=sequences, draft=tokens_of_draft, emitted=st.integers(0, 1), data=st.data())
    def verify(self, request_id: str, draft: list[int], emitted: int, data: st.DataObject) -> None:
        path = sorted(data.draw(st.sets(st.sampled_from(range(len(draft)))))) if draft else []
        pending = len(self.tokens[request_id]) - self.manager.length(request_id)
        if self.step(request_id, pending, draft, path):
            self.tokens[request_id] = [*self.tokens[request_id], emitted]

    def step(self, request_id: str, pending: int, draft: list[int], path: list[int]) -> bool:
        """One forward: it writes `pending` tokens and the draft, and the nodes of `path` are accepted."""
        tokens, length = self.tokens[request_id], self.manager.length(request_id)
        in_use = self.manager.pool.in_use
        if not self.manager.reserve(request_id, pending + len(draft)):
            assert (self.manager.length(request_id), self.manager.pool.in_use) == (length, in_use)
            return False
        start = length + pending
        committed = tokens + [draft[node] for node in path]
        slots = self.manager.slots(request_id, length, start + len(draft))
        for row in range(pending):
            self.write(request_id, tokens, length + row, slots[row])
        for depth, node in enumerate(path):
            self.write(request_id, committed, start + depth, slots[pending + node])
        self.manager.commit(request_id, committed, pending, path)
        self.tokens[request_id] = committed
        assert self.manager.length(request_id) == start + len(path)
        return True

    @rule(request_id=sequences, extra=st.integers(0, 9))
    def reserve_only(self, request_id: str, extra: int) -> None:
        self.manager.reserve(request_id, extra)

    @rule(request_id=sequences, back=st.integers(0, 4), fresh=st.integers(0, 1))
    def truncate(self, request_id: str, back: int, fresh: int) -> None:
        wanted = max(0, self.manager.length(request_id) - back)
        reached = self.manager.truncate(request_id, wanted)
        assert wanted - BLOCK_SIZE < reached <= wanted
        self.tokens[request_id] = [*self.tokens[request_id][:wanted], fresh]

    @rule(target=sequences, request_id=consumes(sequences))
    def free(self, request_id: str) -> object:
        self.manager.free(request_id)
        del self.tokens[request_id]
        return multiple()

    @invariant()
    def books_agree(self) -> None:
        self.manager.check_integrity()

    @invariant()
    def every_sequence_reads_its_own_rows(self) -> None:
        for request_id, tokens in self.tokens.items():
            length = self.manager.length(request_id)
            slots = self.manager.slots(request_id, 0, length)
            expected = [row_value(tokens, position, *self.prompts[request_id]) for position in range(length)]
            assert self.cache.keys[1, slots].flatten().tolist() == expected
            assert self.cache.values[0, slots].flatten().tolist() == [-value for value in expected]

    @invariant()
    def runs_name_the_slots(self) -> None:
        for request_id in self.tokens:
            run = self.manager.table(request_id).run()
            capacity = self.manager.table(request_id).capacity
            slots = self.manager.slots(request_id, 0, capacity)
            consecutive = bool(slots) and slots == list(range(slots[0], slots[0] + capacity))
            assert run == (slots[0] if consecutive else None)

    def teardown(self) -> None:
        for request_id in self.tokens:
            self.manager.free(request_id)
        assert self.manager.pool.available == NUM_BLOCKS
        self.manager.check_integrity()


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
