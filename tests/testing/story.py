"""A small program that uses every seam, and the hash of all that happened in it.

Run as a program, it prints that hash: two processes can then be compared.
"""

from __future__ import annotations

import asyncio
import sys

from ister.errors import ConnectionFailed, IsterError
from ister.testing import MemoryStore, SimClock, SimDisk, SimNetwork, VirtualLoop, simulate


class Echo(asyncio.BufferedProtocol):
    """Writes what it reads to the disk, and sends it back when it is there."""

    def __init__(self, disk: SimDisk, loop: VirtualLoop) -> None:
        self.disk = disk
        self.loop = loop
        self.tasks: set[asyncio.Task[None]] = set()
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: asyncio.Transport
        self.buffer = bytearray(64)
        self.serves = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self.buffer[:nbytes])
        if self.serves:
            self.tasks.add(asyncio.create_task(self.store(data)))
        else:
            self.answers.put_nowait(data)

    async def store(self, data: bytes) -> None:
        def work() -> None:
            file = self.disk.open("log", create=True)
            file.write([data], file.size())
            file.sync()
            file.close()

        await self.disk.run(work)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.loop.trace.note(f"lost {type(exc).__name__}")
        for task in self.tasks:  # a set on purpose: its order must not depend on the process
            task.cancel()


async def talk(network: SimNetwork, disk: SimDisk, clock: SimClock, loop: VirtualLoop, name: str) -> None:
    for number in range(10):
        try:
            echo = await network.host(name).connect(lambda: Echo(disk, loop), "broker", 9000)
        except ConnectionFailed as error:
            loop.trace.note(f"{name} {error}")
            continue
        assert isinstance(echo, Echo)
        echo.transport.write(f"{name} {number} {clock.token()}".encode())
        try:
            async with asyncio.timeout(loop.random.uniform(0.001, 0.02)):
                answer = await echo.answers.get()
            loop.trace.note(f"{name} got {answer!r} at {clock.now_us()}")
        except TimeoutError:
            loop.trace.note(f"{name} gave up {number}")
        echo.transport.close()


async def main(loop: VirtualLoop) -> str:
    network = SimNetwork(loop.fork("network"), trace=loop.trace)
    disk = SimDisk(loop.fork("disk"), trace=loop.trace)
    objects = MemoryStore(loop.fork("store"), trace=loop.trace)
    store = objects.client("broker")
    clock = SimClock(loop, loop.fork("clock"))
    objects.faults.add("put", probability=0.5)
    network.faults.add("reset", probability=0.1)

    def serve() -> Echo:
        echo = Echo(disk, loop)
        echo.serves = True
        return echo

    await network.host("broker").listen(serve, "broker", 9000)
    async with asyncio.TaskGroup() as group:
        for name in ("ann", "ben", "cat", "dan"):
            group.create_task(talk(network, disk, clock, loop, name))
        await asyncio.sleep(0.02)
        network.partition("ann", "broker")
        await asyncio.sleep(1)
        network.heal()
    disk.crash()
    try:
        await store.put_if_absent("log", b"" if not disk.exists("log") else disk.durable_bytes("log"))
    except IsterError as error:
        loop.trace.note(f"store {error}")
    loop.trace.note(f"{loop.step_count} steps")
    return loop.trace.digest()


def tell(seed: int) -> str:
    return simulate(main, seed, limit_seconds=600)


if __name__ == "__main__":
    print("\n".join(tell(int(seed)) for seed in sys.argv[1:]))
