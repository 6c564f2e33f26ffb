"""What only a simulation can see: every acknowledgement and every seal of a cluster, held against its disks.

Hooks stand in the product's own classes while a run is watched (`attached`), so that no way around them is
missed: an append is watched where a segment takes it, a proposal where the metadata does. What is broken goes
into the history as a violation, with the values that prove it.

- A segment acknowledges: the frame is in the synced image of the leader's disk (invariant 1), and the segment
  is not sealed below it (checker 7).
- A seal is applied, at the first node that does: it ends at or past every acknowledged end, its log has
  exactly that end, the producers that it carries are the fold of that log, and there is one open segment
  (invariants 4, 6, 9).
- A proposal or a read of the metadata is done: its index is past all that was applied anywhere before it
  began (checker 9).
- Raft's driver has handled a Ready, or applied an index: see `raft_watch` (invariant 10).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ister.broker.node.broker import Broker
from ister.broker.topic.known import segment_path
from ister.broker.topic.topic_log import TopicLog
from ister.errors import InvariantBroken, IsterError
from ister.frame import HEADER_SIZE, FrameHeader, decode_header
from ister.metadata import replicated
from ister.metadata.codec import encode_command
from ister.metadata.commands import Command, Outcome, RequestMove, Result, SealSegment
from ister.metadata.replicated import ReplicatedMetadata
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.testing import SimDisk
from ister.testing.history import History
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.segment import FsyncPolicy, Segment
from ister.wal.sink import Sink
from tests.cluster.raft_watch import RaftWatch, is_dead, watched_raft

MOST_COMMAND_BYTES = 512 * 1024
"""A seal with the most producers that it may carry, and some."""


class Watch:
    """Invariants seen from outside, over all lives of all nodes."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.weak: set[str] = set()
        """Full names of topics that do not always sync."""
        self.acknowledgements = 0
        self.seals = 0
        self.moves = 0
        """Seals whose next leader is another node."""
        self.restores = 0
        self._disks: dict[int, Callable[[], SimDisk]] = {}
        self._by_member: dict[int, SimDisk] = {}
        self.raft = RaftWatch(history, self.disk_of)
        self._verified: dict[tuple[int, str], tuple[int, int]] = {}
        self._acknowledged_end: dict[int, int] = {}
        """By a segment's uid."""
        self._sealed_end: dict[int, int] = {}
        self._carried: dict[tuple[int, int], list[ProducerRow]] = {}
        self._seals_seen: set[int] = set()

    def add(self, number: int, disk: Callable[[], SimDisk]) -> None:
        self._disks[number] = disk

    def disk_of(self, member: int) -> SimDisk:
        """The disk that makes a node this member, be it wiped since (I2). First asked when it joins."""
        if member not in self._by_member:
            self._by_member[member] = self._disks[node_of(member)]()
        return self._by_member[member]

    def attach(self, number: int, broker: Broker) -> None:
        """A new process: see every command that it applies, from its start on."""
        applied, restored = broker._applied, broker._restored

        def watch_applied(command: Command | None, outcome: Outcome) -> None:
            self.applied(broker, command, outcome)
            applied(command, outcome)

        def watch_restored() -> None:
            self.restores += 1
            for topic in broker.metadata.state.topics.values():
                self._check_chain(topic)
            restored()

        broker._applied = watch_applied  # type: ignore[method-assign]
        broker._restored = watch_restored  # type: ignore[method-assign]

    def applied(self, broker: Broker, command: Command | None, outcome: Outcome) -> None:
        """A node is about to be told of what its metadata has applied."""
        if isinstance(command, SealSegment) and outcome.result is Result.APPLIED:
            self._seal_applied(broker, command, outcome.index)

    def died(self, number: int) -> None:
        """Nothing is kept of a process: what it had verified on its disk is durable for ever."""

    def check_bounds(self, broker: Broker, in_flight_bytes: int) -> None:
        """Invariant 11: nothing waits without a bound. Looked at now and then."""
        config, node = broker.config, broker.config.node_id
        for name, topic in broker.topics.items():
            if topic.held_count > config.max_held_appends:
                self.history.violated(
                    f"invariant 11: {topic.held_count} appends to {name} wait at node {node}"
                )
            try:
                topic.led.validate()
            except InvariantBroken as error:
                self.history.violated(f"node {node}: {error.message}")
        if not 0 <= in_flight_bytes <= config.max_in_flight_bytes + config.max_message_bytes:
            self.history.violated(f"invariant 11: {in_flight_bytes} bytes are in flight at node {node}")

    # Acknowledgements.

    def acknowledged(self, segment: Segment, node: int, base: int, header: FrameHeader) -> None:
        if is_dead():
            return
        self.acknowledgements += 1
        self._check_not_sealed(segment, base, header)
        identity, end = segment.identity, base + header.count
        if segment.policy is not FsyncPolicy.FSYNC:
            return
        self._acknowledged_end[identity.uid] = max(self._acknowledged_end.get(identity.uid, 0), end)
        disk, path = self._disks[node](), identity.path + ".log"
        position, offset = self._verified.get((node, path), (0, identity.base_offset))
        while offset <= base:
            found = _durable_header(disk, path, position)
            if found is None or found.base_offset != offset:
                self.history.violated(
                    f"invariant 1: offset {base} of {identity.key} was acknowledged, but the synced image of "
                    f"{path} on node {node} has {found} at byte {position}, where offset {offset} must be"
                )
                return
            position, offset = position + found.size, found.end_offset
            if found.base_offset == base and found[7:9] != header[7:9]:
                self.history.violated(
                    f"invariant 6: offset {base} of {identity.key} was acknowledged to producer "
                    f"{header.producer_id:x}, but is {found.producer_id:x}'s"
                )
        self._verified[node, path] = (position, offset)

    def _check_not_sealed(self, segment: Segment, base: int, header: FrameHeader) -> None:
        identity = segment.identity
        sealed = self._sealed_end.get(identity.uid)
        if sealed is not None and base + header.count > sealed:
            self.history.violated(
                f"checker 7: offset {base} was acknowledged in {identity.key}, which is sealed at {sealed}"
            )

    # Seals.

    def _seal_applied(self, broker: Broker, command: SealSegment, index: int) -> None:
        if index in self._seals_seen or is_dead():
            return  # this index was looked at when the first node applied it
        self._seals_seen.add(index)
        self.seals += 1
        topic = broker.metadata.state.topic_by_uid(command.topic_uid)
        assert topic is not None
        self._check_chain(topic)
        state = next(found for found in topic.segments if found.segment == command.segment)
        self.moves += state.leader != command.next_leader
        self._sealed_end[state.uid] = command.end_offset
        carried = self._carried.pop((command.topic_uid, command.segment), [])
        self._carried[command.topic_uid, command.segment + 1] = command.producers
        key, promised = topic.key_of(state), self._acknowledged_end.get(state.uid, 0)
        if command.end_offset < promised:
            self.history.violated(
                f"invariant 4: {key} was sealed at {command.end_offset}, but offset {promised - 1} was "
                f"acknowledged"
            )
        if topic.name not in self.weak:
            path = log_path(topic, state)
            self._check_fold(command, path, self._log_at_seal(topic, state), state.base_offset, carried)

    def _log_at_seal(self, topic: TopicState, state: SegmentState) -> Iterator[FrameHeader]:
        """The frames that are durable where the sealed segment must be."""
        disk, path, position = self.disk_of(state.leader), log_path(topic, state), 0
        while (found := _durable_header(disk, path, position)) is not None:
            yield found
            position += found.size

    def _check_fold(
        self,
        command: SealSegment,
        path: str,
        log: Iterator[FrameHeader],
        base: int,
        carried: list[ProducerRow],
    ) -> None:
        position, offset, table = 0, base, ProducerTable(carried)
        while position < command.end_position:
            found = next(log, None)
            if found is None or found.base_offset != offset:
                self.history.violated(
                    f"invariant 4: {path} is sealed at {command.end_offset}, and not there from {offset} on"
                )
                return
            if found.producer_id:
                table.record(
                    found.producer_id, found.sequence, found.count, found.base_offset, found.append_time_us
                )
            position, offset = position + found.size, found.end_offset
        if (offset, position) != (command.end_offset, command.end_position):
            self.history.violated(
                f"invariant 4: {path} has offsets up to {offset}, the seal says {command.end_offset}"
            )
        if table.rows() != command.producers:
            self.history.violated(f"invariant 6: the seal of {path} carries producers that its log has not")

    def _check_chain(self, topic: TopicState) -> None:
        """Invariant 9: one open segment, the last; each begins where the one before it ends; and a sealed end
        is for ever (checker 8)."""
        expected = topic.segments[0].base_offset
        for segment in topic.segments:
            is_last = segment is topic.open_segment
            if segment.base_offset != expected or (segment.end_offset is None) != is_last:
                self.history.violated(f"invariant 9: the chain of {topic.name} is broken at {segment}")
            sealed = self._sealed_end.get(segment.uid)
            if segment.end_offset is not None and sealed not in (None, segment.end_offset):
                self.history.violated(f"checker 8: {segment} of {topic.name} was sealed at {sealed} before")
            expected = segment.base_offset if segment.end_offset is None else segment.end_offset

    # The hooks.

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """While this holds, every broker of this process is watched."""
        with contextlib.ExitStack() as stack:
            for target, name, hook in self.hooks():
                stack.enter_context(mock.patch.object(target, name, hook))
            yield

    def hooks(self) -> list[tuple[object, str, object]]:
        """What stands in which class's, or module's, place."""
        return [
            (Segment, "append", self._watched_append(Segment.append)),
            (ReplicatedMetadata, "propose", self._watched_propose(ReplicatedMetadata.propose)),
            (ReplicatedMetadata, "read_index", self._watched_read(ReplicatedMetadata.read_index)),
            (replicated, "RaftNode", watched_raft(self.raft)),
        ]

    def _watched_append(self, append: Callable[..., None]) -> Callable[..., None]:
        watch = self

        def watched(
            segment: Segment, frame: Any, header: FrameHeader, now_us: int, sink: Sink, token: int, at: float
        ) -> None:
            owner = segment._owner
            assert isinstance(owner, TopicLog)
            if isinstance(sink, _WatchingSink):
                sink = sink.sink  # it was admitted to the segment before, and sent on (H2)
            seen = _WatchingSink(sink, segment, owner._storage.node_id, header, watch)
            append(segment, frame, header, now_us, seen, token, at)

        return watched

    def _watched_propose(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(metadata: ReplicatedMetadata, *args: Any, **options: Any) -> Outcome:
            before = self.raft.applied_index
            size = len(encode_command(args[0]))
            if size > MOST_COMMAND_BYTES:
                self.history.violated(f"invariant 11: a command of {size} bytes: {type(args[0]).__name__}")
            outcome: Outcome = await propose(metadata, *args, **options)
            # A move that was asked for twice is answered with the first one's index, which is its id.
            is_an_older_move = isinstance(args[0], RequestMove) and outcome.result is Result.EXISTS
            if outcome.index <= before and not is_an_older_move:
                self.history.violated(
                    f"checker 9: {args[0]} was applied at {outcome.index}, and proposed after {before} was"
                )
            return outcome

        return watched

    def _watched_read(self, read_index: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(metadata: ReplicatedMetadata, *args: Any, **options: Any) -> None:
            before = self.raft.applied_index
            await read_index(metadata, *args, **options)
            if metadata.state.applied_index < before:
                self.history.violated(
                    f"checker 9: node {metadata.myself.node_id} reads at {metadata.state.applied_index}, but "
                    f"{before} was applied somewhere before it asked"
                )

        return watched


class _WatchingSink:
    """Stands between a segment and whoever waits for its answer."""

    __slots__ = ("_header", "_node", "_segment", "_watch", "sink")

    def __init__(self, sink: Sink, segment: Segment, node: int, header: FrameHeader, watch: Watch) -> None:
        self.sink, self._segment, self._node, self._header, self._watch = sink, segment, node, header, watch

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        if not leader:  # else it was sent on to that node, and is that node's to acknowledge
            self._watch.acknowledged(self._segment, self._node, base_offset, self._header)
        self.sink.appended(token, base_offset, append_time_us, leader)

    def refused(self, token: int, error: IsterError) -> None:
        self.sink.refused(token, error)


def log_path(topic: TopicState, segment: SegmentState) -> str:
    return segment_path(topic.uid, segment) + ".log"


def _durable_header(disk: SimDisk, path: str, position: int) -> FrameHeader | None:
    try:
        data = disk.durable_bytes(path, position, position + HEADER_SIZE)
    except OSError:
        return None
    header = decode_header(data) if len(data) == HEADER_SIZE else None
    return header if isinstance(header, FrameHeader) else None
