"""Replication, as a node has it: what it leads, what it follows, what it recovers, tied to its topics.

Metadata says who leads and who follows; nothing here decides that. What is applied is told here in its order,
on the event loop: a recovery that began, a seal, a topic that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.broker.topic.sealing import make_recovery_seal
from ister.broker.view.standing import Standings
from ister.errors import NotLeader, StorageFailed, UnknownTopic
from ister.io.clock import monotonic
from ister.metadata.commands import SealSegment
from ister.metadata.placement import Why
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.replication import AskReach, Copy, ReachAnswer
from ister.replication.copies.completing import Completions
from ister.replication.copies.copies import Copies
from ister.replication.copies.guests import Guests
from ister.replication.copies.leaving import LeavingCopies
from ister.replication.copies.only_copies import OnlyCopies
from ister.replication.copies.repair import Repairs
from ister.replication.copies.reporting import Reporting
from ister.replication.copies.scrubbing import Scrubbing
from ister.replication.copies.sealed_copies import SealedCopies
from ister.replication.counters import ReplicationCounters
from ister.replication.places import Place
from ister.replication.recovery.failover_events import ProposeSeal
from ister.replication.recovery.recovering import Recoveries
from ister.replication.recovery.watching import Watch
from ister.replication.stream.follower import Known
from ister.replication.stream.leader import Streams
from ister.wal.producers import ProducerRow

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.node.replicas")

LOOK_SECONDS = 0.5
HAND_OVER_SECONDS = 3.0


class NodeReplication:
    """One for each broker, from its start on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.metadata: MetadataStore = broker.metadata
        self._peers = broker.metadata.peers
        self.member = broker.metadata.member
        self.counters = ReplicationCounters()
        self.follower_lag = 0
        """Of the segments that this node leads: how many committed records the slowest follower lacks."""
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
        self.sealed_copies = SealedCopies(
            self.copies,
            self.member,
            broker.disk,
            broker.clock,
            broker.sealed,
            bytes_per_second=broker.config.repair_bytes_per_second,
        )
        self.completions = Completions(
            self.copies, self.sealed_copies, broker.metadata, self.member, broker.spawn
        )
        self.reporting = Reporting(broker.metadata, self.member, self.copies.place, self.completions.state_of)
        self.completions.on_change = self.reporting.look_at
        self.copies.on_damage = self.completions.suspect
        self.copies.on_failed_read = self.completions.may_pass
        self.scrubbing = Scrubbing(self, broker.disk, broker.clock, broker.config.scrub_bytes_per_second)
        self.only_copies = OnlyCopies(self.scrubbing, broker.config.repair_bytes_per_second)
        self.guests = Guests(
            self.copies,
            self.sealed_copies,
            self.completions,
            self.only_copies,
            broker.metadata,
            self.member,
            lambda: broker.upkeep.may_remove,
            self.let_go,
        )
        self.leaving = LeavingCopies(self, self.guests.has)
        self.repairs = Repairs(self, broker.config.repair_after_ms / 1000, broker.spawn)
        broker.metrics.add(
            self.guests.copied,
            self.repairs.repaired,
            self.repairs.failed,
            self.scrubbing.bytes,
            self.scrubbing.rounds,
            self.scrubbing.findings,
            self.completions.found_corrupt,
            self.completions.replaced,
        )
        self._watch = Watch(self, broker.config.failover_after_ms / 1000)
        self._peers.replicate(self.streams, self.copies.followers.received)
        self.standings = Standings(broker, self)

    async def serve(self, kind: int, header: bytes) -> bytes:
        """What another node asks about this one's copies."""
        if kind == PeerKind.STANDING:
            return self.standings.serve(header)
        if kind == PeerKind.COPY and not (request := decode_header(Copy, header)).recovery:
            return encode_header(await self.guests.asked(request))
        if kind == PeerKind.REACH:
            return encode_header(await self.reach(decode_header(AskReach, header)))
        return await self.copies.serve(kind, header)

    async def reach(self, request: AskReach) -> ReachAnswer:
        """How far this node's copy of a sealed segment goes, as of now."""
        place = await self.copies.find(request.topic_uid, request.segment_uid, request.index)
        segment, key = place.segment, place.identity.key
        if segment.data_end is None:
            raise NotLeader(f"{key} is open, as far as this node knows")
        if self.member not in segment.replicas:
            raise UnknownTopic(f"this node, on this disk, has no copy of {key}")
        if self.completions.is_whole(segment.uid):
            return ReachAnswer(segment.data_end, segment.end_position, segment.last_append_time_us)
        try:
            return await self.sealed_copies.reach(place)
        except OSError as error:
            raise StorageFailed(f"the disk of this node failed: {error}") from error

    async def _look_after_leading(self) -> None:
        """What no message triggers: followers that are lost, appends that wait for too few of them."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = monotonic()
            self.standings.look()
            lag = 0
            for topic in list(self._broker.topics.values()):
                if topic.leads:
                    topic.leadership.check_quorum(now)
                    topic.leadership.check_replicas(now)
                    lag = max(lag, topic.facts.follower_lag)
            self.follower_lag = lag

    def start(self) -> None:
        """This start is announced: what is known here is no older than this node's last life."""
        self.completions.look_at_all()
        for work in (
            self._look_after_leading(),
            self._watch.run(),
            self.guests.sweep(),
            self.repairs.run(),
            self.reporting.run(),
            self.leaving.run(),
            self.scrubbing.run(),
        ):
            self._broker.spawn(work, vital=True)

    async def hand_over(self) -> None:
        """Before a stop: let others lead what has other replicas, so that nobody has to find out that this
        node is gone. What cannot be handed over in time is recovered by them."""
        leading = [topic for topic in self._broker.topics.values() if topic.leadership.has_followers]
        if leading and not self._broker.metadata.has_majority:
            log.warning("too few voters answer: what this node leads is not handed over, others recover it")
            return
        for topic in leading:
            topic.handing_off.start(Why.STOPPING)
        try:
            async with self._broker.metadata.proposals.needs_majority(HAND_OVER_SECONDS):
                for topic in leading:
                    await topic.handing_off.finished()
        except TimeoutError:
            log.warning("not all segments were handed over before the stop; others recover them")

    async def stop(self) -> None:
        await self.guests.close()
        await self.only_copies.close()
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

    def silent_for(self, leader: int) -> float:
        """For how long the leader of a segment does not answer, at least, in seconds; 0 if it does."""
        return self._watch.silent_for(leader)

    # What the copies need of the topics.

    def _topic(self, topic_uid: int) -> TopicLog | None:
        state = self.metadata.state.topic_by_uid(topic_uid)
        return self._broker.topics.get(state.name) if state is not None else None

    async def stop_leading(self, topic_uid: int, segment_uid: int) -> Known:
        topic = self._topic(topic_uid)
        return await topic.leadership.fenced(segment_uid) if topic is not None else Known()

    def follower_committed(self, topic_uid: int) -> None:
        topic = self._topic(topic_uid)
        if topic is not None:
            topic.known.wake_waiters()

    async def look_at_object(self, place: Place) -> bool | None:
        """Whether the history has a segment that nobody is to have a copy of any more (C4). None if that is
        not known."""
        history = self._broker.history
        return None if history is None else await history.look_at(place)

    # What the metadata tells.

    def recovery_began(self, topic: TopicState) -> None:
        segment = topic.open_segment
        self.recoveries.begun(segment.uid, segment.recovery, segment.coordinator)
        self.standings.recovery_began(topic.uid)
        self._watch.recovery_began(topic)

    def opened(self, topic: TopicState) -> None:
        """The topic has another open segment: where it is to be followed, its log is made (P3)."""
        segment = topic.open_segment
        if self.member in segment.replicas and segment.leader != self.member:
            self.copies.followers.opened(topic.uid, segment.uid)

    def sealed(self, topic: TopicState, segment: SegmentState) -> None:
        assert segment.end_offset is not None
        self.recoveries.sealed(segment.uid, segment.end_offset)
        is_known = segment.is_whole_at(self.member) or self.member not in segment.replicas
        is_known = is_known and not self.completions.is_damaged(segment.uid)  # found while it was open
        if not is_known or len(segment.replicas) > 1 or segment.recovery or segment.lost_from is not None:
            place = Place(topic, segment, self._broker.identity_of(topic, segment))
            self.completions.sealed(place)
            if segment.recovery and self.member not in segment.replicas:
                # It was to be a substitute, or the recovery went on without it.
                self.let_go(topic.uid, segment.uid)

    def replicas_changed(self, topic: TopicState, segment: SegmentState, before: list[int]) -> None:
        """Of a sealed segment, by a repair (F4)."""
        place = Place(topic, segment, self._broker.identity_of(topic, segment))
        self.only_copies.forget(segment.uid)
        if self.member in segment.replicas and self.member not in before:
            self.completions.joined(place, is_whole=self.guests.joined(segment.uid))
        elif self.member in before and self.member not in segment.replicas:
            self.completions.left(topic.uid, segment.uid)
            self.let_go(topic.uid, segment.uid)

    def trimmed(self, topic: TopicState) -> None:
        self.completions.trimmed(topic)

    def restored(self) -> None:
        """Much of the metadata came at once: what was sealed, is being recovered, or is not kept here any
        more, was not told."""
        self.recoveries.restored()
        self._watch.look_at_all()
        for topic in self._broker.topics.values():
            if topic.state.open_segment.recovery:
                topic.leadership.recovery_began()
            self.opened(topic.state)
        followed = set(self.metadata.state.followed_by(self.member).values())
        self._broker.spawn(self.copies.forget_all_but(followed))
        if self._broker.upkeep.may_remove:
            for place in self.guests.now_replicas():
                self.completions.joined(place, is_whole=self.guests.joined(place.segment.uid))
            self.completions.look_at_all()
            self._broker.spawn(self._broker.upkeep.let_go_of_dropped())

    def let_go(self, topic_uid: int, segment_uid: int) -> None:
        """There may be files of a sealed segment that this node is no replica of."""
        self.leaving.add(topic_uid, segment_uid)

    def deleted(self, topic: TopicState) -> None:
        self.recoveries.forget(topic.open_segment.uid)
        self.completions.deleted(topic)
        self._broker.spawn(self.copies.forget({segment.uid for segment in topic.segments}))
