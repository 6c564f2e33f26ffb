"""What is checked of a subscription (checker 12), against what consumers themselves know.

- Nothing is stored as acknowledged, below a cursor or beyond it, that nobody acknowledged and that is not
among the dead letters: no record is skipped.
- A cursor goes forward within an epoch, and over a change of owner; back by a seek only.
- A delivery's attempt is higher than what was stored of its record when its owner took over.
- What may have been delivered before says so.
- Of a key-shared one: whoever gets a record has, or somebody has acknowledged, all earlier ones of its key,
whoever owned the subscription then (S3); and in each owner's books no key is with two consumers.
- In the end, with everything healed, each record is acknowledged or a dead letter.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import ister
from ister.metadata.commands import (
    ClaimSubscription,
    Command,
    FlushSubscriptions,
    Outcome,
    SeekSubscription,
)
from ister.metadata.topics import SubscriptionState
from ister.testing.checkers import Violation
from ister.testing.cluster import World, WorldNode


def wrong(what: str) -> Violation:
    return Violation("subscription", what)


class Watch:
    """Of one subscription: what was stored, as every node applies it, and what its consumers saw."""

    def __init__(self, world: World, name: str, *, by_key: bool = False) -> None:
        self.name = name
        self.acknowledged: set[int] = set()
        """What some consumer has acknowledged."""
        self.stored: set[int] = set()
        """What some flush has said to be acknowledged."""
        self.attempts: dict[int, dict[int, int]] = {}
        """By epoch: the attempts that its owner began with, by offset."""
        self.epochs = 0
        self.seeks = 0
        self.deliveries: Counter[int] = Counter()
        self._world = world
        self._by_key = by_key
        self._cursors: dict[int, tuple[int, int]] = {}
        self._claimed: dict[int, float] = {}
        """By epoch: since when the cluster has known of it."""
        self._unmarked: dict[int, list[tuple[float, int]]] = {}
        """By offset: when it was delivered, and in which epoch, without a word that it may repeat."""
        self._delivered_to: dict[tuple[str, int], set[int]] = defaultdict(set)
        """By consumer and epoch."""
        self._overtaken: dict[int, str] = {}
        """By offset: who has seen a later one of its key first. It must be a dead letter."""

    def look_at(self, node: WorldNode) -> None:
        metadata = node.broker.metadata
        self._cursors.pop(node.node_id, None)

        def applied(command: Command | None, outcome: Outcome) -> None:
            if not isinstance(command, ClaimSubscription | FlushSubscriptions | SeekSubscription):
                return
            for topic in metadata.state.topics.values():
                for state in topic.subscriptions:
                    if state.name == self.name:
                        is_own = isinstance(command, FlushSubscriptions) or command.uid == state.uid
                        self._check(node.node_id, state, command if is_own else None, outcome)

        metadata.watch(applied)

    def _check(
        self, node_id: int, state: SubscriptionState, command: Command | None, outcome: Outcome
    ) -> None:
        epoch, cursor = self._cursors.get(node_id, (0, 0))
        is_sought = isinstance(command, SeekSubscription) and outcome.ok
        if not is_sought and state.cursor < cursor:
            raise wrong(f"the cursor went from {cursor} in epoch {epoch} to {state.cursor} in {state.epoch}")
        if state.epoch < epoch:
            raise wrong(f"epoch {state.epoch} comes after {epoch}")
        self._cursors[node_id] = state.epoch, state.cursor
        self.epochs = max(self.epochs, state.epoch)
        self.stored.update(range(state.cursor))
        self.stored.update(offset for start, end in state.beyond for offset in range(start, end))
        if isinstance(command, ClaimSubscription) and outcome.ok:
            self._claimed.setdefault(state.epoch, asyncio.get_running_loop().time())
            self.attempts.setdefault(
                state.epoch,
                {offset: count for start, end, count in state.attempts for offset in range(start, end)},
            )

    # What consumers see.

    def delivered(self, batch: ister.Batch, consumer: str) -> None:
        known, now = self.attempts.get(batch.epoch, {}), asyncio.get_running_loop().time()
        for node in self._world.up:
            node.server.requests.subscriptions.validate()
        for offset in range(batch.start, batch.end):
            self.deliveries[offset] += 1
            if batch.attempt <= known.get(offset, 0):
                raise wrong(
                    f"offset {offset} is delivered for the {batch.attempt}. time in epoch {batch.epoch}, "
                    f"whose owner knew of {known[offset]}"
                )
            if batch.may_repeat:
                continue
            before = self._unmarked.setdefault(offset, [])
            if any(self._was_known(at, epoch, batch.epoch) for at, epoch in before):
                raise wrong(f"offset {offset} is delivered again, and does not say so")
            before.append((now, batch.epoch))
        if self._by_key:
            self._check_order(batch, consumer)

    def _was_known(self, at: float, epoch: int, later: int) -> bool:
        """Whether an owner can know of a delivery, or that there may have been one. One that was replaced and
        has not heard of it may go on for a while: neither does it know of those behind it, nor they of it."""
        return epoch == later or at < self._claimed[later]

    def _check_order(self, batch: ister.Batch, consumer: str) -> None:
        """Every earlier record of a key is dealt with, or with the same consumer from the same owner."""
        had = self._delivered_to[consumer, batch.epoch]
        for offset in range(batch.start, batch.end):
            had.add(offset)
            key = key_of(offset)
            for earlier in range(offset) if key is not None else ():
                if key_of(earlier) == key and earlier not in had and earlier not in self.acknowledged:
                    self._overtaken.setdefault(earlier, f"{consumer} with {offset} in epoch {batch.epoch}")

    # In the end.

    def check_end(self, letters: set[int], records: int) -> None:
        if skipped := self.stored - self.acknowledged - letters:
            raise wrong(f"stored as acknowledged, and by nobody: {sorted(skipped)}")
        if missing := set(range(records)) - set(self.deliveries) - letters:
            raise wrong(f"never delivered: {sorted(missing)}")
        for offset, by in self._overtaken.items():
            if offset not in letters:
                raise wrong(f"offset {offset} of the key {key_of(offset)!r} was overtaken by {by}")


KEYS = 12


def key_of(offset: int) -> bytes | None:
    """Of the record that was appended at an offset: one of some, or none."""
    number = offset * 7 % (KEYS + 2)
    return b"key-%d" % number if number < KEYS else None
