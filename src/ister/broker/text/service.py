"""The commands of the text protocol, done by this node: what each of them means here.

Topics may be called as people call them (`logs`, `ns/logs`). A first PUT makes the topic where a first append
does, and only there. STATE and METRICS show what this node knows; that there is no topic is confirmed first.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ister.broker.text.get_service import GetService, Taken
from ister.broker.text.node import TextNode
from ister.broker.text.put_service import PutService
from ister.errors import UnknownTopic
from ister.metadata.state import TopicState
from ister.names import normalise_topic
from ister.protocol.peer import node_of
from ister.raft.core import RaftStatus
from ister.raft.ready import Role

CONFIRM_SECONDS: Final = 3.0


class TextService:
    def __init__(self, node: TextNode, gets: GetService, puts: PutService) -> None:
        self._node = node
        self._gets = gets
        self._puts = puts

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

    def metrics(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self._node.raft_metrics()), indent=2)


_ROLES: Final = {
    Role.LEADER: "Leader",
    Role.FOLLOWER: "Follower",
    Role.CANDIDATE: "Candidate",
    Role.PRE_CANDIDATE: "Candidate",
}


def raft_object(status: RaftStatus) -> dict[str, Any]:
    """The metadata's Raft as METRICS shows it: nodes by their ids, without their disks."""
    membership = status.membership
    is_learner = status.node_id in membership.learners
    return {
        "state": "Learner" if is_learner else _ROLES[status.role],
        "current_term": status.term,
        "current_leader": node_of(status.leader) or None,
        "membership": {
            "voters": [node_of(member) for member in membership.voters],
            "learners": [node_of(member) for member in membership.learners],
        },
        "last_log_index": status.last_index,
        "last_applied": status.applied,
        "snapshot": {"index": status.snapshot_index} if status.snapshot_index else None,
    }


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
