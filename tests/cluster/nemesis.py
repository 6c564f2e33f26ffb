"""What goes wrong in a cluster: three hands, each with its own kind of fault, all at work at once.

One hand is on the processes, one on the network, one on disks, clocks and leadership. A node that is down is
started again by whoever brought it down, or by `keep_up`, which looks after those that stopped by themselves.
Faults have an end: none lasts so long that a run would be nothing but waiting.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Awaitable, Callable
from random import Random
from unittest import mock

from ister.errors import IsterError, JoinFailed
from ister.metadata.commands import Outcome
from ister.metadata.proposing import Proposals
from ister.metadata.replicated import ReplicatedMetadata
from ister.testing import Loss, SimNetwork, VirtualLoop
from ister.testing.history import History
from ister.testing.machine import ProcessDied
from tests.cluster.load import HOSTS, ClusterClients
from tests.cluster.node import ClusterNode

PLENTY = 1 << 40
Fault = Callable[[], Awaitable[None]]
Menu = list[tuple[int, Fault]]


class Nemesis:
    """Breaks nodes, disks and links, and brings nodes up again."""

    def __init__(
        self,
        loop: VirtualLoop,
        nodes: list[ClusterNode],
        network: SimNetwork,
        clients: ClusterClients,
        history: History,
        make_node: Callable[[int], ClusterNode],
    ) -> None:
        self.loop, self.nodes, self.network = loop, nodes, network
        self.clients, self.history = clients, history
        self.joined = self.wiped = 0
        self._make_node = make_node
        self._joining: asyncio.Task[None] | None = None
        self._coming: list[asyncio.Task[None]] = []
        self._context = contextvars.copy_context()
        self.dice: Random = loop.fork("nemesis")
        self.counts: dict[str, int] = {}
        self.start_errors: list[str] = []
        self.healed = False
        self._starting: dict[int, asyncio.Lock] = {}
        self._hands: list[tuple[Menu, tuple[float, float]]] = [
            (
                [
                    (6, self.kill),
                    (6, self.power_cut),
                    (6, self.power_cut_in_the_middle),
                    (4, self.clean_stop),
                    (6, self.pause),
                    (2, self.kill_all),
                    (2, self.kill_twice),
                    (2, self.kill_the_metadata_leader),
                    (1, self.pause_and_kill),
                ],
                (1.0, 6.0),
            ),
            (
                [
                    (4, self.cut_off_a_node),
                    (4, self.cut_one_link),
                    (3, self.cut_one_way),
                    (3, self.split),
                    (5, self.resets),
                    (3, self.resets_at_any_byte),
                    (3, self.slow_links),
                ],
                (0.5, 5.0),
            ),
            (
                [
                    (3, self.slow_disk),
                    (5, self.failed_sync),
                    (3, self.failed_write),
                    (3, self.full_disk),
                    (2, self.failed_raft_journal),
                    (3, self.wrong_clock),
                    (3, self.revoked_leases),
                    (3, self.another_node_joins),
                    (4, self.late_proposals),
                ],
                (1.0, 6.0),
            ),
        ]

    async def run(self, seconds: float) -> None:
        end = self.loop.time() + seconds
        keeping = self.loop.create_task(self.keep_up())
        hands = [self.loop.create_task(self._hand(menu, pause, end)) for menu, pause in self._hands]
        try:
            await asyncio.gather(*hands)
        finally:
            keeping.cancel()
            for hand in hands:
                hand.cancel()

    async def _hand(self, menu: Menu, pause: tuple[float, float], end: float) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(*pause))
            if self.loop.time() >= end:
                return
            fault = self.dice.choices([fault for _, fault in menu], [weight for weight, _ in menu])[0]
            self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
            self.loop.trace.note(f"nemesis {fault.__name__}")
            await fault()

    async def heal(self) -> None:
        """The world is well from now on."""
        self.healed = True
        self.network.faults.clear()
        self.network.heal()
        for node in self.nodes:
            self._heal_disk(node)
            node.thaw()
        for _ in range(5):  # what a process met before may end it a moment later
            await asyncio.gather(*(self.bring_up(node) for node in self.nodes))
            await asyncio.sleep(1)
        await asyncio.gather(*self._coming)
        if self._joining is not None:
            await self._joining

    def _heal_disk(self, node: ClusterNode) -> None:
        node.disk.faults.clear()
        node.disk.capacity = PLENTY

    # Coming back.

    async def keep_up(self) -> None:
        """Whoever is down for long, for whatever reason, is started again."""
        down: dict[int, float] = {}
        while True:
            await asyncio.sleep(0.5)
            for node in self.nodes:
                if node.is_up:
                    down.pop(node.number, None)
                    assert node.server is not None
                    node.watch.check_bounds(node.running, node.server.in_flight_bytes)
                elif self.loop.time() - down.setdefault(node.number, self.loop.time()) >= 3:
                    down.pop(node.number)  # one that nobody lets in must not keep the others from coming back
                    self._coming.append(self.loop.create_task(self.bring_up(node)))

    async def bring_up(self, node: ClusterNode) -> None:
        """Start until it starts. Faults that are on may prevent it, and die down with the attempts."""
        async with self._starting.setdefault(node.number, asyncio.Lock()):
            attempts = 0
            while not node.is_up:
                attempts += 1
                node.inline_probability = self.dice.choice((0.0, 0.5, 1.0))
                try:
                    await node.start()
                except ProcessDied:
                    pass
                except (OSError, IsterError) as error:
                    if isinstance(error, JoinFailed) and not self.healed:
                        attempts = 0  # nobody could let it in: that may take as long as the faults do
                    self.loop.trace.note(f"{node.name} start failed {type(error).__name__}")
                    self.start_errors.append(f"{node.name}: {type(error).__name__}: {error}")
                    if attempts >= 5:
                        self._heal_disk(node)
                    if attempts >= 8:
                        self.history.violated(f"a node does not start: {self.start_errors[-1]}")
                        raise
                if not node.is_up:
                    await asyncio.sleep(self.dice.uniform(0.1, 1))

    async def _down_for_a_while(self, *nodes: ClusterNode) -> None:
        await asyncio.sleep(self.dice.choice((0.0, 0.01, 0.5, 1.5, 4.0)))
        await asyncio.gather(*(self.bring_up(node) for node in nodes))

    def _some_node(self) -> ClusterNode:
        return self.dice.choice(self.nodes)

    # Processes.

    async def kill(self) -> None:
        """kill -9: the page cache survives, and perhaps the power cut after it takes it (P2)."""
        node = self._some_node()
        node.kill()
        if self.dice.random() < 0.3:
            await self.bring_up(node)
            await asyncio.sleep(self.dice.choice((0.0, 0.002, 0.05)))
            node.lose_power()
        await self._down_for_a_while(node)

    async def kill_twice(self) -> None:
        """Again while it is only coming back: between its start and its announcement, or right after."""
        node = self._some_node()
        for _ in range(self.dice.choice((2, 3))):
            node.kill()
            await self.bring_up(node)
            await asyncio.sleep(self.dice.choice((0.0, 0.001, 0.01, 0.1, 0.4)))
        node.kill()
        await self._down_for_a_while(node)

    async def kill_all(self) -> None:
        """All at once, and all come back, in any order."""
        power = self.dice.random() < 0.5
        for node in self.nodes:
            if power:
                node.lose_power(self.dice.choice((None, Loss.ALL)))
            else:
                node.kill()
        order = self.dice.sample(self.nodes, len(self.nodes))
        await asyncio.gather(*(self._down_for_a_while(node) for node in order))

    async def kill_the_metadata_leader(self) -> None:
        leaders = [node for node in self.nodes if node.is_up and node.running.metadata.raft.is_leader]
        for node in leaders:
            node.kill()
        await self._down_for_a_while(*leaders)

    async def power_cut(self) -> None:
        node = self._some_node()
        node.lose_power(self.dice.choice((None, None, Loss.ALL)))
        await self._down_for_a_while(node)

    async def power_cut_in_the_middle(self) -> None:
        """Before the n-th change on the disk: between a write and its sync, within a recovery, anywhere."""
        node = self._some_node()
        generation = node.disk.generation
        node.lose_power_after(self.dice.choice((0, 1, 2, 3, 5, 8, 13, 30)))
        for _ in range(40):
            await asyncio.sleep(0.05)
            if node.disk.generation != generation:
                break
        else:
            node.lose_power()
        await self._down_for_a_while(node)

    async def clean_stop(self) -> None:
        node = self._some_node()
        if node.is_up:
            try:
                await node.stop()
            except ProcessDied:
                pass
        await self._down_for_a_while(node)

    async def pause(self) -> None:
        """SIGSTOP, SIGCONT: shorter or longer than an election takes, and than a client waits."""
        node = self._some_node()
        node.freeze()
        await asyncio.sleep(self.dice.choice((0.05, 0.4, 1.5, 3.0, 8.0)))
        node.thaw()

    async def pause_and_kill(self) -> None:
        node = self._some_node()
        node.freeze()
        await asyncio.sleep(self.dice.choice((0.4, 3.0)))
        node.kill()
        await self._down_for_a_while(node)

    # The network.

    async def cut_off_a_node(self) -> None:
        """From the other nodes, or from everybody."""
        node = self._some_node()
        others = [other.name for other in self.nodes if other is not node]
        if self.dice.random() < 0.5:
            others += HOSTS
        for other in others:
            self.network.partition(node.name, other)
        await self._for_a_while()

    async def cut_one_link(self) -> None:
        """Two that do not reach each other, while a third reaches both."""
        a, b = self.dice.sample([node.name for node in self.nodes] + [*HOSTS], 2)
        self.network.partition(a, b)
        await self._for_a_while()

    async def cut_one_way(self) -> None:
        a, b = self.dice.sample([node.name for node in self.nodes], 2)
        self.network.partition(a, b, one_way=True)
        await self._for_a_while()

    async def split(self) -> None:
        """Two halves, each with some of the clients."""
        names = [node.name for node in self.nodes] + [*HOSTS]
        half = [name for name in names if self.dice.random() < 0.5]
        for a in half:
            for b in names:
                if b not in half:
                    self.network.partition(a, b)
        await self._for_a_while()

    async def _for_a_while(self) -> None:
        await asyncio.sleep(self.dice.choice((0.2, 1.0, 3.0, 7.0)))
        self.network.heal()

    async def resets(self) -> None:
        names = [node.name for node in self.nodes] + [*HOSTS]
        for _ in range(self.dice.randrange(1, 6)):
            self.network.reset(*self.dice.sample(names, 2))
            await asyncio.sleep(self.dice.uniform(0, 0.2))

    async def resets_at_any_byte(self) -> None:
        """A stream keeps its order while it lives; what a network can do to it is to end it anywhere."""
        rule = self.network.faults.add("reset", probability=self.dice.choice((0.01, 0.05)))
        await asyncio.sleep(self.dice.uniform(0.5, 3))
        self.network.faults.remove(rule)

    async def slow_links(self) -> None:
        """Each connection on its own: what is said on one overtakes what is said on another."""
        rule = self.network.faults.add("packet", delay=self.dice.uniform(0.05, 0.8), probability=0.3)
        await asyncio.sleep(self.dice.uniform(0.5, 4))
        self.network.faults.remove(rule)

    # Disks, clocks, leases.

    async def slow_disk(self) -> None:
        disk = self._some_node().disk
        rule = disk.slow(self.dice.uniform(0.01, 1.5), probability=0.5)
        await asyncio.sleep(self.dice.uniform(0.5, 4))
        disk.faults.remove(rule)

    async def full_disk(self) -> None:
        disk = self._some_node().disk
        disk.capacity = disk.capacity - disk.free_bytes() + self.dice.choice((0, 100, 1000, 5000))
        await asyncio.sleep(self.dice.uniform(0.5, 4))
        disk.capacity = PLENTY

    async def _fail(self, operation: str, prefix: str, suffix: str = "") -> None:
        disk = self._some_node().disk
        count, after = self.dice.choice((1, 1, 2, 5)), self.dice.choice((0, 0, 3))
        rule = disk.faults.add(
            operation, prefix=prefix, suffix=suffix, count=count, after=after, error=errno.EIO
        )
        await asyncio.sleep(self.dice.uniform(0.2, 3))
        disk.faults.remove(rule)

    async def failed_sync(self) -> None:
        """The segment ends at its last good end and is handed off, to another node (P1)."""
        await self._fail("sync", "segments/", self.dice.choice((".log", ".log", ".side", "")))

    async def failed_write(self) -> None:
        await self._fail("write", "segments/", self.dice.choice((".log", ".side")))

    async def failed_raft_journal(self) -> None:
        """The node stops, and comes back (P1)."""
        await self._fail(self.dice.choice(("sync", "write")), "raft/")

    async def wrong_clock(self) -> None:
        clock = self._some_node().clock
        clock.jump(self.dice.choice((-3600.0, -5.0, 5.0, 3600.0)))
        clock.drift(self.dice.choice((0.5, 1.0, 2.0)))

    async def revoked_leases(self) -> None:
        node = self._some_node()
        if node.is_up:
            broker = node.running
            broker.revoke_leases(self.dice.choice(("", *self.clients.lines)))
            await asyncio.sleep(self.dice.choice((0.1, 1.0, 3.0)))
            broker.restore_leases()

    # What is left on the wire.

    async def late_proposals(self) -> None:
        """Commands that were proposed in these moments come a second time, long after: when their proposer
        may be dead, started again, or have gone on. Each is idempotent or a compare-and-set."""
        propose = Proposals.propose_once

        async def again_later(proposals: Proposals, data: bytes, timeout: float) -> Outcome:
            if self.dice.random() < 0.5:
                delay = self.dice.choice((0.05, 0.5, 2.0, 6.0))
                self.loop.call_later(delay, self._propose_late, data, context=self._context)
            return await propose(proposals, data, timeout)

        with mock.patch.object(Proposals, "propose_once", again_later):
            await asyncio.sleep(self.dice.uniform(0.5, 4))

    def _propose_late(self, data: bytes) -> None:
        leaders = [node for node in self.nodes if node.is_up and node.running.metadata.raft.is_leader]
        if leaders:
            node = self.dice.choice(leaders)
            assert node.process is not None
            node.process.start(self._deliver(node.running.metadata, data))

    async def _deliver(self, metadata: ReplicatedMetadata, data: bytes) -> None:
        try:
            await metadata.raft.propose(data, 2.0)
        except IsterError as error:
            self.loop.trace.note(f"a late proposal came to nothing: {error.code}")

    # Members.

    async def another_node_joins(self) -> None:
        """Once in a run, under whatever else is going on. It may lose its disk before it was ever announced:
        then it is another member, that counts for nothing that the first one did (I2)."""
        if not self.joined:
            self.joined += 1
            self._joining = self.loop.create_task(self._join(self._make_node(len(self.nodes) + 1)))

    def _may_wipe_who_joins(self) -> bool:
        """It may have a vote by then: its disk is one of those of which a minority may be lost."""
        return True

    async def _join(self, node: ClusterNode) -> None:
        """For as long as it takes: with no majority nobody is let in."""
        if self.dice.random() < 0.4:
            try:
                await node.start(announce=False)
                await asyncio.sleep(self.dice.choice((0.1, 1.0, 3.0)))
            except (ProcessDied, JoinFailed):
                pass
            node.kill()
            if self._may_wipe_who_joins():
                node.wipe()
                self.wiped += 1
        killing = None
        if self.dice.random() < 0.25:
            killing = self.loop.call_later(self.dice.uniform(0, 0.3), node.kill)
        await self.bring_up(node)
        if killing is not None:
            killing.cancel()
        self.nodes.append(node)
