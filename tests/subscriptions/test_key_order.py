"""Key-shared: which keys change hands, and in which order their records go out, beside a model of each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ister.broker.subscriptions.dispatch import Dispatcher, Wait
from ister.broker.subscriptions.key_order import KeyOrder
from ister.broker.subscriptions.key_ranges import RANGES, KeyRanges, hash_of
from tests.planting import shows

CONSUMERS = st.integers(1, 4)
OFFSETS = st.integers(0, 80)
KEYS = [0, 1, 600 << 22, 1023 << 22]
"""Hashes: two of one range, and of ranges that change hands when somebody comes."""


@given(st.lists(st.integers(1, 12), max_size=40))
def test_who_comes_and_goes_moves_its_own_share_of_the_keys_and_no_others(steps: list[int]) -> None:
    ranges, there = KeyRanges(), set[int]()
    hashes = [(number << 22) + 77 for number in range(RANGES)]
    for consumer in steps:
        before = [ranges.owner(one) for one in hashes]
        if consumer in there:
            there.remove(consumer)
            ranges.leave(consumer)
        else:
            there.add(consumer)
            ranges.join(consumer)
        after = [ranges.owner(one) for one in hashes]
        moved = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert all(consumer in pair for pair in moved), "a key of somebody else has changed hands"
        shares = Counter(after)
        if there:
            assert set(shares) == there
            assert max(shares.values()) - min(shares.values()) <= 1
            assert all(ranges.share_of(one) == shares[one] for one in there)


def judge(attempts: int) -> Wait:
    return Wait(float(attempts - 1), is_failed=attempts >= 4)


class KeysInOrder(RuleBasedStateMachine):
    """By offset: its key, and one of `free`, a consumer that has it, `waiting`, `failed`, `acknowledged`."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(0, judge=judge, by_key=True)
        self.keys: list[int | None] = []
        self.state: list[str | int] = []
        self.there: set[int] = set()
        self.requests = 0
        self.now = 0.0

    @rule(keys=st.lists(st.none() | st.sampled_from(KEYS), min_size=1, max_size=8))
    def topic_grows(self, keys: list[int | None]) -> None:
        if len(self.keys) < 80:
            self.keys += keys
            self.state += ["free"] * len(keys)

    @rule(consumer=CONSUMERS)
    def somebody_comes(self, consumer: int) -> None:
        if consumer not in self.there:
            self.there.add(consumer)
            self.dispatcher.join(consumer)

    @rule(consumer=CONSUMERS)
    def somebody_leaves(self, consumer: int) -> None:
        if consumer in self.there:
            self.there.remove(consumer)
            self.dispatcher.give_back(consumer)
            self.dispatcher.leave(consumer)
            self.state = ["free" if one == consumer else one for one in self.state]

    @rule(consumer=CONSUMERS)
    def somebody_is_gone(self, consumer: int) -> None:
        if consumer in self.there:
            self.there.remove(consumer)
            self.dispatcher.lose(consumer, self.now)
            self.dispatcher.leave(consumer)
            self._look_back()

    @rule(consumer=CONSUMERS, count=st.integers(1, 6), limit=st.integers(1, 90))
    def asks(self, consumer: int, count: int, limit: int) -> None:
        if consumer in self.there:
            self.learn(count)
            self.hand_out(consumer, count, limit)

    def learn(self, count: int) -> None:
        keys = self.dispatcher.keys
        assert keys is not None
        more = self.keys[keys.scanned : keys.scanned + count]
        if more:
            self.dispatcher.learn(keys.scanned, more)

    def hand_out(self, consumer: int, count: int, limit: int) -> bool:
        keys = self.dispatcher.keys
        assert keys is not None
        first = keys.next_for(consumer)
        self.requests += 1
        if first is None:
            return False
        start, end, _, _ = self.dispatcher.hand_out_by_key(
            consumer, self.requests, max(limit, first + 1), count, self.now + 3.0
        )
        assert start == first < end <= start + count
        for offset in range(start, end):
            assert self.state[offset] == "free", f"{offset} is handed out, and was {self.state[offset]}"
            key = self.keys[offset]
            if key is not None:
                self._check_order(consumer, offset, key)
            self.state[offset] = consumer
        return True

    def _check_order(self, consumer: int, offset: int, key: int) -> None:
        for other, (one, state) in enumerate(zip(self.keys, self.state, strict=True)):
            if one != key or state in ("acknowledged", consumer):
                continue
            assert not isinstance(state, int), f"{offset} goes to {consumer}, and {state} has {other}"
            assert other >= offset, f"{offset} goes to {consumer}, and {other} is {state}"

    @rule(start=OFFSETS, count=st.integers(1, 10))
    def acknowledges(self, start: int, count: int) -> None:
        end = min(start + count, self.dispatcher.next_offset)
        self.dispatcher.acknowledge(start, start + count)
        self.state[start:end] = ["acknowledged"] * max(0, end - start)

    @rule(consumer=CONSUMERS, start=OFFSETS, count=st.integers(1, 6), delay=st.none() | st.integers(0, 2))
    def refuses(self, consumer: int, start: int, count: int, delay: int | None) -> None:
        self.dispatcher.refuse(consumer, start, start + count, self.now, delay, "no")
        self._look_back()

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.dispatcher.expire(self.now)
        self.dispatcher.ripen(self.now)
        self._look_back()

    @rule(consumer=CONSUMERS, behind=st.integers(0, 3))
    def answers_were_lost(self, consumer: int, behind: int) -> None:
        self.dispatcher.give_back(consumer, range(self.requests - behind, self.requests + 1))
        self._look_back()

    @rule()
    def what_failed_is_acknowledged(self) -> None:
        for start, end, _ in list(self.dispatcher.failed):
            self.dispatcher.acknowledge(start, end)
            self.state[start:end] = ["acknowledged"] * (end - start)

    @rule()
    def owner_changes(self) -> None:
        old = self.dispatcher
        self.dispatcher = Dispatcher(
            old.cursor, list(old.acknowledged.beyond), old.attempts(), judge, by_key=True
        )
        for consumer in self.there:
            self.dispatcher.join(consumer)
        self.state = [one if one == "acknowledged" else "free" for one in self.state]
        self._look_back()

    @precondition(lambda self: self.there)
    @rule()
    def everything_is_handed_out_once_nothing_is_in_the_way(self) -> None:
        """No record is forgotten behind another one."""
        self.now += 100
        for start, end, _ in list(self.dispatcher.failed):
            self.dispatcher.acknowledge(start, end)
        for consumer in self.there:
            self.dispatcher.give_back(consumer)
        self.dispatcher.ripen(self.now)
        self.state = ["acknowledged" if one == "failed" else "free" for one in self.state]
        for offset in range(len(self.state)):
            if offset in self.dispatcher.acknowledged:
                self.state[offset] = "acknowledged"
        self.learn(100)
        while True:
            got = [self.hand_out(consumer, 3, 100) for consumer in sorted(self.there)]
            if not any(got):
                break
            for start, end, _ in list(self.dispatcher.handed):
                self.acknowledges(start, end - start)
        assert self.dispatcher.cursor == len(self.keys)

    def _look_back(self) -> None:
        """Where the dispatcher has put what came back: the order of the others hangs on it."""
        for name in ("returned", "waiting", "failed"):
            for start, end, _ in getattr(self.dispatcher, name):
                for offset in range(start, end):
                    self.state[offset] = "free" if name == "returned" else name

    @invariant()
    def agrees(self) -> None:
        self.dispatcher.validate()


