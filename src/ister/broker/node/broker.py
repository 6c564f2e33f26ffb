"""The broker: a node's topics, the leases derived from metadata, and the care of what grows old.

It owns the storage of one data directory and answers in terms of topics. It knows nothing of sockets: the
server calls it, and so may a test or a program that embeds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from ister.background import Background
from ister.broker.forward.forwarding import Forwarder
from ister.broker.node.applying import Applying
from ister.broker.node.balancing import NodeBalancing
from ister.broker.node.data_directory import DirectoryIdentity, claim_directory
from ister.broker.node.drains import NodeDrains
from ister.broker.node.moves import NodeMoves
from ister.broker.node.pins import Pins
from ister.broker.node.raft_metrics import register_raft_metrics
from ister.broker.node.replicas import NodeReplication
from ister.broker.node.replication_metrics import ReplicationGauges
from ister.broker.node.retention import first_offset_from
from ister.broker.node.sealed import SealedSegments
from ister.broker.node.starting import enter_cluster, make_metadata, tell_of_majority
from ister.broker.node.storage import Storage
from ister.broker.node.upkeep import Upkeep
from ister.broker.topic.creation import Creation
from ister.broker.topic.held import HeldAppend
from ister.broker.topic.known import another_topic, segment_path
from ister.broker.topic.topic_log import TopicLog
from ister.broker.view.descriptions import ask_about, describe_topic
from ister.config import BrokerConfig
from ister.errors import (
    DataDirectoryError,
    IsterError,
    NotLeader,
    RequestTimeout,
    ShuttingDown,
    UnknownTopic,
)
from ister.failpoints import Step, nowhere
from ister.frame import FrameHeader
from ister.history.history import History
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.io.network import Network
from ister.io.object_store import ObjectStore
from ister.metadata.codec import COMMANDS, CommandSet
from ister.metadata.commands import AlterTopic, Command, DeleteTopic, Outcome, TrimTopic
from ister.metadata.replicated import ReplicatedMetadata
from ister.metadata.state import NodeState, SegmentState, TopicState
from ister.metrics import Gauge, Registry
from ister.names import normalise_topic
from ister.protocol.messages import TopicDescription
from ister.protocol.peer import node_of
from ister.settings import validate_settings
from ister.wal.group_commit import GroupCommit
from ister.wal.leases import Leases
from ister.wal.opening import SegmentIdentity
from ister.wal.sink import Sink
from ister.wal.tail import HotTail

log = logging.getLogger("ister.broker")

LOOKUP_SECONDS = 3.0
"""How long somebody who asks for an unknown topic waits for the metadata leader to confirm that."""
RECEIVED = ("bytes_in_total", "replicated_bytes_in_total")
"""What clients and leaders sent here, nearly all of it to be written."""


class Broker:
    """Everything of a node but its clients' sockets."""

    metadata: ReplicatedMetadata
    """From `start` on."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        clock: Clock,
        network: Network,
        *,
        after_cycle: Callable[[], None] | None = None,
        on_fatal: Callable[[IsterError], None] | None = None,
        store: ObjectStore | None = None,
        commands: CommandSet = COMMANDS,
    ) -> None:
        """`store` is where the history is; None in local mode. `commands` is what this build knows."""
        self._commands = commands
        self.config = config
        self._store = store
        self.history: History | None = None
        """From `start` on, where there is a store."""
        self.clock = clock
        self.disk = disk
        self._network = network
        self.metrics = Registry()
        self.topics: dict[str, TopicLog] = {}
        self.identity: DirectoryIdentity | None = None
        self.on_topics_changed: Callable[[], None] = lambda: None
        self.failpoint: Callable[[Step], None] = nowhere
        """For tests: what happens to this node at a step of a handoff, an export or a release."""
        self.fatal: IsterError | None = None
        self._failed = asyncio.Event()
        self._on_fatal = on_fatal
        self._creation = Creation(self)
        self._applying = Applying(self)
        self.upkeep = Upkeep(self)
        self.pins = Pins(self)
        self.moves = NodeMoves(self)
        self.drains = NodeDrains(self)
        self.balancing = NodeBalancing(self)
        self._background = Background(self._fatal)
        self._has_metadata = False
        self._may_lead = asyncio.Event()
        """Set once this start was announced, and the directory is what the metadata says."""
        self._stopping = False
        self._leaving = asyncio.Event()
        self._revoked: set[str] = set()
        """Topics whose leases are withheld, for tests; an empty name stands for all."""
        self.hot = HotTail(config.hot_tail_bytes)
        self.leases = Leases()
        self.commits = GroupCommit(disk, interval_ms=config.fsync_interval_ms, after_cycle=after_cycle)
        self.sealed = SealedSegments(disk)
        self.storage: Storage
        self.replication: NodeReplication
        self.forwarder = Forwarder(
            network, config.node_id, lambda: self.metadata.cluster_id, self._node_of_member
        )
        self._register_metrics()

    def _register_metrics(self) -> None:
        self.commits.metrics.register(self.metrics)
        self.metrics.add(
            self.leases.rejections,
            self.leases.update_seconds,
            Gauge("active_lease_count", "Segments that this node may append to.", lambda: len(self.leases)),
            Gauge("topics", "Topics in the cluster, as known here.", lambda: len(self.topics)),
            Gauge(
                "owned_segment_count",
                "Open segments that metadata gives to this node; more than active leases is a fault.",
                lambda: len(self.metadata.state.led_by(self.metadata.member)) if self._has_metadata else 0,
            ),
            Gauge(
                "hot_tail_bytes", "Bytes of records kept in memory for live readers.", lambda: self.hot.bytes
            ),
        )

    # Starting and stopping.

    async def start(self) -> None:
        """Come back to the cluster, or into one; `announce` is the second half."""
        identity = await self.disk.run(lambda: claim_directory(self.disk, self.clock, self.config.node_id))
        self.metadata = make_metadata(
            self.config,
            identity,
            self.disk,
            self.clock,
            self._network,
            on_fatal=self._fatal,
            on_restored=self._restored,
            commands=self._commands,
        )
        self.replication = NodeReplication(self)
        self.metadata.serve_replicas = self.replication.serve
        if self._store is not None:
            self.history = self._make_history(self._store)
        self.storage = Storage(
            node_id=self.config.node_id,
            member=self.metadata.member,
            disk=self.disk,
            clock=self.clock,
            metadata=self.metadata,
            commits=self.commits,
            leases=self.leases,
            may_lead=self._may_lead,
            sync_leases=self.sync_leases,
            hot=self.hot,
            sealed=self.sealed,
            forwarder=self.forwarder,
            max_held_appends=self.config.max_held_appends,
            max_held_bytes=self.config.max_held_bytes,
            max_held_seconds=self.config.max_held_ms / 1000,
            max_clock_skew_us=self.config.max_clock_skew_ms * 1000,
            quorum_timeout_seconds=self.config.quorum_timeout_ms / 1000,
            replica_lost_seconds=self.config.replica_lost_ms / 1000,
            replication=self.replication,
            leaving=self._leaving,
            history=self.history,
            export_after_us=self.config.export_after_ms * 1000,
            reach=self.reach,
        )
        self._has_metadata = True
        register_raft_metrics(self.metrics, self.metadata)
        self.spawn(ReplicationGauges(self).keep(), vital=True)
        self.metadata.watch(self._applied)
        self.identity = await enter_cluster(
            self.config, identity, self.disk, self.clock, self.metadata, self.upkeep.check_log
        )
        self._check_cluster(self.identity.cluster_id)
        if self.metadata.is_sole_voter:
            await self.metadata.read_index()  # nobody else is needed for it
            self._check_cluster(self.identity.cluster_id)
            await self.upkeep.remove_leftovers()

    def _make_history(self, store: ObjectStore) -> History:
        replication = self.replication
        history = History(
            store,
            self.disk,
            self.clock,
            self.metadata,
            member=self.metadata.member,
            cluster_id=lambda: self.metadata.cluster_id,
            place=replication.copies.place,
            is_served=replication.completions.is_served,
            found_damage=replication.completions.suspect,
            led=lambda: [topic.state for topic in self.topics.values() if topic.leads],
            export_bytes_per_second=self.config.export_bytes_per_second,
            received=lambda: sum(self.metrics.counted(name) for name in RECEIVED),
            cache_bytes=self.config.history_cache_bytes,
            on_refused=self._fatal,
            reach=self.reach,
        )
        history.register(self.metrics)
        return history

    def reach(self, step: Step) -> None:
        self.failpoint(step)

    async def announce(self, client_host: str, client_port: int) -> None:
        """Tell the cluster of this start, and begin to lead once it knows.

        A node alone returns when it does, or raises what stops it; in a cluster that may take a majority, and
        goes on behind.
        """
        self.metadata.announce(client_host, client_port)
        if self.metadata.is_sole_voter:
            await self._begin_to_lead()
            if self.fatal is not None:
                raise self.fatal.again()
        else:
            self.spawn(self._begin_to_lead(), vital=True)
            self.spawn(tell_of_majority(self.metadata))
        self.spawn(self._keep_leases(), vital=True)
        self.spawn(self.upkeep.monitor(), vital=True)
        self.spawn(self.moves.run(), vital=True)
        self.spawn(self.drains.run(), vital=True)
        self.spawn(self.balancing.run(), vital=True)

    async def _begin_to_lead(self) -> None:
        await first_of(self.metadata.announced, self._failed)
        if self.fatal is not None:
            return
        try:
            self._check_cluster(self.metadata.cluster_id)
            await self.upkeep.remove_leftovers()
        except (IsterError, OSError) as error:
            self._fatal(error if isinstance(error, IsterError) else DataDirectoryError(str(error)))
            return
        self._may_lead.set()
        self.replication.start()
        if self.history is not None:
            self.history.start(lambda work: self.spawn(work, vital=True))
        self.sync_leases()
        self.spawn(self.upkeep.open_all())

    def _check_cluster(self, cluster_id: str) -> None:
        """Metadata and directory must be of one cluster (I1): files are removed by what the metadata says."""
        found = self.metadata.state.cluster_id
        if found not in ("", cluster_id):
            raise DataDirectoryError(
                f"{self.disk.location}/raft is of cluster {found}, the directory of cluster {cluster_id}",
                hint="The raft folder is another directory's; restore the right one.",
            )

    @property
    def has_majority(self) -> bool:
        """Whether so many nodes answer that the metadata can change; as long as nobody knows better, yes."""
        return not self._has_metadata or self.metadata.has_majority

    def drain(self) -> None:
        """Take no more appends; those taken go on."""
        self._stopping = True
        self.on_topics_changed()

    async def stop(self) -> None:
        """Let what was admitted become durable, leave checkpoints for a quick start, close the files."""
        self.drain()
        self._leaving.set()
        if self._has_metadata:
            self.metadata.is_stopping()
            await self.replication.hand_over()
        await self._background.stop()
        self._creation.stop()
        await self.commits.stop()
        topics = list(self.topics.values())
        # Those that may wait for other nodes wait together: they may all wait for the same ones in vain.
        await asyncio.gather(*(topic.close() for topic in topics if topic.may_wait))
        for topic in topics:
            await topic.close()
        await self.commits.stop()
        await self.forwarder.close()
        if self._has_metadata:
            await self.replication.stop()
            await self.sealed.close()
            await self.metadata.hand_over()
            await self.metadata.stop()
        if self._store is not None:
            self._store.close()
        await self.disk.run(lambda: None)
        self.disk.close()

    def _fatal(self, error: IsterError) -> None:
        if self.fatal is not None:
            return  # every peer says the same; the first one counts
        self.fatal = error
        self._failed.set()
        where = error if error.__cause__ is not None else None  # a defect: only the traceback says which
        log.critical("%s", error.message, exc_info=where, extra={"fields": {"hint": error.hint}})
        if self._on_fatal is not None:
            self._on_fatal(error)

    def spawn(self, work: Awaitable[None], *, vital: bool = False) -> None:
        """Work that nobody waits for; `vital` is what the node is not whole without."""
        self._background.spawn(work, vital=vital)

    # Metadata changes.

    def _applied(self, command: Command | None, outcome: Outcome) -> None:
        self._applying.applied(command, outcome)

    def _restored(self) -> None:
        self._applying.restored()

    def identity_of(self, topic: TopicState, segment: SegmentState) -> SegmentIdentity:
        path = segment_path(topic.uid, segment)
        return SegmentIdentity(topic.key_of(segment), segment.uid, segment.base_offset, path)

    def sync_leases(self) -> None:
        """Hold exactly what the metadata says now: nothing is computed aside and granted later (A2)."""
        if not self._may_lead.is_set():
            return
        led = self.metadata.state.led_by(self.metadata.member).values()
        if self._revoked:
            withheld = self._revoked
            led = [key for key in led if not withheld & {"", key.rpartition(":")[0]}]  # type: ignore[assignment]
        self.leases.replace(frozenset(led))

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self.config.lease_sync_ms / 1000)
            self.sync_leases()

    def _node_of_member(self, member: int) -> NodeState | None:
        state = self.metadata.state
        return state.nodes.get(node_of(member)) if state.is_active(member) else None

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
        if topic is not None and not self._creation.is_awaited(name):
            topic.append(frame, header, sink, token, started)
        else:
            self._creation.hold(name, HeldAppend(frame, header, sink, token, started))

    def takes_appends(self, name: str) -> TopicLog | None:
        """The topic, if an append may go straight to it: none that came earlier waits for its creation."""
        return None if self._stopping or self._creation.is_awaited(name) else self.topics.get(name)

    def has_topic(self, name: str, uid: int) -> bool:
        """Whether the topic of this uid has the name, as far as this node knows."""
        topic = self.topics.get(name)
        return topic is not None and topic.state.uid == uid

    # Topics.

    async def find(self, name: str, min_index: int = 0) -> TopicLog:
        """The topic; that there is none is said only by a node that knows all that was committed."""
        name = normalise_topic(name)
        if min_index > self.metadata.state.applied_index:
            await self.metadata.wait_applied(min_index, LOOKUP_SECONDS)
        topic = self.topics.get(name)
        if topic is None and not self.metadata.is_alone:
            await self.metadata.read_index(LOOKUP_SECONDS)
            topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    async def find_same(self, name: str, uid: int, min_index: int = 0) -> TopicLog:
        """The topic with this uid, and no other that has its name now; any for 0 (I3)."""
        topic = await self.find(name, min_index)
        if uid in (0, topic.state.uid):
            return topic
        if not self.metadata.is_alone:
            await self.metadata.read_index(LOOKUP_SECONDS)
            topic = await self.find(name)
        if topic.state.uid != uid:
            raise another_topic(name, uid)
        return topic

    async def create_topic(self, name: str, settings: dict[str, int | str], *, if_absent: bool) -> TopicLog:
        name = normalise_topic(name, self.config.max_topic_name)
        if self._stopping:
            raise ShuttingDown(f"node {self.config.node_id} is stopping")
        return await self._creation.create(name, settings, if_absent=if_absent)

    async def alter_topic(self, name: str, settings: dict[str, int | str]) -> None:
        topic = await self._find_current(name)
        outcome = await self.metadata.propose(AlterTopic(topic.state.uid, validate_settings(settings)))
        if not outcome.ok:
            raise UnknownTopic(f"topic {topic.state.name} was deleted meanwhile")

    async def trim_topic(self, name: str, before_offset: int, uid: int = 0) -> int:
        """Drop the oldest sealed segments, as far as they lie before an offset; returns where it begins."""
        topic = (await self._find_current(name)) if uid == 0 else await self.find_same(name, uid)
        start = first_offset_from(topic.state, before_offset)
        if start > topic.state.start_offset:
            await self.metadata.propose(TrimTopic(topic.state.uid, start))
        return topic.state.start_offset

    async def delete_topic(self, name: str, uid: int = 0) -> int:
        """The topic that has the name now, or only the one with this uid; returns since which index."""
        try:
            topic = await self._find_current(name)
        except RequestTimeout as error:
            raise NotLeader(f"nothing was deleted: {error.message}") from error
        if uid not in (0, topic.state.uid):
            raise another_topic(name, uid)
        # One that is stale was deleted meanwhile: by another, or by an earlier attempt of this very call.
        return (await self.metadata.propose(DeleteTopic(topic.state.uid))).index

    async def _find_current(self, name: str) -> TopicLog:
        """The topic that has the name, by all that was committed anywhere before now."""
        if not self.metadata.is_alone:
            await self.metadata.read_index(LOOKUP_SECONDS)
        return await self.find(name)

    async def describe(self, topic: TopicLog, *, with_segments: bool = True) -> TopicDescription:
        if topic.leads and not topic.awaits_recovery:
            try:
                await topic.led.ensure_open()
            except IsterError as error:
                log.warning("described without its open segment: %s", error)
        found = describe_topic(self, topic, await ask_about(self, topic) if with_segments else None)
        if with_segments and found.end_is_known and topic.leads:
            try:
                await topic.reads.confirmed_end()
            except IsterError:  # this node may have been replaced, and not have heard of it
                found = msgspec.structs.replace(found, end_is_known=False)
        return found

    # For tests.

    def revoke_leases(self, topic: str = "") -> None:
        """Hold no lease until `restore_leases`, whatever the metadata says; or none of one topic."""
        self._revoked.add(normalise_topic(topic) if topic else "")
        self.sync_leases()

    def restore_leases(self) -> None:
        self._revoked.clear()
        self.sync_leases()


async def first_of(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
