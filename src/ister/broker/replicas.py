"""Replication, as a node has it: what it leads, what it follows, what it recovers, tied to its topics.

Metadata says who leads and who follows; nothing here decides that. What is applied is told here in its order, on
the event loop: a recovery that began, a seal, a topic that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.broker.sealing import make_recovery_seal
from ister.broker.standing import Standings
from ister.metadata.commands import SealSegment
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.protocol.peer import PeerKind
from ister.replication.completing import Completions
from ister.replication.copies import Copies, Place
from ister.replication.counters import ReplicationCounters
from ister.replication.failover_events import ProposeSeal
from ister.replication.leader import Streams
from ister.replication.recovering import Recoveries
from ister.replication.watching import Watch
from ister.wal.producers import ProducerRow

if TYPE_CHECKING:
    from ister.broker.broker import Broker
    from ister.broker.topic_log import TopicLog

log = logging.getLogger("ister.broker.replicas")

LOOK_SECONDS = 0.5


class NodeReplication:
    """One for each broker, from its start on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.metadata: MetadataStore = broker.metadata
        self._peers = broker.metadata.peers
        self.member = broker.metadata.member
        self.counters = ReplicationCounters()
        self.streams = Streams(self._peers, self.counters)
        self.copies = Copies(
            self.member,
            broker.disk,
            broker.clock,
            broker.metadata,
            broker.sealed,
            self.ask,
            broker.commits,
            broker.leases,
            broker.hot,
            self,
            broker.identity_of,
            self.counters,
        )
        self.recoveries = Recoveries(self, broker.spawn, self.counters)
        self.completions = Completions(self.copies, broker.metadata, self.member, broker.spawn)
        self._watch = Watch(self, broker.config.failover_after_ms / 1000)
        self._peers.replicate(self.streams, self.copies.received)
        self.standings = Standings(broker, self)

    async def serve(self, kind: int, header: bytes) -> bytes:
        """What another node asks about this one's copies."""
        if kind == PeerKind.STANDING:
            return self.standings.serve(header)
        return await self.copies.serve(kind, header)

    async def _look_after_leading(self) -> None:
        """What no message triggers: followers that are lost, appends that wait for too few of them."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now, monotonic = asyncio.get_running_loop().time(), self._broker.clock.monotonic()
            self.standings.look(now)
            for topic in list(self._broker.topics.values()):
                if topic.leads:
                    topic.check_quorum(monotonic)
                    topic.check_replicas(now)

    def start(self) -> None:
        """This start is announced: what is known here is no older than this node's last life."""
        self._broker.spawn(self._look_after_leading())
        self._broker.spawn(self._watch.run())
        self._broker.spawn(self.completions.look_at_all())

    async def stop(self) -> None:
        await self.copies.close()

    # What a recovery needs.

    async def ask(self, member: int, kind: PeerKind, header: bytes, timeout: float) -> bytes:
        answer = await self._peers.request(member, kind, header, timeout=timeout)
        return answer.header

    def make_recovery_seal(
        self, topic: TopicState, found: ProposeSeal, producers: list[ProducerRow], last_append_time_us: int
    ) -> SealSegment:
        return make_recovery_seal(self._broker.storage, topic, found, producers, last_append_time_us)

    def recover(self, topic_uid: int) -> None:
        """The open segment of this topic has to be recovered, and this node knows it at first hand."""
        topic = self.metadata.state.topic_by_uid(topic_uid)
        if topic is not None:
            self._watch.wants(topic)

    # What the copies need of the topics.

    def _topic(self, topic_uid: int) -> TopicLog | None:
        state = self.metadata.state.topic_by_uid(topic_uid)
        return self._broker.topics.get(state.name) if state is not None else None

    async def stop_leading(self, topic_uid: int, segment_uid: int) -> int:
        topic = self._topic(topic_uid)
        return await topic.fenced(segment_uid) if topic is not None else 0

    def follower_committed(self, topic_uid: int) -> None:
        topic = self._topic(topic_uid)
        if topic is not None:
            topic.follower_committed()

    # What the metadata tells.

    def recovery_began(self, topic: TopicState) -> None:
        segment = topic.open_segment
        self.recoveries.begun(segment.uid, segment.recovery, segment.coordinator)
        self.standings.recovery_began(topic.uid)
        self._watch.recovery_began(topic)

    def sealed(self, topic: TopicState, segment: SegmentState) -> None:
        assert segment.end_offset is not None
        self.recoveries.sealed(segment.uid, segment.end_offset)
        if len(segment.replicas) > 1 or segment.recovery:
            place = Place(topic, segment, self._broker.identity_of(topic, segment))
            self.completions.sealed(place)

    def deleted(self, topic: TopicState) -> None:
        self.recoveries.forget(topic.open_segment.uid)
        self._broker.spawn(self.copies.forget({segment.uid for segment in topic.segments}))
