"""How what this node leads, recovers and writes is, told to the others; and what the others say of theirs.

How its copies of sealed segments are is in the metadata (`metadata.copies`).

For views that people are shown, and nothing else: nobody decides by it. A node that does not answer at once
is left out, and what it has is then not known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ister.asking import ask_each
from ister.io.clock import monotonic
from ister.metadata.state import TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind
from ister.protocol.standing import AskStanding, FollowerStanding, RecoveryStanding, Standing, TopicFault

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
    from ister.broker.node.replicas import NodeReplication
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.view.standing")

ASK_SECONDS = 1.0
"""Shorter than a person's view may take: one that is passed on to another node has to come back in time."""
PASSING_SECONDS = 1.0
"""What is over by then is not worth a word: at every seal the copies are looked at."""
SEGMENTS_TOLD = 5000
TOPICS_TOLD = 100


class Standings:
    def __init__(self, broker: Broker, replication: NodeReplication) -> None:
        self._broker = broker
        self._replication = replication
        self._began_us: dict[int, int] = {}
        """Topics whose open segment is being recovered, and since when the last one has begun."""

    def look(self) -> None:
        """Now and then."""
        for uid in list(self._began_us):
            topic = self._broker.metadata.state.topic_by_uid(uid)
            if topic is None or not topic.open_segment.recovery:
                del self._began_us[uid]

    def recovery_began(self, topic_uid: int) -> None:
        self._began_us[topic_uid] = self._broker.clock.now_us()

    def recovering_since_us(self, topic_uid: int) -> int | None:
        """None if that was before this node's start."""
        return self._began_us.get(topic_uid)

    # This node's own.

    def serve(self, header: bytes) -> bytes:
        return encode_header(self.own(decode_header(AskStanding, header).topic_uid))

    def own(self, topic_uid: int = 0) -> Standing:
        state = self._broker.metadata.state
        topic = state.topic_by_uid(topic_uid)
        return Standing(
            incomplete=[],
            incomplete_count=0,
            damaged=[],
            unmendable=[],
            followers=self._followers(topic_uid),
            recoveries=[
                RecoveryStanding(*found)
                for found in self._replication.recoveries.described()[:TOPICS_TOLD]
                if topic_uid in (0, found[0])
            ],
            faults=self._faults(topic_uid),
            notes=self._aside(topic) if topic is not None else [],
            disk=self._replication.copies.followers.disk_fault or self._replication.completions.disk_fault,
        )

    def _aside(self, topic: TopicState) -> list[str]:
        node_id, aside = self._broker.config.node_id, self._replication.sealed_copies.aside
        return [
            f"node {node_id} came back with offsets {tail.from_offset} to {tail.end_offset - 1} of "
            f"{topic.key_of(segment)}, which were given up: they are set aside in its {tail.file}"
            for segment in topic.segments
            for tail in aside.get(segment.uid, ())
        ][:TOPICS_TOLD]

    def _led(self, topic_uid: int) -> Iterable[TopicLog]:
        if not topic_uid:
            return [topic for topic in self._broker.topics.values() if topic.leads]
        state = self._broker.metadata.state.topic_by_uid(topic_uid)
        topic = self._broker.topics.get(state.name) if state is not None else None
        return [topic] if topic is not None and topic.leads else []

    def _followers(self, topic_uid: int) -> list[FollowerStanding]:
        found: list[FollowerStanding] = []
        now = monotonic()
        for topic in self._led(topic_uid):
            for behind in topic.facts.followers_behind():
                if topic_uid or now - behind.since >= PASSING_SECONDS:
                    uid = topic.state.open_segment.uid
                    found.append(
                        FollowerStanding(topic.state.uid, uid, behind.member, behind.lacks, behind.why)
                    )
        return found[:SEGMENTS_TOLD]

    def _faults(self, topic_uid: int) -> list[TopicFault]:
        led = [topic for topic in self._led(topic_uid) if topic.facts.trouble]
        return [TopicFault(topic.state.uid, topic.facts.trouble) for topic in led[:TOPICS_TOLD]]

    # The others'.

    async def gather(self, members: Iterable[int], topic_uid: int = 0) -> dict[int, Standing]:
        """What these members say of themselves, by member; of those that say nothing in time, nothing."""
        header = encode_header(AskStanding(topic_uid))

        async def ask(member: int) -> Standing:
            answer = await self._replication.ask(member, PeerKind.STANDING, header, ASK_SECONDS)
            return decode_header(Standing, answer)

        metadata = self._broker.metadata
        others = [m for m in dict.fromkeys(members) if m != metadata.member and metadata.is_alive(m)]
        told = await ask_each(others, ask, ASK_SECONDS)
        return {**told.answers, metadata.member: self.own(topic_uid)}
