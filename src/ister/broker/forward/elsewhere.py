"""What this node does not have, asked of a node that does.

The request goes with the metadata index at which that node got the segment, and waits there until it is
applied (H3). Since every node that passes a request on again does so for a later handoff, no two can send it
to each other for ever.

Of a sealed segment any replica may answer, so the next one is asked where one fails; of an open one the
leader, or first a follower if the reader allows that. Only reads go this way: one that was lost on the way
may be asked for again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from ister.asking import ask_in_turn
from ister.broker.forward.forwarding import REQUEST_SECONDS
from ister.broker.topic.location import Trimmed
from ister.broker.topic.topic_log import TopicLog
from ister.client.connection import Answer
from ister.errors import (
    ConnectionFailed,
    CorruptSegment,
    NodeUnreachable,
    NotLeader,
    OffsetOutOfRange,
    RequestTimeout,
    StorageFailed,
)
from ister.io.clock import monotonic
from ister.metadata.state import SegmentState
from ister.metadata.store import MetadataStore
from ister.metrics import Counter
from ister.protocol import messages
from ister.protocol.codec import encode_header
from ister.protocol.messages import Kind
from ister.protocol.peer import node_of

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

CONFIRM_SECONDS = 2.0
"""How long an answer that an old view could make wrong waits for the metadata leader."""
MOVED_SECONDS = 3.0
"""How long somebody who asks for what is just being handed off is kept waiting."""
_MOVED_PAUSE_SECONDS = 0.02
_PASSED_OVER = (ConnectionFailed, NodeUnreachable, NotLeader, RequestTimeout, CorruptSegment, StorageFailed)
"""Another node may answer. A read that was lost on the way is simply asked for again."""


class Looking:
    """One search for whoever has what is asked for, which may change meanwhile.

    Each look is an `async with looking.at(topic)` that returns what it finds. It goes by instead, and the
    next one is due, after a handoff came in between, for a while; and once where an offset seems to lie past
    the end: that is said only by a node that knows all that is committed, since a seal may be applied of
    which it has not heard.
    """

    def __init__(self, metadata: MetadataStore, offset: int | None) -> None:
        self._metadata = metadata
        self._offset = offset
        self._until = monotonic() + MOVED_SECONDS
        self._is_current = False
        self._topic: TopicLog | None = None

    def at(self, topic: TopicLog) -> Looking:
        self._topic = topic
        return self

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Whether to look again."""
        if isinstance(error, NotLeader) and monotonic() < self._until:
            await asyncio.sleep(_MOVED_PAUSE_SECONDS)
            return True
        if isinstance(error, OffsetOutOfRange) and not self._is_final:
            await self._metadata.read_index(CONFIRM_SECONDS)
            self._is_current = True
            return True
        return False

    @property
    def _is_final(self) -> bool:
        if self._is_current or self._offset is None or self._topic is None:
            return True
        return isinstance(self._topic.places.locate(self._offset), Trimmed)


class Elsewhere:
    """The way to the other nodes, for requests that this one cannot answer alone."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.forwards = Counter(
            "forwarded_requests_total", "Requests passed on to the node that must answer."
        )

    async def ask(
        self, segment: SegmentState, kind: Kind, request: msgspec.Struct, wait_s: float = 0.0
    ) -> Answer:
        """Have a node answer that has the segment; an error names it. Of a sealed one any replica may."""
        self.forwards.add()
        header = encode_header(request)
        sources = self._sources(segment, isinstance(request, messages.Fetch) and request.read_from_any)
        told = await ask_in_turn(
            sources,
            lambda member: self._broker.forwarder.request(
                member, kind, header, timeout_s=REQUEST_SECONDS + wait_s, wait_s=wait_s
            ),
            passed_over=_PASSED_OVER,
        )
        for answer in told.answers.values():
            return answer
        why = told.faults[sources[-1]]
        if isinstance(why, ConnectionFailed):
            raise NodeUnreachable(f"node {node_of(sources[-1])} was lost: {why.message}") from why
        raise why

    def index_of(self, segment: SegmentState) -> int:
        """What the node that is asked must know: that the segment is there, or that it is sealed."""
        return self._broker.metadata.state.applied_index if segment.is_sealed else segment.uid

    def _sources(self, segment: SegmentState, from_any: bool) -> list[int]:
        metadata = self._broker.metadata
        if not segment.is_sealed:
            followers = [m for m in segment.replicas if m != segment.leader and metadata.is_alive(m)]
            if not from_any or not followers or metadata.member in segment.replicas:
                return [segment.leader]
            # One for each node that has no replica, so that not all of them ask the same.
            return [followers[self._broker.config.node_id % len(followers)], segment.leader]
        others = [m for m in segment.replicas if m != metadata.member]
        others.sort(key=lambda member: (not metadata.is_alive(member), member != segment.leader))
        return others or [segment.leader]

    def looking(self, offset: int | None = None) -> Looking:
        """For one request; `offset` is what it asks for, if that is an offset."""
        return Looking(self._broker.metadata, offset)


def no_copy(topic: TopicLog, segment: SegmentState) -> NodeUnreachable:
    return NodeUnreachable(f"this node has no whole copy of {topic.state.key_of(segment)} yet")
