"""Who has what: the dispatcher beside a model in which every offset has a state of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ister.broker.subscriptions.dispatch import Dispatcher, Wait

CONSUMERS = st.integers(1, 3)
OFFSETS = st.integers(0, 60)


MOST = 4
"""Deliveries; after that a record has failed."""


def judge(attempts: int) -> Wait:
    return Wait(float(attempts - 1), is_failed=attempts >= MOST)


@dataclass
class Model:
    """By offset: `acknowledged`, `failed`, who has it with which request and until when, or since when it may
    be handed out again."""

    state: dict[int, str | tuple[int, int, float] | float] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def cursor(self) -> int:
        offset = 0
        while self.state.get(offset) == "acknowledged":
            offset += 1
        return offset


class Dispatching(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher(0, judge=judge)
        self.model = Model()
        self.requests = 0
        self.now = 0.0

    def had_by(self, consumer: int) -> list[int]:
        found = self.model.state.items()
        return [offset for offset, one in found if isinstance(one, tuple) and one[0] == consumer]

    def comes_back(self, offset: int, delay: float | None) -> None:
        wait = judge(self.model.attempts[offset])
        seconds = wait.seconds if delay is None else delay
        self.model.state[offset] = "failed" if wait.is_failed else self.now + seconds

    @rule(consumer=CONSUMERS, count=st.integers(1, 9), seconds=st.integers(1, 3))
    def hand_out(self, consumer: int, count: int, seconds: int) -> None:
        self.dispatcher.ripen(self.now)
        candidate = self.dispatcher.candidate
        state = self.model.state
        ready = sorted(o for o, one in state.items() if isinstance(one, float) and one <= self.now)
        assert candidate.start == (ready[0] if ready else self.model.next_offset)
        end = candidate.start + count
        if candidate.end is not None:
            end = min(end, candidate.end)
            assert set(range(candidate.start, candidate.end)) <= set(ready)
        self.requests += 1
        until = self.now + seconds
        attempt = self.dispatcher.hand_out(consumer, self.requests, candidate.start, end, until)
        for offset in range(candidate.start, end):
            state[offset] = consumer, self.requests, until
            self.model.attempts[offset] = self.model.attempts.get(offset, 0) + 1
            assert attempt == self.model.attempts[offset]
        self.model.next_offset = max(self.model.next_offset, end)

    @rule(start=OFFSETS, count=st.integers(0, 12))
    def acknowledge(self, start: int, count: int) -> None:
        new = 0
        for offset in range(start, min(start + count, self.model.next_offset)):
            new += self.model.state[offset] != "acknowledged"
            self.model.state[offset] = "acknowledged"
        assert self.dispatcher.acknowledge(start, start + count) == new

    @rule(consumer=CONSUMERS, start=OFFSETS, count=st.integers(1, 12), delay=st.none() | st.integers(0, 3))
    def refuse(self, consumer: int, start: int, count: int, delay: int | None) -> None:
        had = [offset for offset in self.had_by(consumer) if start <= offset < start + count]
        assert self.dispatcher.refuse(consumer, start, start + count, self.now, delay, "no") == len(had)
        for offset in had:
            self.comes_back(offset, delay)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        state = self.model.state
        late = [o for o, one in state.items() if isinstance(one, tuple) and one[2] <= self.now]
        assert self.dispatcher.expire(self.now) == len(late)
        for offset in late:
            self.comes_back(offset, None)

    @rule(consumer=CONSUMERS)
    def consumer_is_gone(self, consumer: int) -> None:
        had = self.had_by(consumer)
        assert self.dispatcher.lose(consumer, self.now) == len(had)
        for offset in had:
            self.comes_back(offset, 0.0)

    @rule(consumer=CONSUMERS)
    def consumer_leaves(self, consumer: int) -> None:
        had = self.had_by(consumer)
        assert self.dispatcher.give_back(consumer) == len(had)
        for offset in had:
            self.model.state[offset] = self.now
            self.model.attempts[offset] -= 1

    @rule(consumer=CONSUMERS, behind=st.integers(0, 3))
    def answers_were_lost(self, consumer: int, behind: int) -> None:
        lost = range(self.requests - behind, self.requests + 1)
        self.dispatcher.give_back(consumer, lost)
        for offset, found in self.model.state.items():
            if isinstance(found, tuple) and found[0] == consumer and found[1] in lost:
                self.model.state[offset] = self.now
                self.model.attempts[offset] -= 1

    @rule()
    def what_failed_is_blocked(self) -> None:
        for start, end, past in list(self.dispatcher.failed):
            assert past.attempts >= MOST
            self.dispatcher.block(start, end, self.now, 2.0)
        for offset, found in self.model.state.items():
            if found == "failed":
                self.model.state[offset] = self.now + 2.0

    @rule()
    def owner_changes(self) -> None:
        """The next one goes by what was flushed: what is handed out now is with nobody."""
        before = self.dispatcher
        beyond = list(before.acknowledged.beyond)
        self.dispatcher = Dispatcher(before.cursor, beyond, before.attempts(), judge)
        self.model.next_offset = self.dispatcher.next_offset
        for offset, found in list(self.model.state.items()):
            if offset >= self.model.next_offset:
                assert not self.model.attempts[offset], "forgotten though it was handed out"
                del self.model.state[offset], self.model.attempts[offset]
            elif found != "acknowledged":
                has_failed = judge(self.model.attempts[offset]).is_failed
                self.model.state[offset] = "failed" if has_failed else self.now

    @invariant()
    def agrees(self) -> None:
        self.dispatcher.validate()
        assert self.dispatcher.cursor == self.model.cursor
        failed = {offset for start, end, _ in self.dispatcher.failed for offset in range(start, end)}
        assert failed == {offset for offset, found in self.model.state.items() if found == "failed"}
        for consumer in (1, 2, 3):
            assert self.dispatcher.held_by(consumer) == len(self.had_by(consumer))


TestDispatching = Dispatching.TestCase
TestDispatching.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
