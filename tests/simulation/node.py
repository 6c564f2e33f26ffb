"""The real broker and server on simulated seams: started, stopped, killed and started again.

`Watch` looks over its shoulder: at each acknowledgement and each seal it compares what the broker says with
what is on the platter, which only a simulation can see (PROTOCOL, invariants 1, 4, 6 and 9).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from ister.broker.clients.server import Server
from ister.broker.node.broker import Broker
from ister.broker.topic.known import segment_path
from ister.config import BrokerConfig
from ister.errors import InvariantBroken, IsterError
from ister.frame import HEADER_SIZE, FrameHeader, decode_header
from ister.metadata.commands import Command, Outcome, Result, SealSegment
from ister.metadata.state import TopicState
from ister.testing import Loss, SimClock, SimDisk, SimNetwork, VirtualLoop
from ister.testing.history import History
from ister.testing.machine import SimMachine
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.sink import Sink

HOST = "broker"
PORT = 9091
ADDRESS = f"{HOST}:{PORT}"


class Watch:
    """Invariants seen from outside, over all lives of the node."""

    def __init__(self, disk: SimDisk, history: History) -> None:
        self._disk = disk
        self._history = history
        self.strong: set[str] = set()
        """Names of topics that are always fsync=fsync."""
        self.rollovers = 0
        self.acknowledgements = 0
        self._verified: dict[str, tuple[int, int]] = {}
        self._acknowledged_end: dict[tuple[int, int], int] = {}
        self._carried: dict[tuple[int, int], list[ProducerRow]] = {}

    def acknowledged(self, topic: TopicState, base: int, header: FrameHeader) -> None:
        """Invariant 1: at each acknowledgement the frame is in the synced image."""
        self.acknowledgements += 1
        if topic.name not in self.strong:
            return
        segment = topic.holding(base)
        if segment is None:
            return
        key = (topic.uid, segment.segment)
        end = base + header.count
        self._acknowledged_end[key] = max(self._acknowledged_end.get(key, 0), end)
        path = segment_path(topic.uid, segment) + ".log"
        position, offset = self._verified.get(path, (0, segment.base_offset))
        if base < offset:
            return  # a repeat of a frame that was looked at before
        while offset <= base:
            found = self._durable_header(path, position)
            if found is None or found.base_offset != offset:
                self._history.violated(
                    f"invariant 1: offset {base} of {topic.name} was acknowledged, but the synced image of "
                    f"{path} has {found} at byte {position}, where offset {offset} must be"
                )
                return
            position, offset = position + found.size, found.end_offset
            if found.base_offset == base and found[7:9] != header[7:9]:
                self._history.violated(
                    f"invariant 6: offset {base} of {topic.name} was acknowledged to producer "
                    f"{header.producer_id:x}, but is {found.producer_id:x}'s"
                )
        self._verified[path] = (position, offset)

    def _durable_header(self, path: str, position: int) -> FrameHeader | None:
        try:
            data = self._disk.durable_bytes(path, position, position + HEADER_SIZE)
        except OSError:
            return None
        header = decode_header(data) if len(data) == HEADER_SIZE else None
        return header if isinstance(header, FrameHeader) else None

    def sealed(self, topic: TopicState, command: SealSegment) -> None:
        """Invariants 4 and 6: the end, and the producers that the seal carries."""
        self.rollovers += 1
        carried = self._carried.pop((command.topic_uid, command.segment), [])
        self._carried[command.topic_uid, command.segment + 1] = command.producers
        if topic.name not in self.strong:
            return
        promised = self._acknowledged_end.get((command.topic_uid, command.segment), 0)
        if command.end_offset < promised:
            self._history.violated(
                f"invariant 4: {topic.name}:{command.segment} was sealed at {command.end_offset}, but offset "
                f"{promised - 1} was acknowledged"
            )
        state = next(found for found in topic.segments if found.segment == command.segment)
        path, table = segment_path(topic.uid, state) + ".log", ProducerTable(carried)
        position, offset = 0, state.base_offset
        while position < command.end_position:
            found = self._durable_header(path, position)
            if found is None or found.base_offset != offset:
                self._history.violated(f"{path} is sealed at {command.end_offset} and damaged at {offset}")
                return
            if found.producer_id:
                table.record(
                    found.producer_id, found.sequence, found.count, found.base_offset, found.append_time_us
                )
            position, offset = position + found.size, found.end_offset
        if offset != command.end_offset:
            self._history.violated(f"{path} has offsets up to {offset}, the seal says {command.end_offset}")
        if table.rows() != command.producers:
            self._history.violated(f"invariant 6: the seal of {path} carries producers that its log has not")

    def found(self, topic: TopicState) -> None:
        """A new process found this: a seal may have become durable in the last moment of the one before."""
        self._carried[topic.uid, topic.open_segment.segment] = topic.open_segment.carried_producers
        self.chain(topic)

    def chain(self, topic: TopicState) -> None:
        """Invariant 9: one open segment, the last; each begins where the one before it ends."""
        expected = topic.segments[0].base_offset
        for segment in topic.segments:
            if segment.base_offset != expected or (segment.end_offset is None) != (
                segment is topic.open_segment
            ):
                self._history.violated(f"invariant 9: the chain of {topic.name} is broken at {segment}")
            expected = segment.base_offset if segment.end_offset is None else segment.end_offset


class _WatchingSink:
    """Stands between the log and a connection."""

    def __init__(self, sink: Sink, topic: TopicState, header: FrameHeader, watch: Watch) -> None:
        self._sink, self._topic, self._header, self._watch = sink, topic, header, watch

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        self._watch.acknowledged(self._topic, base_offset, self._header)
        self._sink.appended(token, base_offset, append_time_us, leader)

    def refused(self, token: int, error: IsterError) -> None:
        self._sink.refused(token, error)


class SimNode(SimMachine):
    """One broker machine: its disk and clock stay, its processes come and go."""

    def __init__(
        self, loop: VirtualLoop, network: SimNetwork, disk: SimDisk, config: BrokerConfig, history: History
    ) -> None:
        super().__init__(loop, network, HOST, disk)
        self.config = config
        self.clock = SimClock(loop, loop.fork("broker-clock"))
        self.history = history
        self.watch = Watch(disk, history)
        self.broker: Broker | None = None
        self.server: Server | None = None
        self.starts = 0
        self.fatal_count = 0
        self.on_death: Callable[[], None] = lambda: None
        self.snapshot_every = 10_000
        self.inline_probability = 1.0
        self._dice: Random = loop.fork("node")

    async def start(self) -> None:
        """Start a process; raises what a broker's start raises, or `ProcessDied`."""
        self.starts += 1
        await self.begin(self._start(), f"broker-{self.starts}")

    async def _start(self) -> None:
        mount = self.disk.mount()
        generation = self.disk.generation
        host = self.network.host(HOST)
        config = msgspec.structs.replace(self.config, snapshot_entries=self.snapshot_every)
        broker = Broker(
            config, mount, self.clock, host, on_fatal=lambda error: self._on_fatal(generation, error)
        )
        server = Server(broker, host, lambda: 0)
        broker.commits.after_cycle = server.flush
        self._shuffle_inline(broker)
        self.broker, self.server = broker, server
        self._attach(broker)
        await broker.start()
        broker.metadata.watch(self._applied)
        for topic in broker.metadata.state.topics.values():
            self.watch.found(topic)
        await server.start()

    def _shuffle_inline(self, broker: Broker) -> None:
        """Syncs take no virtual time, so every small cycle would run inline: dice send some to the worker."""
        may, dice, probability = broker.commits._may_run_inline, self._dice, self.inline_probability
        broker.commits._may_run_inline = lambda jobs: may(jobs) and dice.random() < probability  # type: ignore[method-assign]

    def _attach(self, broker: Broker) -> None:
        append, watch = broker.append, self.watch

        def watched(
            name: str, frame: bytearray, header: FrameHeader, sink: Sink, token: int, at: float
        ) -> None:
            topic = broker.topics.get(name)
            if topic is not None:
                sink = _WatchingSink(sink, topic.state, header, watch)
            append(name, frame, header, sink, token, at)

        broker.append = watched  # type: ignore[method-assign, assignment]
        # The server would remember the topic of a header, and go past this from the second append on.
        broker.takes_appends = lambda name: None  # type: ignore[method-assign]

    def _applied(self, command: Command | None, outcome: Outcome) -> None:
        assert self.broker is not None
        if isinstance(command, SealSegment) and outcome.result is Result.APPLIED:
            topic = self.broker.metadata.state.topic_by_uid(command.topic_uid)
            assert topic is not None
            self.watch.sealed(topic, command)
            self.watch.chain(topic)

    def _on_fatal(self, generation: int, error: IsterError) -> None:
        """The real process ends in an orderly way; nobody promised that it gets that far."""
        if generation == self.disk.generation and self.is_up:
            self.fatal_count += 1
            if isinstance(error, InvariantBroken):
                self.history.violated(f"the node died of a defect: {error}")
            self.loop.trace.note(f"node fatal {error.code}")
            self.die_soon()

    async def stop(self) -> None:
        """As SIGTERM does; raises `ProcessDied` if it was killed meanwhile."""
        assert self.server is not None and self.broker is not None
        server, broker = self.server, self.broker
        self.loop.trace.note("node stop")

        async def work() -> None:
            await server.stop(1.0)
            await broker.stop()

        await self.finish(work())

    def die(self, loss: Loss | None, *, power: bool) -> None:
        """kill -9, or the end of power."""
        if power:
            self.lose_power(loss)
        else:
            self.kill()

    def died(self) -> None:
        self.on_death()
