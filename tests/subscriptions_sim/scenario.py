"""A simulated cluster whose subscriptions are consumed while nodes die and are cut off, and the topic moves.

    python -m tests.simulation.run subscriptions --seed 17

replays seed 17. One topic, whose segments roll over all the time, has a shared subscription and a key-shared
one. In the end everything heals; sometimes somebody seeks first; then every record must be acknowledged, or
be a dead letter, in bounded time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Self

import ister
from ister.errors import IsterError
from ister.protocol.subscriptions import FailurePolicy
from ister.testing import VirtualLoop
from ister.testing.cluster import World
from tests.simulation.seeded import SeededRun, Summary
from tests.subscriptions_sim.consumers import Consumers
from tests.subscriptions_sim.watch import Watch, key_of, wrong

RECORDS: Final = 300
CONSUMERS: Final = {"s": 4, "k": 3}
SECONDS: Final = 62.0
SETTLE_SECONDS: Final = 240
POLICY: Final = FailurePolicy(
    ack_timeout_ms=4000, max_redeliveries=4, backoff_ms=200, backoff_max_ms=1000, on_failure="dead-letter"
)


@dataclass(kw_only=True)
class SubscriptionSummary(Summary):
    """Of a run with subscriptions."""

    deliveries: int
    letters: int
    epochs: int
    seeks: int
    crashes: int

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        return super().rows(runs) | {
            "deliveries": f"{sum(run.deliveries for run in runs):,}",
            "dead letters": f"{sum(run.letters for run in runs):,}",
            "owners of the shared subscription": f"{sum(run.epochs for run in runs):,}",
            "seeks": f"{sum(run.seeks for run in runs):,}",
            "consumers that crashed": f"{sum(run.crashes for run in runs):,}",
        }


class SubscriptionRun(SeededRun[SubscriptionSummary]):
    world = "subscriptions"
    about = (
        "Three brokers, a topic of three replicas with a shared and a key-shared subscription, consumers "
        "that crash, refuse, stall and reconnect while brokers die, stop, are cut off and the topic moves; "
        "the checkers are in `watch.py` of `tests/subscriptions_sim`."
    )

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.faults: Counter[str] = Counter()
        self._random: Random = loop.fork("subscriptions")
        self._cluster = World(loop, {"replicas": 3, "monitor_check_ms": 500})
        self._watches = [Watch(self._cluster, "s"), Watch(self._cluster, "k", by_key=True)]
        self._consumers = [Consumers(self._cluster, watch, self._random) for watch in self._watches]

    async def play(self) -> SubscriptionSummary:
        await self._cluster.grow(3)
        try:
            return await self._play()
        finally:
            for node in self._cluster.up:
                node.kill()

    async def _play(self) -> SubscriptionSummary:
        for watch in self._watches:
            for node in self._cluster.nodes.values():
                watch.look_at(node)
        async with self._cluster.connect() as log:
            await log.create_topic("t", segment_records=60)
            await log.create_subscription("t", "s", kind="shared", policy=POLICY)
            await log.create_subscription("t", "k", kind="key-shared", policy=POLICY)
            places = [
                asyncio.ensure_future(one.keep())
                for one, watch in zip(self._consumers, self._watches, strict=True)
                for _ in range(CONSUMERS[watch.name])
            ]
            appending = asyncio.ensure_future(self._append(log))
            await self._break_things(log, self.loop.time() + SECONDS)
            for consumers in self._consumers:
                consumers.is_calm = True
            if self._random.random() < 0.4:
                await self._seek(log, self._random.choice(self._watches))
            await appending
            for watch in self._watches:
                await self._all_done(log, watch, places)
            for place in places:
                place.cancel()
            for error in await asyncio.gather(*places, return_exceptions=True):
                if isinstance(error, Exception):
                    raise error
            letters = [await self._letters(log, watch) for watch in self._watches]
            for watch, found in zip(self._watches, letters, strict=True):
                watch.check_end(found, RECORDS)
        return SubscriptionSummary(
            seed=self.loop.seed,
            digest=self.loop.trace.digest(),
            seconds=self.loop.time(),
            operations=sum(watch.deliveries.total() for watch in self._watches),
            records=RECORDS,
            faults=self.faults.total(),
            deaths=self.faults["kill"],
            kinds=dict(self.faults),
            deliveries=sum(watch.deliveries.total() for watch in self._watches),
            letters=sum(map(len, letters)),
            epochs=self._watches[0].epochs,
            seeks=sum(watch.seeks for watch in self._watches),
            crashes=sum(one.crashes for one in self._consumers),
        )

    async def _append(self, log: ister.Log) -> None:
        offset = 0
        while offset < RECORDS:
            count = min(self._random.choice((1, 3, 20)), RECORDS - offset)
            offsets = range(offset, offset + count)
            await log.append("t", [b"%d" % one for one in offsets], keys=[key_of(one) for one in offsets])
            offset += count
            await asyncio.sleep(self._random.uniform(0.0, 2 * SECONDS * count / RECORDS))

    async def _break_things(self, log: ister.Log, until: float) -> None:
        random, network = self._random, self._cluster.network
        while self.loop.time() < until:
            await asyncio.sleep(random.uniform(1.0, 5.0))
            node = random.choice(list(self._cluster.nodes.values()))
            fault = random.choice(("kill", "kill", "stop", "cut", "move", "move and kill"))
            self.faults[fault] += 1
            match fault:
                case "kill":
                    node.kill()
                case "stop":
                    await node.stop()
                case "cut":
                    network.isolate(node.host)
                    await asyncio.sleep(random.uniform(0.5, 8.0))
                    network.heal()
                case "move":
                    await self._move(log, node.node_id)
                case "move and kill":
                    moving = asyncio.ensure_future(self._move(log, random.choice((1, 2, 3))))
                    await asyncio.sleep(random.choice((0.005, 0.02, 0.1)))
                    node.kill()
                    await moving
            await asyncio.sleep(random.uniform(0.5, 4.0))
            if not node.is_up:
                await node.start()
                for watch in self._watches:
                    watch.look_at(node)

    async def _move(self, log: ister.Log, node_id: int) -> None:
        """As an operator does: what came to nothing is no fault."""
        try:
            async with asyncio.timeout(4):
                await log.move_topic("t", node_id)
        except (IsterError, TimeoutError) as error:
            self.loop.trace.note(f"operator: {type(error).__name__}")

    async def _seek(self, log: ister.Log, watch: Watch) -> None:
        watch.seeks += 1
        (found,) = await log.subscriptions("default/t", watch.name)
        await log.seek_subscription("t", watch.name, self._random.randint(0, found.cursor))

    async def _all_done(self, log: ister.Log, watch: Watch, places: list[asyncio.Future[None]]) -> None:
        """Liveness: healed, everything is acknowledged or put aside in bounded time."""
        cursor = -1
        for _ in range(SETTLE_SECONDS):
            await asyncio.sleep(1)
            for place in places:
                if place.done():
                    place.result()
            cursor = (await log.subscriptions("default/t", watch.name))[0].cursor
            if cursor == RECORDS:
                return
        raise wrong(f"the cursor of {watch.name} stays at {cursor} of {RECORDS}, though everything is well")

    async def _letters(self, log: ister.Log, watch: Watch) -> set[int]:
        topic = f"t.{watch.name}.dead"
        if not any(found.topic == f"default/{topic}" for found in await log.list_topics()):
            return set()
        return {int(dict(record.headers)["x-original-offset"]) async for record in log.read(topic)}
