"""Consumers that crash, refuse, stall and reconnect; a process each, on a host of its own."""

from __future__ import annotations

import asyncio
from random import Random

import ister
from ister.errors import InvariantBroken, IsterError
from ister.testing import SimClock, SimProcess
from ister.testing.cluster import World
from tests.subscriptions_sim.watch import Watch


class Consumers:
    """Of one subscription of the topic `t`."""

    def __init__(self, world: World, watch: Watch, random: Random) -> None:
        self._world = world
        self._watch = watch
        self._random = random
        self._names = 0
        self.is_calm = False
        """From now on they acknowledge all that they get."""
        self.crashes = 0

    async def keep(self) -> None:
        """One consumer after another in this place."""
        while True:
            self._names += 1
            name = f"consumer-{self._watch.name}-{self._names}"
            process = SimProcess(self._world.loop, name)
            task = process.start(self._consume(name, process))
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                process.kill()
                raise
            if not task.cancelled() and (error := task.exception()) is not None:
                if not isinstance(error, IsterError) or isinstance(error, InvariantBroken):
                    raise error
                await asyncio.sleep(self._random.uniform(0.1, 1.0))

    async def _consume(self, name: str, process: SimProcess) -> None:
        nodes = ",".join(node.address for node in self._world.nodes.values())
        network = self._world.network.host(name)
        clock = SimClock(self._world.loop, self._world.loop.fork(name))
        log = ister.connect(nodes, network=network, clock=clock, request_timeout_s=3.0, retry_deadline_s=20.0)
        async with log:
            window = self._random.choice((1, 7, 40))
            subscription = log.subscribe("t", self._watch.name, window=window)
            await subscription.open()
            while (batch := await subscription.next()) is not None:
                self._watch.delivered(batch, name)
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