TestKeysInOrder = KeysInOrder.TestCase
TestKeysInOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_key_in_two_hands_is_found() -> None:
    """The model sees a next record that goes to a new consumer while the one before has earlier ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            KeyOrder, "_is_fit", lambda self, offset, key, consumer: self._returned.at(offset) is not None
        )

        def run() -> None:
            for seed in range(20):
                machine, random = KeysInOrder(), Random(seed)
                machine.topic_grows([KEYS[2], KEYS[3], KEYS[2], KEYS[3], KEYS[2], None])
                for _ in range(30):
                    if random.random() < 0.5:
                        machine.somebody_comes(random.randint(1, 3))
                    machine.asks(random.randint(1, 3), 1, 90)

        assert shows(run)


def test_equal_keys_have_equal_hashes_and_others_are_spread() -> None:
    owners = KeyRanges()
    for consumer in range(1, 9):
        owners.join(consumer)
    shares = Counter(owners.owner(hash_of(b"key-%d" % number)) for number in range(8_000))
    assert len(shares) == 8 and min(shares.values()) > 700


def steps_of(work: Callable[[], object]) -> int:
    """How many instructions of Python it takes: no clock is asked."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def with_four_records() -> Dispatcher:
    """Of one key, the first of them with its consumer."""
    dispatcher = Dispatcher(0, by_key=True)
    dispatcher.join(1)
    dispatcher.learn(0, [KEYS[0]] * 4)
    assert dispatcher.hand_out_by_key(1, 1, 1, 1)[:2] == (0, 1)
    return dispatcher


def test_a_gap_costs_as_much_as_is_remembered_of_it_however_long_it_is() -> None:
    """An accepted loss, or retention, takes millions of offsets away at once."""

    def steps(gap: int) -> int:
        dispatcher, end = with_four_records(), 2 + gap
        found = steps_of(lambda: dispatcher.pass_over(2, end))
        dispatcher.validate()
        dispatcher.learn(end, [KEYS[0]])
        dispatcher.acknowledge(0, 2)
        assert dispatcher.cursor == end
        assert dispatcher.hand_out_by_key(1, 2, end + 1, 9)[:2] == (end, end + 1)
        return found

    assert steps(1_000) == steps(20_000)


def test_an_acknowledgement_of_far_too_much_costs_as_much_as_is_remembered_of_it() -> None:
    def steps(gap: int) -> int:
        dispatcher, end = with_four_records(), 4 + gap
        dispatcher.pass_over(4, end)
        dispatcher.learn(end, [KEYS[0]])
        found = steps_of(lambda: dispatcher.acknowledge(0, end + gap))
        dispatcher.validate()
        assert dispatcher.cursor == end + 1
        return found

    assert steps(1_000) == steps(20_000)
