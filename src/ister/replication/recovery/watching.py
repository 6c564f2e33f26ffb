"""Who begins a recovery, and when: suspicion by missed answers, and turns.

A segment whose leader does not answer for `failover_after` is recovered by the first of its other replicas
that this node believes alive. One whose recovery was begun, and does not come to an end in three times that,
is by the next replica behind its coordinator, who has no more time for beginning again. Every node decides by
what it sees: that two decide the same costs time, not records. A leader that was restarted, or lost its
segment otherwise, knows it at first hand and begins at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import NamedTuple, Protocol

from ister.io.clock import monotonic
from ister.metadata.state import TopicState
from ister.metadata.store import MetadataStore
from ister.protocol.peer import node_of
from ister.replication.recovery.recovering import Recoveries

log = logging.getLogger("ister.replication.watch")

LOOK_SECONDS = 0.1
PATIENCE = 3


class Watched(Protocol):
    metadata: MetadataStore
    member: int
    recoveries: Recoveries


class _Recovering(NamedTuple):
    segment_uid: int
    coordinator: int
    since: float
    """When this coordinator has first begun; or when this node last had its turn."""


class Watch:
    def __init__(self, node: Watched, failover_after: float) -> None:
        self._node = node
        self._after = failover_after
        self._silent_since: dict[int, float] = {}
        """Members that do not answer, or were restarted and find no majority; and since when."""
        self._recovering: dict[int, _Recovering] = {}
        """By topic, those whose open segment is being recovered, by whomever."""

    async def run(self) -> None:
        self.look_at_all()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look(monotonic())

    def look_at_all(self) -> None:
        """After a start, or when much of the metadata came at once: who had begun a recovery may be gone."""
        for topic in self._node.metadata.state.topics.values():
            if topic.open_segment.recovery:
                self.recovery_began(topic)

    def silent_for(self, leader: int) -> float:
        """For how long a member that leads does not answer, at least, in seconds; 0 if it does."""
        since = self._silent_since.get(leader)
        return monotonic() - since if since is not None else 0.0

    def wants(self, topic: TopicState) -> None:
        """This node led the segment, and does not any more. If another recovers it, that is waited for."""
        segment = topic.open_segment
        if not segment.recovery:
            self._node.recoveries.begin(topic)
        else:
            self.recovery_began(topic)

    def recovery_began(self, topic: TopicState) -> None:
        segment, known = topic.open_segment, self._recovering.get(topic.uid)
        if known is None or known[:2] != (segment.uid, segment.coordinator):
            now = monotonic()
            self._recovering[topic.uid] = _Recovering(segment.uid, segment.coordinator, now)

    def _look(self, now: float) -> None:
        metadata = self._node.metadata
        state = metadata.state
        silent = {m for m in state.leaders() if not metadata.is_alive(m) or metadata.is_to_announce(m)}
        self._silent_since = {m: self._silent_since.get(m, now) for m in silent}
        for member, since in self._silent_since.items():
            if now - since >= self._after:
                # Who leads the metadata and does not hear it knows that it can end nothing by itself. Who is
                # before this node in the line may hear it all the same, and see nothing to do.
                is_cut_off = metadata.is_leader and now - since >= PATIENCE * self._after
                self._stand_in_for(member, is_cut_off=is_cut_off)
        for uid, known in list(self._recovering.items()):
            topic = state.topic_by_uid(uid)
            if topic is None or not topic.open_segment.recovery:
                del self._recovering[uid]
            elif now - known.since >= PATIENCE * self._after * self._turn(topic):
                self._recovering[uid] = known._replace(since=now)
                self._node.recoveries.begin(topic)

    def _stand_in_for(self, leader: int, *, is_cut_off: bool) -> None:
        state = self._node.metadata.state
        for uid in list(state.led_by(leader)):
            topic = state.topic_by_uid(uid)
            if topic is None or topic.open_segment.recovery:
                continue
            is_replica = self._node.member in topic.open_segment.replicas
            if self._is_first(topic) or (is_cut_off and is_replica and len(topic.open_segment.replicas) > 1):
                if not self._node.recoveries.is_running(topic.open_segment.uid):
                    key = topic.key_of(topic.open_segment)
                    log.warning("node %d, which leads %s, does not answer", node_of(leader), key)
                self._node.recoveries.begin(topic)

    def _is_first(self, topic: TopicState) -> bool:
        """Whether this node is the first of the other replicas that is believed alive."""
        segment, metadata = topic.open_segment, self._node.metadata
        if len(segment.replicas) < 2:
            return False
        alive = [m for m in segment.replicas if m != segment.leader and metadata.is_alive(m)]
        return bool(alive) and alive[0] == self._node.member

    def _turn(self, topic: TopicState) -> float:
        """1 of the first replica behind the coordinator that is believed alive, 2 of the next: who is before
        this node may be alive, and unable to begin anything."""
        segment, metadata = topic.open_segment, self._node.metadata
        replicas = segment.replicas
        place = replicas.index(segment.coordinator) + 1 if segment.coordinator in replicas else 0
        order = [*replicas[place:], *replicas[:place]]
        alive = [m for m in order if metadata.is_alive(m)]
        return alive.index(self._node.member) + 1 if self._node.member in alive else math.inf
