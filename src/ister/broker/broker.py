"""The broker: a node's topics, the leases derived from metadata, and the care of what grows old.

It owns the storage of one data directory and answers in terms of topics. It knows nothing of sockets: the
server calls it, and so may a test or a program that embeds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from ister.broker.data_directory import DirectoryIdentity, claim_directory
from ister.broker.descriptions import describe_topic
from ister.broker.held import HeldAppend, HeldAppends
from ister.broker.leftovers import remove_leftovers, remove_trimmed
from ister.broker.retention import first_offset_to_keep
from ister.broker.sealed import SealedSegments
from ister.broker.storage import Storage
from ister.broker.topic_log import TopicLog
from ister.broker.topic_reads import segment_path
from ister.config import BrokerConfig
from ister.errors import (
    DataDirectoryError,
    IsterError,
    Overloaded,
    ShuttingDown,
    TopicExists,
    UnknownTopic,
)
from ister.frame import FrameHeader
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.commands import (
    AlterTopic,
    AnyCommand,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    Outcome,
    Result,
    TrimTopic,
)
from ister.metadata.local import LocalMetadata
from ister.metrics import Gauge, Registry
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription, TopicSettings
from ister.settings import validate_settings
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.sink import Sink
from ister.wal.tail import HotTail

log = logging.getLogger("ister.broker")


class Broker:
    """Everything of a node but its sockets."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        clock: Clock,
        *,
        after_cycle: Callable[[], None] | None = None,
        on_fatal: Callable[[IsterError], None] | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.disk = disk
        self.metrics = Registry()
        self.topics: dict[str, TopicLog] = {}
        self.identity: DirectoryIdentity | None = None
        self.on_topics_changed: Callable[[], None] = lambda: None
        self.fatal: IsterError | None = None
        self._on_fatal = on_fatal
        self._creating: dict[str, HeldAppends] = {}
        """Appends that wait for the topic that the first of them makes."""
        self._proposed: list[str] = []
        """Names in creations that are under way; one may be there twice."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.hot = HotTail(config.hot_tail_bytes)
        self.leases = Leases(clock)
        self.commits = GroupCommit(disk, clock, interval_ms=config.fsync_interval_ms, after_cycle=after_cycle)
        self.metadata = LocalMetadata(disk, clock, self.commits, on_fatal=self._fatal)
        self._storage = Storage(
            node_id=config.node_id,
            disk=disk,
            clock=clock,
            metadata=self.metadata,
            commits=self.commits,
            leases=self.leases,
            hot=self.hot,
            sealed=SealedSegments(disk),
            max_held_appends=config.max_held_appends,
            max_held_bytes=config.max_held_bytes,
            max_held_seconds=config.max_held_ms / 1000,
        )
        self._register_metrics()

    def _register_metrics(self) -> None:
        self.commits.metrics.register(self.metrics)
        self.metrics.add(
            self.leases.rejections,
            self.leases.update_seconds,
            Gauge("active_lease_count", "Segments that this node may append to.", lambda: len(self.leases)),
            Gauge("topics", "Topics on this node.", lambda: len(self.topics)),
            Gauge(
                "hot_tail_bytes", "Bytes of records kept in memory for live readers.", lambda: self.hot.bytes
            ),
        )

    # Starting and stopping.

    async def start(self) -> None:
        self.identity = await self.disk.run(
            lambda: claim_directory(self.disk, self.clock, self.config.node_id)
        )
        await self.metadata.open()
        await self._check_cluster(self.identity.cluster_id)
        self.metadata.watch(self._applied)
        for topic in self.metadata.state.topics.values():
            self.topics[topic.name] = TopicLog(self._storage, topic)
        self._sync_leases()
        await self.disk.run(lambda: remove_leftovers(self.disk, self.metadata.state))
        self._spawn(self._open_all())
        self._spawn(self._monitor())

    async def _check_cluster(self, cluster_id: str) -> None:
        """Metadata and directory must be of one cluster (I1): files are removed by what the metadata says."""
        if self.metadata.state.applied_index == 0:
            await self.metadata.propose(FoundCluster(cluster_id))
        found = self.metadata.state.cluster_id
        if found != cluster_id:
            raise DataDirectoryError(
                f"{self.disk.location}/metadata is of cluster {found or 'unknown'}, "
                f"the directory of cluster {cluster_id}",
                hint="The metadata folder is another directory's; restore the right one.",
            )

    async def _open_all(self) -> None:
        """Open what was there before the start, so that the first request need not wait for it."""
        for topic in list(self.topics.values()):
            try:
                await topic.ensure_open()
            except IsterError as error:
                log.error("topic %s cannot be opened: %s", topic.state.name, error)

    def drain(self) -> None:
        """Take no more appends; those taken go on."""
        self._stopping = True
        self.on_topics_changed()

    async def stop(self) -> None:
        """Let what was admitted become durable, leave checkpoints for a quick start, close the files."""
        self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for held in self._creating.values():
            held.refuse(ShuttingDown("the broker is stopping"))
        await self.commits.stop()
        for topic in list(self.topics.values()):
            await topic.close()
        await self.commits.stop()
        await self._storage.sealed.close()
        await self.metadata.close()
        await self.disk.run(lambda: None)
        self.disk.close()

    def _fatal(self, error: IsterError) -> None:
        self.fatal = error
        log.critical("%s", error.message, extra={"fields": {"hint": error.hint}})
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Metadata changes.

    def _applied(self, command: AnyCommand | None, outcome: Outcome) -> None:
        if not outcome.ok or outcome.result is Result.EXISTS:
            return
        match command:
            case CreateTopic():
                topic = self.metadata.state.topics[command.name]
                self.topics[topic.name] = TopicLog(self._storage, topic)
            case DeleteTopic():
                self._topic_deleted(command.topic_uid)
            case AlterTopic():
                changed = self.metadata.state.topic_by_uid(command.topic_uid)
                if changed is not None:
                    self.topics[changed.name].settings_changed()
            case TrimTopic():
                self._spawn(self._drop_trimmed(command.topic_uid))
        if not isinstance(command, AlterTopic | TrimTopic):
            self._sync_leases()

    def _sync_leases(self) -> None:
        led = self.metadata.state.led_by(self.config.node_id)
        self.leases.replace(frozenset([topic.key_of(segment) for topic, segment in led]))

    def _topic_deleted(self, uid: int) -> None:
        gone = next((topic for topic in self.topics.values() if topic.state.uid == uid), None)
        if gone is not None:
            del self.topics[gone.state.name]
            gone.delete()
            self.on_topics_changed()
            self._storage.sealed.forget(f"segments/{uid:016d}/")
            self._spawn(self._remove_files(gone, f"segments/{uid:016d}"))

    async def _remove_files(self, topic: TopicLog, path: str) -> None:
        await topic.settled()
        try:
            await self.disk.run(lambda: self.disk.remove(path))
        except OSError as error:
            log.warning("%s was not removed, the next start tries again: %s", path, error)

    async def _drop_trimmed(self, uid: int) -> None:
        topic = self.metadata.state.topic_by_uid(uid)
        if topic is not None:
            # A file that is still open keeps its space.
            kept = {segment_path(uid, segment) for segment in topic.segments}
            self._storage.sealed.forget(f"segments/{uid:016d}/", keep=kept)
            try:
                await self.disk.run(lambda: remove_trimmed(self.disk, topic))
            except OSError as error:
                log.warning("trimmed segments of %s were not removed: %s", topic.name, error)

    # Appending.

    def append(
        self,
        name: str,
        frame: bytearray | memoryview,
        header: FrameHeader,
        sink: Sink,
        token: int,
        started: float,
    ) -> None:
        """Append to a topic, making it first if that is allowed; raises or tells the sink."""
        if self._stopping:
            raise ShuttingDown(f"node {self.config.node_id} is stopping")
        topic = self.topics.get(name)
        if topic is not None and name not in self._creating:
            topic.append(frame, header, sink, token, started)
            return
        if not self.config.auto_create_topics:
            raise UnknownTopic(f"there is no topic {name}, and auto_create_topics is off")
        held = self._creating.get(name)
        if held is None:
            self._check_room_for(name)
            config = self.config
            held = HeldAppends(config.max_held_appends, config.max_held_bytes, config.max_held_ms / 1000)
            self._creating[name] = held
            self._spawn(self._create_for_append(name, held))
        held.add(HeldAppend(frame, header, sink, token, started), name)

    def takes_appends(self, name: str) -> TopicLog | None:
        """The topic, if an append may go straight to it: none that came earlier waits for its creation."""
        return None if self._stopping or name in self._creating else self.topics.get(name)

    async def _create_for_append(self, name: str, held: HeldAppends) -> None:
        try:
            await self.create_topic(name, {}, if_absent=True)
        except IsterError as error:
            del self._creating[name]
            held.refuse(error)
            return
        del self._creating[name]
        for append in held.release():
            try:
                self.topics[name].append(*append)
            except IsterError as error:
                append.sink.refused(append.token, error)

    # Topics.

    def find(self, name: str) -> TopicLog:
        topic = self.topics.get(normalise_topic(name))
        if topic is None:
            raise UnknownTopic(f"there is no topic {normalise_topic(name)}")
        return topic

    async def create_topic(self, name: str, settings: dict[str, int | str], *, if_absent: bool) -> TopicLog:
        name = normalise_topic(name, self.config.max_topic_name)
        if self._stopping:
            raise ShuttingDown(f"node {self.config.node_id} is stopping")
        self._check_room_for(name)
        node = self.config.node_id
        chosen = msgspec.structs.replace(self.config.topic_defaults(), **validate_settings(settings))
        command = CreateTopic(name, chosen, node, [node], self.clock.now_us())
        self._proposed.append(name)
        try:
            outcome = await self.metadata.propose(command)
        finally:
            self._proposed.remove(name)
        if outcome.result is Result.EXISTS and not if_absent:
            raise TopicExists(f"topic {name} is there already")
        return self.find(name)

    def _check_room_for(self, name: str) -> None:
        """Hold max_topics, with those that are being made: by a command, or by a first append."""
        made = len(self.topics)
        being_made = {new for new in (*self._creating, *self._proposed) if new not in self.topics}
        if name in self.topics or name in being_made:
            return
        if made + len(being_made) >= self.config.max_topics:
            raise Overloaded(
                f"there are {made} topics and {len(being_made)} are being made, "
                f"max_topics is {self.config.max_topics}"
            )

    async def alter_topic(self, name: str, settings: dict[str, int | str]) -> None:
        topic = self.find(name)
        changed = validate_settings(settings)
        chosen: TopicSettings = msgspec.structs.replace(topic.state.settings, **changed)
        await self._propose_for(topic, AlterTopic(topic.state.uid, chosen))
        if "fsync" in changed:
            topic.start_handoff()  # a segment has one policy for life

    async def delete_topic(self, name: str) -> None:
        topic = self.find(name)
        await self._propose_for(topic, DeleteTopic(topic.state.uid))

    async def _propose_for(self, topic: TopicLog, command: AnyCommand) -> None:
        outcome = await self.metadata.propose(command)
        if not outcome.ok:
            raise UnknownTopic(f"topic {topic.state.name} was deleted meanwhile")

    async def describe(self, topic: TopicLog, *, with_segments: bool = True) -> TopicDescription:
        try:
            await topic.ensure_open()
        except IsterError as error:
            log.warning("described without its open segment: %s", error)
        return describe_topic(topic, with_segments=with_segments)

    # What no append triggers.

    async def _monitor(self) -> None:
        """Roll over what is old, drop what is past its retention; each topic's trouble is its own."""
        while True:
            await asyncio.sleep(self.config.monitor_check_ms / 1000)
            for topic in list(self.topics.values()):
                try:
                    await self._look_after(topic)
                except IsterError as error:
                    log.warning("topic %s: %s", topic.state.name, error)

    async def _look_after(self, topic: TopicLog) -> None:
        topic.checkpoint_soon()
        if topic.is_old:
            topic.start_handoff()
        start = first_offset_to_keep(topic.state, topic.bytes, self.clock.now_us())
        if start > topic.state.start_offset:
            log.info("trimming", extra={"fields": {"topic": topic.state.name, "start_offset": start}})
            await self.metadata.propose(TrimTopic(topic.state.uid, start))
