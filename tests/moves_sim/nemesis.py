"""What goes on where topics move: `tests.replicas_sim.nemesis`, and a hand that moves, cancels, drains.

Where there is a history, another one breaks its store.

That hand asks as an operator does, through any node, while the others break what is moved. A request that
came to nothing is none of its business: what was promised is looked at by the watch, and in the end.
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from typing import Any

import ister
from ister.errors import IsterError
from ister.protocol.moves import DrainDescription
from ister.testing import MemoryStore
from ister.testing.checkers import Violation
from ister.testing.object_store import LOST_RACE, THROTTLED, TIMED_OUT
from tests.cluster.node import ClusterNode
from tests.replicas_sim.nemesis import ReplicaNemesis

CLIENT = "client-3.operator"
ENDED_SECONDS = 120.0


class MoveNemesis(ReplicaNemesis):
    def __init__(self, *args: Any, store: MemoryStore | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._store = store
        self.store_faults = 0
        """How often the store failed, or was late."""
        self.ended: Counter[str] = Counter()
        """How moves ended, of those that are remembered in the end."""
        self._hands.append(
            (
                [
                    (8, self.move_a_topic),
                    (3, self.move_and_cancel),
                    (3, self.move_and_kill),
                    (1, self.release_a_topic),
                    (2, self.drain_a_node),
                    (2, self.activate_all),
                ],
                (0.3, 2.0),
            )
        )
        if store is not None:
            self._hands.append(([(8, self.break_the_store), (1, self.sweep_a_topic)], (0.0, 3.0)))

    def _topic_and_target(self) -> tuple[str, ClusterNode]:
        return self.dice.choice(sorted(self.clients.lines)), self._some_node()

    async def _ask(self, what: Any) -> Any:
        """One request of an operator; None if it came to nothing."""
        try:
            async with asyncio.timeout(4), self.clients.connect(CLIENT) as log:
                return await what(log)
        except (IsterError, TimeoutError) as error:
            self.loop.trace.note(f"operator: {type(error).__name__}")
            return None

    async def move_a_topic(self) -> None:
        topic, node = self._topic_and_target()
        await self._ask(lambda log: log.move_topic(topic, node.number))

    async def move_and_cancel(self) -> None:
        topic, node = self._topic_and_target()
        found = await self._ask(lambda log: log.move_topic(topic, node.number))
        if found is not None and found.move:
            await asyncio.sleep(self.dice.choice((0.0, 0.001, 0.01, 0.1)))
            await self._ask(lambda log: log.cancel_move(found.move))

    async def move_and_kill(self) -> None:
        """The old leader, the target, or the metadata leader."""
        topic, node = self._topic_and_target()
        moving = self.loop.create_task(self._ask(lambda log: log.move_topic(topic, node.number)))
        await asyncio.sleep(self.dice.choice((0.005, 0.02, 0.04, 0.1)))
        victim = self.dice.choice((node, self._some_leader(), self._some_node()))
        victim.kill()
        await moving
        await self._down_for_a_while(victim)

    async def release_a_topic(self) -> None:
        topic, _ = self._topic_and_target()
        await self._ask(lambda log: log.release_topic(topic))

    async def drain_a_node(self) -> None:
        node = self._some_node()
        await self._ask(lambda log: log.drain_node(node.number))

    async def activate_all(self) -> None:
        for number in sorted(self.clients.numbers):
            await self._ask(lambda log, number=number: log.activate_node(number))

    # The history.

    async def break_the_store(self) -> None:
        """For a while, one kind of request: refused, throttled, late, timed out with or without effect; an
        upload that stops in the middle, or that loses a race to one that fails."""
        assert self._store is not None
        dice, faults = self.dice, self._store.faults
        operation = dice.choice(("put", "piece", "get", "head", "list", "delete", "sweep"))
        if dice.random() < 0.3:
            rule = faults.add(operation, delay=dice.uniform(0.1, 3.0), probability=0.5)
        else:
            answers = [(errno.EIO, False), (THROTTLED, False), (TIMED_OUT, False), (TIMED_OUT, True)]
            error, applied = dice.choice(answers + [(LOST_RACE, False)] * (operation == "put"))
            rule = faults.add(
                operation, error=error, applied=applied, probability=dice.choice((0.2, 0.6, 1.0))
            )
        await asyncio.sleep(dice.uniform(0.5, 5.0))
        faults.remove(rule)
        self.store_faults += rule.struck

    async def sweep_a_topic(self) -> None:
        topic, _ = self._topic_and_target()
        await self._ask(lambda log: log.sweep_history(topic))

    async def sweep_all(self) -> None:
        for topic in sorted(self.clients.lines):
            await self._ask(lambda log, topic=topic: log.sweep_history(topic))

    # In the end.

    async def heal(self) -> None:
        if self._store is not None:
            self._store.faults.clear()
        await super().heal()
        async with self.clients.connect(CLIENT) as log:
            for number in sorted(self.clients.numbers):
                await log.activate_node(number)
            await self._all_over(log)
            await self._one_is_emptied(log)

    async def _all_over(self, log: ister.Log) -> None:
        """M4: every move ends once the world is well."""
        until = self.loop.time() + ENDED_SECONDS
        while running := [move for move in await log.moves() if not move.is_over]:
            if self.loop.time() > until:
                raise Violation("M4", f"{running[0]} is not over {ENDED_SECONDS:g} s after healing")
            await asyncio.sleep(0.5)
        self.ended.update(move.stage for move in await log.moves())

    async def _one_is_emptied(self, log: ister.Log) -> None:
        """A drain comes to its end, with the writers at work."""
        node, found = self._some_node(), None
        until = self.loop.time() + 4 * ENDED_SECONDS
        while not _is_empty(found := await log.drain_node(node.number)):
            if self.loop.time() > until:
                raise Violation("drain", f"node {node.number} still has {found}")
            await asyncio.sleep(0.5)
        self.ended["drains to the end"] += 1
        await log.activate_node(node.number)


def _is_empty(found: DrainDescription) -> bool:
    return not (found.leads or found.follows or found.copies)
