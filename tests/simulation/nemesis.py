"""What goes wrong: one fault after the other, by dice, until the run is healed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from ister.errors import CorruptSegment, IsterError
from ister.frame import Frame, FrameHeader, decode
from ister.testing import Loss, SimDisk, SimNetwork, VirtualLoop
from ister.testing.history import History
from ister.testing.machine import ProcessDied
from ister.wal.marks import durable_before
from tests.simulation.load import Clients
from tests.simulation.node import HOST, SimNode

PLENTY = 1 << 40
CLIENT_HOSTS = ("client-1", "client-2", "client-3")


class Nemesis:
    """Breaks the node, its disk and its links, and brings it up again after each death."""

    def __init__(
        self,
        loop: VirtualLoop,
        node: SimNode,
        disk: SimDisk,
        network: SimNetwork,
        clients: Clients,
        history: History,
    ) -> None:
        self.loop, self.node, self.disk, self.network = loop, node, disk, network
        self.clients, self.history = clients, history
        self.dice: Random = loop.fork("nemesis")
        self.counts: dict[str, int] = {}
        self.healed = False
        self.start_errors: list[str] = []
        self._starting = asyncio.Lock()
        self._menu: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (5, self.kill),
            (6, self.power_cut),
            (8, self.power_cut_in_the_middle),
            (3, self.clean_stop),
            (5, self.resets),
            (3, self.cut_off),
            (2, self.slow_links),
            (3, self.slow_disk),
            (4, self.full_disk),
            (5, self.failed_sync),
            (4, self.failed_write),
            (2, self.failed_read),
            (2, self.failed_journal),
            (2, self.failed_names),
            (2, self.torn_side_files),
            (2, self.rotten_metadata),
            (2, self.wrong_clock),
        ]

    async def run(self, seconds: float) -> None:
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await asyncio.sleep(self.dice.uniform(0.2, 3.5))
            weights = [weight for weight, _ in self._menu]
            fault = self.dice.choices([fault for _, fault in self._menu], weights)[0]
            self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
            self.loop.trace.note(f"nemesis {fault.__name__}")
            await fault()
            if not self.node.is_up:
                await asyncio.sleep(self.dice.choice((0.0, 0.01, 0.5, 3.0)))
                await self.bring_up()

    async def heal(self) -> None:
        """The world is well from now on."""
        self.healed = True
        self.disk.faults.clear()
        self.disk.capacity = PLENTY
        self.network.faults.clear()
        self.network.heal()
        await self.bring_up()

    async def keep_up(self) -> None:
        """After healing too: a node that stopped by itself for an earlier fault is started again."""
        while True:
            if not self.node.is_up:
                await self.bring_up()
            await asyncio.sleep(0.5)

    async def bring_up(self) -> None:
        """Start until it starts. Faults that are on may prevent it, and die down with the attempts."""
        async with self._starting:
            attempts = 0
            while not self.node.is_up:
                attempts += 1
                self.node.inline_probability = self.dice.choice((0.0, 0.5, 1.0))
                try:
                    await self.node.start()
                except ProcessDied:
                    pass
                except (OSError, IsterError) as error:
                    self.loop.trace.note(f"start failed {type(error).__name__}")
                    self.start_errors.append(f"{type(error).__name__}: {error}")
                    if attempts >= 5:
                        self.disk.faults.clear()
                        self.disk.capacity = PLENTY
                    if attempts >= 8:
                        self.history.violated(f"the node does not start: {self.start_errors[-1]}")
                        raise
                if not self.node.is_up:
                    await asyncio.sleep(self.dice.uniform(0.1, 1))

    # Deaths.

    async def kill(self) -> None:
        """kill -9: the page cache survives, and perhaps the power cut after it takes it (P2)."""
        self.node.die(Loss.NONE, power=False)
        if self.dice.random() < 0.3:
            await self.bring_up()
            await asyncio.sleep(self.dice.choice((0.0, 0.002, 0.05)))
            self._lose_power(None)

    async def power_cut(self) -> None:
        self._lose_power(self.dice.choice((None, None, Loss.ALL)))

    def _lose_power(self, loss: Loss | None) -> None:
        self._excuse_weak()
        self.node.die(loss, power=True)

    def _excuse_weak(self) -> None:
        for line in self.clients.lines.values():
            if line not in self.clients.strong:
                self.history.excuse(line, "power was lost, and its topic does not sync")

    async def power_cut_in_the_middle(self) -> None:
        """Before the n-th change on the disk: between a write and its sync, within a recovery, anywhere."""
        self._excuse_weak()
        generation = self.disk.generation
        self.node.lose_power_after(self.dice.choice((0, 1, 2, 3, 5, 8, 13, 30)))
        for _ in range(40):
            await asyncio.sleep(0.1)
            if self.disk.generation != generation:
                return
        self._lose_power(None)

    async def clean_stop(self) -> None:
        if self.node.is_up:
            try:
                await self.node.stop()
            except ProcessDied:
                pass

    # The network.

    async def resets(self) -> None:
        for _ in range(self.dice.randrange(1, 6)):
            self.network.reset(self.dice.choice(CLIENT_HOSTS), HOST)
            await asyncio.sleep(self.dice.uniform(0, 0.2))

    async def cut_off(self) -> None:
        client = self.dice.choice(CLIENT_HOSTS)
        self.network.partition(client, HOST, one_way=self.dice.random() < 0.5)
        await asyncio.sleep(self.dice.choice((0.5, 3.0, 20.0)))
        self.network.heal()

    async def slow_links(self) -> None:
        rule = self.network.faults.add("packet", delay=self.dice.uniform(0.05, 0.6), probability=0.3)
        await asyncio.sleep(self.dice.uniform(0.5, 3))
        self.network.faults.remove(rule)

    # The disk.

    async def slow_disk(self) -> None:
        rule = self.disk.slow(self.dice.uniform(0.01, 1.5), probability=0.5)
        await asyncio.sleep(self.dice.uniform(0.5, 4))
        self.disk.faults.remove(rule)

    async def full_disk(self) -> None:
        used = self.disk.capacity - self.disk.free_bytes()
        self.disk.capacity = used + self.dice.choice((0, 100, 1000, 5000))
        await asyncio.sleep(self.dice.uniform(0.5, 5))
        self.disk.capacity = PLENTY

    async def _fail(self, operation: str, prefix: str, suffix: str = "", error: int = errno.EIO) -> None:
        count = self.dice.choice((1, 1, 2, 5))
        rule = self.disk.faults.add(
            operation,
            prefix=prefix,
            suffix=suffix,
            count=count,
            after=self.dice.choice((0, 0, 3)),
            error=error,
        )
        await asyncio.sleep(self.dice.uniform(0.2, 3))
        self.disk.faults.remove(rule)

    async def failed_sync(self) -> None:
        await self._fail("sync", "segments/", self.dice.choice((".log", ".log", ".side", "")))

    async def failed_write(self) -> None:
        await self._fail("write", "segments/", self.dice.choice((".log", ".side")))

    async def failed_read(self) -> None:
        self.clients.may_not_read = True
        await self._fail("read", "segments/", self.dice.choice((".log", ".side")))

    async def failed_journal(self) -> None:
        await self._fail(self.dice.choice(("sync", "write")), "raft/")

    async def failed_names(self) -> None:
        operation = self.dice.choice(("sync_directory", "remove", "rename", "open", "truncate", "allocate"))
        if operation == "open":
            self.clients.may_not_read = True
        await self._fail(operation, self.dice.choice(("raft", "segments", "")))

    async def torn_side_files(self) -> None:
        """Side files cost time when they are lost, never records."""
        self.node.die(Loss.NONE, power=False)
        for path, image in self.disk._tree.files():
            if path.endswith(".side") and path.startswith("segments/") and self.dice.random() < 0.5:
                size = len(image.volatile)
                if size and self.dice.random() < 0.3:
                    self.disk.rot(path, self.dice.randrange(size), self.dice.randrange(8))
                else:
                    self.disk.tear(path, self.dice.randrange(size + 1))

    async def rotten_metadata(self) -> None:
        """A bit of the metadata flips while the node is down: it must not start then, and say why (E6)."""
        self.node.die(Loss.NONE, power=False)
        places = list(self._provable_metadata())
        if not places:
            return
        path, start, size = self.dice.choice(places)
        position, bit = start + self.dice.randrange(size), self.dice.randrange(8)
        self.disk.rot(path, position, bit)
        async with self._starting:
            try:
                await self.node.start()
            except (ProcessDied, OSError):
                pass  # for another reason
            except IsterError as error:
                if not isinstance(error, CorruptSegment):
                    self.history.violated(
                        f"byte {position} of {path} is rotten, and the start says: {error!r}"
                    )
            else:
                self.history.violated(f"byte {position} of {path} is rotten, and the node starts")
                self.node.die(Loss.NONE, power=False)
        self.disk.rot(path, position, bit)

    def _provable_metadata(self) -> Iterator[tuple[str, int, int]]:
        """Where damage cannot be taken for a torn tail (P3): path, position and size."""
        journals = {}
        for path, image in self.disk._tree.files():
            if path == "raft/snapshot":
                yield path, 0, len(image.volatile)
            if path.startswith("raft/journal-") and path.endswith(".log"):
                journals[path] = _frames(image.volatile)
        newest = max((path for path, frames in journals.items() if frames), default="")
        frames = journals.get(newest, [])
        proved = max((durable_before(header) for _, header in frames), default=0)
        yield from ((newest, at, header.size) for at, header in frames if header.base_offset < proved)

    async def wrong_clock(self) -> None:
        self.node.clock.jump(self.dice.choice((-3600.0, -5.0, 5.0, 3600.0)))
        self.node.clock.drift(self.dice.choice((0.5, 1.0, 2.0)))


def _frames(data: bytearray) -> list[tuple[int, FrameHeader]]:
    """The frames at the head of a file, with their positions."""
    found, position = [], 0
    while isinstance(frame := decode(data, position), Frame):
        found.append((position, frame.header))
        position += frame.header.size
    return found
