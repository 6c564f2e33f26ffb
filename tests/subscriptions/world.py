"""A simulated cluster with consumers that crash, refuse, stall and reconnect while nodes die and are cut off.

What is checked (checker 12), against what consumers themselves know to have acknowledged:

- nothing is stored as acknowledged, below a cursor or beyond it, that nobody acknowledged and that is not
among the dead letters: no record is skipped
- cursors go forward within an epoch, and over a change of owner; back by a seek only
- a delivery's attempt is higher than what was stored of its record when its owner took over
- in the end, with everything healed, each record is acknowledged or a dead letter
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import ister
from ister.errors import IsterError
from ister.metadata.commands import (
    ClaimSubscription,
    Command,
    FlushSubscriptions,
    Outcome,
    SeekSubscription,
)
from ister.metadata.topics import SubscriptionState
from ister.protocol.subscriptions import FailurePolicy
from ister.testing import SimClock, SimProcess
from tests.cluster_world import World, WorldNode, run_story

RECORDS = 300
CONSUMERS = 4
SECONDS = 60.0
POLICY = FailurePolicy(
    ack_timeout_ms=4000, max_redeliveries=4, backoff_ms=200, backoff_max_ms=1000, on_failure="dead-letter"
)


class Wrong(Exception):
    """A promise that was broken."""


class Watch:
    """What was stored, as every node applies it."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        """What some consumer has acknowledged."""
        self.stored: set[int] = set()
        """What some flush has said to be acknowledged."""
        self.attempts: dict[int, dict[int, int]] = {}
        """By epoch: the attempts that its owner began with, by offset."""
        self.epochs = 0
        self.seeks = 0
        self.deliveries: Counter[int] = Counter()
        self._cursors: dict[int, tuple[int, int]] = {}
        self._claimed: dict[int, float] = {}
        """By epoch: since when the cluster has known of it."""
        self._unmarked: dict[int, list[tuple[float, int]]] = {}
        """By offset: when it was delivered, and in which epoch, without a word that it may repeat."""

    def look_at(self, node: WorldNode) -> None:
        metadata = node.broker.metadata
        self._cursors.pop(node.node_id, None)

        def applied(command: Command | None, outcome: Outcome) -> None:
            if not isinstance(command, ClaimSubscription | FlushSubscriptions | SeekSubscription):
                return
            for topic in metadata.state.topics.values():
                for state in topic.subscriptions:
                    if state.name == "s":
                        self._check(node.node_id, state, command, outcome)

        metadata.watch(applied)

    def _check(self, node_id: int, state: SubscriptionState, command: Command, outcome: Outcome) -> None:
        epoch, cursor = self._cursors.get(node_id, (0, 0))
        is_sought = isinstance(command, SeekSubscription) and outcome.ok
        if not is_sought and state.cursor < cursor:
            raise Wrong(f"the cursor went from {cursor} in epoch {epoch} to {state.cursor} in {state.epoch}")
        if state.epoch < epoch:
            raise Wrong(f"epoch {state.epoch} comes after {epoch}")
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

    def delivered(self, batch: ister.Batch) -> None:
        known, now = self.attempts.get(batch.epoch, {}), asyncio.get_running_loop().time()
        for offset in range(batch.start, batch.end):
            self.deliveries[offset] += 1
            if batch.attempt <= known.get(offset, 0):
                raise Wrong(
                    f"offset {offset} is delivered for the {batch.attempt}. time in epoch {batch.epoch}, "
                    f"whose owner knew of {known[offset]}"
                )
            if batch.may_repeat:
                continue
            before = self._unmarked.setdefault(offset, [])
            if any(self._was_known(at, epoch, batch.epoch) for at, epoch in before):
                raise Wrong(f"offset {offset} is delivered again, and does not say so")
            before.append((now, batch.epoch))

    def _was_known(self, at: float, epoch: int, later: int) -> bool:
        """Whether an owner can know of a delivery, or that there may have been one. One that was replaced and
        has not heard of it may go on for a while: nobody can know of that."""
        return epoch >= later or at < self._claimed[later]


class Consumers:
    def __init__(self, world: World, watch: Watch, random: Random) -> None:
        self._world = world
        self._watch = watch
        self._random = random
        self._names = 0
        self.is_calm = False
        """From now on they acknowledge all that they get."""
        self.crashes = 0

    async def keep(self) -> None:
        """One consumer after another in this place, each a process on a host of its own."""
        while True:
            self._names += 1
            name = f"consumer-{self._names}"
            process = SimProcess(self._world.loop, name)
            task = process.start(self._consume(name, process))
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                process.kill()
                raise
            if not task.cancelled() and (error := task.exception()) is not None:
                if not isinstance(error, IsterError):
                    raise error
                await asyncio.sleep(self._random.uniform(0.1, 1.0))

    async def _consume(self, name: str, process: SimProcess) -> None:
        nodes = ",".join(node.address for node in self._world.nodes.values())
        network = self._world.network.host(name)
        clock = SimClock(self._world.loop, self._world.loop.fork(name))
        log = ister.connect(nodes, network=network, clock=clock, request_timeout_s=3.0, retry_deadline_s=20.0)
        async with log:
            subscription = log.subscribe("t", "s", window=self._random.choice((1, 7, 40)))
            await subscription.open()
            while (batch := await subscription.next()) is not None:
                self._watch.delivered(batch)
                if not await self._treat(batch, name, process):
                    return

    async def _treat(self, batch: ister.Batch, name: str, process: SimProcess) -> bool:
        chance = 1.0 if self.is_calm else self._random.random()
        if chance < 0.03:
            self.crashes += 1
            self._world.network.kill(name, silent=self._random.random() < 0.5)
            process.kill()
            await asyncio.sleep(0)  # it ends here
        if chance < 0.06:
            return False  # it leaves, as it should
        if chance < 0.10:
            await asyncio.sleep(self._random.uniform(1.0, 6.0))
        if 0.10 <= chance < 0.20:
            delay = self._random.choice((None, 0.0, 1.5))
            await batch.nack(delay_s=delay, reason="no")
            return True
        middle = self._random.randint(batch.start, batch.end - 1)
        parts = [(middle, batch.end)] + ([(batch.start, middle)] if batch.start < middle else [])
        if 0.20 <= chance < 0.25:
            parts = parts[:1]  # the rest is for the time-out
        for start, end in parts:
            self._watch.acknowledged.update(range(start, end))
            await batch.ack(start=start, end=end)
        await asyncio.sleep(self._random.uniform(0.0, 0.2))
        return True


async def _nemesis(world: World, watch: Watch, random: Random, until: float) -> None:
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        await asyncio.sleep(random.uniform(2.0, 6.0))
        node = random.choice(list(world.nodes.values()))
        match random.choice(("kill", "kill", "stop", "cut", "none")):
            case "kill":
                node.kill()
            case "stop":
                await node.stop()
            case "cut":
                world.network.isolate(node.host)
                await asyncio.sleep(random.uniform(0.5, 8.0))
                world.network.heal()
        await asyncio.sleep(random.uniform(0.5, 4.0))
        if not node.is_up:
            await node.start()
            watch.look_at(node)


async def _append(log: ister.Log, random: Random) -> None:
    offset = 0
    while offset < RECORDS:
        count = min(random.choice((1, 3, 20)), RECORDS - offset)
        await log.append("t", [b"%d" % number for number in range(offset, offset + count)])
        offset += count
        await asyncio.sleep(random.uniform(0.0, 2 * SECONDS * count / RECORDS))


def play(seed: int) -> Watch:
    async def story(world: World) -> Watch:
        random, watch = world.loop.fork("subscriptions"), Watch()
        loop = asyncio.get_running_loop()
        for node in world.nodes.values():
            watch.look_at(node)
        async with world.connect() as log:
            await log.create_topic("t", segment_records=60)
            await log.create_subscription("t", "s", kind="shared", policy=POLICY)
            consumers = Consumers(world, watch, random)
            places = [asyncio.ensure_future(consumers.keep()) for _ in range(CONSUMERS)]
            appending = asyncio.ensure_future(_append(log, random))
            await _nemesis(world, watch, random, loop.time() + SECONDS)
            consumers.is_calm = True
            if random.random() < 0.4:
                watch.seeks += 1
                (found,) = await log.subscriptions("default/t", "s")
                await log.seek_subscription("t", "s", random.randint(0, found.cursor))
            await appending
            await _all_done(log, places)
            for place in places:
                place.cancel()
            done = await asyncio.gather(*places, return_exceptions=True)
            for error in done:
                if isinstance(error, Exception):
                    raise error
            await _check_letters(log, watch)
        return watch

    return run_story(story, seed=seed, replicas=3, monitor_check_ms=500)


async def _all_done(log: ister.Log, places: list[asyncio.Future[None]]) -> None:
    """Liveness: healed, everything is acknowledged or put aside in bounded time."""
    cursor = -1
    for _ in range(240):
        await asyncio.sleep(1)
        for place in places:
            if place.done():
                place.result()
        cursor = (await log.subscriptions("default/t", "s"))[0].cursor
        if cursor == RECORDS:
            return
    raise Wrong(f"the cursor stays at {cursor} of {RECORDS}, though everything is well")


async def _check_letters(log: ister.Log, watch: Watch) -> None:
    letters: set[int] = set()
    if any(topic.topic == "default/t.s.dead" for topic in await log.list_topics()):
        async for record in log.read("t.s.dead"):
            letters.add(int(dict(record.headers)["x-original-offset"]))
    skipped = watch.stored - watch.acknowledged - letters
    if skipped:
        raise Wrong(f"stored as acknowledged, and by nobody: {sorted(skipped)}")
    missing = set(range(RECORDS)) - set(watch.deliveries) - letters
    if missing:
        raise Wrong(f"never delivered: {sorted(missing)}")
