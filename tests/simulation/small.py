"""A small world for directed schedules: one node, one client, and a script that says what happens when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import ister
from ister.config import BrokerConfig
from ister.frame import Frame, decode
from ister.testing import SimDisk, SimNetwork, VirtualLoop, simulate
from ister.testing.checkers import check_history
from ister.testing.history import History
from tests.simulation.load import Clients
from tests.simulation.node import HOST, SimNode
from tests.simulation.seeded import quiet_logs

T = TypeVar("T")


class World:
    def __init__(self, loop: VirtualLoop, **config: Any) -> None:
        self.loop = loop
        self.history = History()
        self.disk = SimDisk(loop.fork("disk"), trace=loop.trace)
        self.network = SimNetwork(loop.fork("network"), trace=loop.trace)
        settings = {"client_host": HOST, "admin_port": -1, **config}
        self.node = SimNode(loop, self.network, self.disk, BrokerConfig(**settings), self.history)
        self.clients = Clients(loop, self.network, self.history)

    def connect(self) -> ister.Log:
        return self.clients.connect("client-1.x")

    async def restart(self) -> None:
        await self.node.start()

    async def send(self, log: ister.Log, topic: str, *values: bytes) -> None:
        """Append as one frame, and write down what came of it."""
        send = self.history.sending("x", topic, values)
        await self.clients.told(send, log.append(topic, list(values)))

    async def judge(self, *topics: str) -> None:
        """Read every topic to its end, and check the whole history."""
        async with self.connect() as log:
            for topic in topics:
                read = self.history.final(topic, await log.offsets_at(topic, "earliest"))
                async with aclosing(log.read(topic).frames()) as frames:
                    async for frame in frames:
                        read.frames.append(self.clients.seen(frame))
        check_history(self.history)

    def durable_frames(self, path: str) -> list[Frame]:
        """The frames at the head of a file's synced image, up to the reserved zeros."""
        data, found, position = self.disk.durable_bytes(path), [], 0
        while isinstance(frame := decode(data, position), Frame):
            found.append(frame)
            position += frame.header.size
        return found

    def segment_files(self, topic: str) -> list[str]:
        """The logs of a topic's segments, in order."""
        assert self.node.broker is not None
        uid = self.node.broker.topics[f"default/{topic}"].state.uid
        names = self.disk.list(f"segments/{uid:016d}")
        return [f"segments/{uid:016d}/{name}" for name in names if name.endswith(".log")]


def play(script: Callable[[World], Awaitable[T]], *, seed: int = 0, **config: Any) -> T:
    """Run a script in a world of its own, with the node started."""

    async def main(loop: VirtualLoop) -> T:
        world = World(loop, **config)
        await world.node.start()
        return await script(world)

    with quiet_logs():
        return simulate(main, seed, limit_seconds=3600)
