"""A member of a simulated cluster: the real broker and server on a host, a disk and a clock of its own.

The machine stays, its processes come and go: started, stopped, killed, frozen and thawed, and started again.
Whoever waits for a start or a stop that a kill overtook gets `ProcessDied`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from ister.broker.clients.server import Server
from ister.broker.node.broker import Broker
from ister.config import BrokerConfig
from ister.errors import InvariantBroken, IsterError
from ister.testing import MemoryStore, SimClock, SimDisk, SimNetwork, VirtualLoop
from ister.testing.machine import SimMachine
from ister.testing.object_store import MemoryClient
from tests.cluster.watch import Watch

CLIENT_PORT = 9091
PEER_PORT = 6001
SECRET = "for tests only"


def host_of(number: int) -> str:
    return f"node-{number}"


class ClusterNode(SimMachine):
    """One machine of the cluster."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: SimNetwork,
        watch: Watch,
        number: int,
        config: BrokerConfig,
        store: MemoryStore | None = None,
    ) -> None:
        """`store` is where the history is, of all nodes; None in local mode."""
        self.watch, self.number = watch, number
        self.name = host_of(number)
        self._disks = 0
        super().__init__(loop, network, self.name, self._make_disk(loop))
        self.config = msgspec.structs.replace(
            config, node_id=number, client_host=self.name, peer_host=self.name
        )
        self.clock = SimClock(loop, loop.fork(f"{self.name}-clock"))
        self.broker: Broker | None = None
        self.server: Server | None = None
        self.starts = 0
        self.fatal: list[str] = []
        self._store = store
        self._way_to_the_store: MemoryClient | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.inline_probability = 1.0
        self._deaths_on_earlier_disks = 0
        self._dice: Random = loop.fork(f"{self.name}-inline")
        watch.add(number, lambda: self.disk)

    def _make_disk(self, loop: VirtualLoop) -> SimDisk:
        self._disks += 1
        dice = loop.fork(f"{self.name}-disk-{self._disks}")
        return SimDisk(dice, name=self.name, trace=loop.trace)

    @property
    def deaths(self) -> int:
        """Of its processes, whatever they died of."""
        return self._deaths_on_earlier_disks + self.disk.generation

    @property
    def address(self) -> str:
        return f"{self.name}:{CLIENT_PORT}"

    @property
    def running(self) -> Broker:
        assert self.broker is not None and self.is_up, f"{self.name} is down"
        return self.broker

    # Life.

    async def start(self, *, announce: bool = True) -> None:
        """Start a process; raises what a broker's start raises, or `ProcessDied`.

        One that is not announced takes part in the metadata, and nobody can reach it as a client."""
        self.starts += 1
        await self.begin(self._start(announce), f"{self.name}-{self.starts}")

    async def _start(self, announce: bool) -> None:
        host, mount, generation = self.network.host(self.name), self.disk.mount(), self.disk.generation
        if self._store is not None:
            self._way_to_the_store = self._store.client(self.name)
        broker = Broker(
            self.config,
            mount,
            self.clock,
            host,
            on_fatal=lambda error: self._on_fatal(generation, error),
            store=self._way_to_the_store,
        )
        server = Server(broker, host, lambda: 0)
        broker.commits.after_cycle = server.flush
        self._shuffle_inline(broker)
        self.watch.attach(self.number, broker)
        self.broker, self.server = broker, server
        await broker.start()
        if announce:
            await server.start()

    def _shuffle_inline(self, broker: Broker) -> None:
        """Syncs take no virtual time, so every small cycle would run inline: dice send some to the worker."""
        may, dice, probability = broker.commits._may_run_inline, self._dice, self.inline_probability
        broker.commits._may_run_inline = lambda jobs: may(jobs) and dice.random() < probability  # type: ignore[method-assign]

    async def stop(self) -> None:
        """As SIGTERM does; raises `ProcessDied` if it was killed meanwhile."""
        assert self.server is not None and self.broker is not None
        server, broker = self.server, self.broker
        self.loop.trace.note(f"{self.name} stop")

        async def work() -> None:
            await server.stop(1.0)
            await broker.stop()

        await self.finish(work())

    # Death.

    def wipe(self, join: str = "") -> None:
        """A dead node gets an empty disk: another member of the cluster from now on (I2). Whoever was in the
        cluster asks those at `join` to let it in again, the founder too: nobody founds one twice (I1)."""
        self.loop.trace.note(f"{self.name} wiped")
        roll_loss = self.disk.roll_loss
        self._deaths_on_earlier_disks = self.deaths
        self.take_disk(self._make_disk(self.loop))
        self.disk.roll_loss = roll_loss
        if join:
            self.config = msgspec.structs.replace(self.config, bootstrap_cluster=False, join=join)

    def _on_fatal(self, generation: int, error: IsterError) -> None:
        """The real process ends in an orderly way; nobody promised that it gets that far."""
        if generation == self.disk.generation:
            self.fatal.append(f"{type(error).__name__}: {error}")
            if isinstance(error, InvariantBroken):
                self.watch.history.violated(f"{self.name} died of a defect: {error}")
            self.loop.trace.note(f"{self.name} fatal {error.code}")
            self.die_soon()

    def died(self) -> None:
        self.watch.died(self.number)
        self.on_death()
