"""The commands of the text protocol, done by this node: what each of them means here.

Topics may be called as people call them (`logs`, `ns/logs`). A first PUT makes the topic where a first append
does, and only there. STATE shows what this node knows; that there is no topic is confirmed first.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ister.broker.text.get_service import GetService, Taken
from ister.broker.text.node import TextNode
from ister.broker.text.put_service import PutService
from ister.broker.text.raft_view import RaftView
from ister.errors import UnknownTopic
from ister.metadata.state import TopicState
from ister.names import normalise_topic
from ister.protocol.peer import PeerKind, node_of

CONFIRM_SECONDS: Final = 3.0


class TextService:
    def __init__(self, node: TextNode, gets: GetService, puts: PutService) -> None:
        self._node = node
        self._gets = gets
        self._puts = puts
        self._raft = RaftView(node)

    async def serve_peer(self, kind: int, header: bytes, payload: bytes) -> bytes:
        """Answer what another node asks for a client of its own."""
        part = self._raft if kind == PeerKind.RAFT_MATCHES else self._gets
        return await part.serve_peer(kind, header, payload)

    async def register(self, topic: str) -> None:
        await self._node.ensure_topic(normalise_topic(topic))

    async def put(self, topic: str, payload: bytes) -> None:
        await self._puts.put(normalise_topic(topic), payload)

    async def take(self, topic: str) -> Taken | None:
        name = normalise_topic(topic)
        await self._confirm(name)
        return await self._gets.take(name)

    def done(self, taken: Taken) -> None:
        self._gets.done(taken)

    def returned(self, taken: Taken) -> None:
        self._gets.returned(taken)

    async def _confirm(self, name: str) -> None:
        """That there is no such topic is said only by a node that knows all that was committed."""
        if name not in self._node.metadata.state.topics:
            await self._node.metadata.read_index(CONFIRM_SECONDS)

    async def state(self, topic: str) -> bytes:
        name = normalise_topic(topic)
        await self._confirm(name)
        found = self._node.metadata.state.topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic {name}")
        return msgspec.json.encode(topic_object(found))

    async def metrics(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(await self._raft.show()), indent=2)


def topic_object(topic: TopicState) -> dict[str, Any]:
    """A topic as STATE shows it. Segments that retention dropped are not there any more."""
    sealed = {
        str(segment.segment): segment.data_end - segment.base_offset
        for segment in topic.segments
        if segment.data_end is not None
    }
    return {
        "current_segment": topic.open_segment.segment,
        "leader_node": node_of(topic.open_segment.leader),
        # How many records the sealed segments hold, from the topic's beginning.
        "last_sealed_entry_offset": topic.open_segment.base_offset,
        "sealed_segments": sealed,
        "segment_leaders": {str(segment.segment): node_of(segment.leader) for segment in topic.segments},
    }
