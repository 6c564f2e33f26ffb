"""The state machine: the cluster, its nodes, its topics.

Deterministic and total (R3): no clock, no I/O, no iteration over unordered sets; an unknown or impossible
command has a result that says so. Applying the same commands in the same order gives the same bytes.

Here is what is kept, and what is derived from it for quick answers; what each command does to it is in
`applying`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ister.errors import invariant
from ister.metadata.applying import apply_command
from ister.metadata.commands import Command, Outcome, Result
from ister.metadata.drains import Drains, DrainState
from ister.metadata.moves import Moves, MoveState
from ister.metadata.nodes import NodeState, is_active
from ister.metadata.shapes import NOTHING, Shapes, what_lacks
from ister.metadata.topics import LostRange, SegmentState, TopicState

__all__ = ["ClusterState", "LostRange", "NodeState", "SegmentState", "TopicState"]


class _Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """The whole state, as it is kept. Grows at the end."""

    applied_index: int
    cluster_id: str
    topics: list[TopicState]
    nodes: list[NodeState] = []
    gone: list[int] = []
    reports: list[tuple[int, int]] = []
    moves: list[MoveState] = []
    drains: list[DrainState] = []
    used: dict[str, int] = {}


class ClusterState:
    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        """Empty until the cluster was founded; then for ever the same."""
        self.topics: dict[str, TopicState] = {}
        self.nodes: dict[int, NodeState] = {}
        self.gone: list[int] = []
        """Members that were removed or replaced: never to come back. Their nodes may, on other disks (I2)."""
        self.reports: dict[int, int] = {}
        """By member: the number of the last report of its copies, of the start that is known (C2)."""
        self.used: dict[str, int] = {}
        """The largest of each shape that was ever applied: a build that lacks one cannot have this state."""
        self.moves: Moves = Moves()
        self.drains: Drains = Drains()
        self.topics_by_uid: dict[int, TopicState] = {}
        """The same topics, in the order in which they were made."""
        self._led: dict[int, dict[int, str]] = {}
        """By member: the keys of the open segments that it leads, by topic. Derived, for a quick answer."""
        self._followed: dict[int, dict[int, int]] = {}
        """By member: the uids of the open segments that it only follows, by topic. Derived too."""

    def topic_by_uid(self, uid: int) -> TopicState | None:
        return self.topics_by_uid.get(uid)

    def leaders(self) -> list[int]:
        """The members that lead an open segment."""
        return [member for member, led in self._led.items() if led]

    def led_by(self, member: int) -> dict[int, str]:
        """The keys of the open segments that a member leads, by topic uid."""
        return self._led.get(member, {})

    def followed_by(self, member: int) -> dict[int, int]:
        """The uids of the open segments that a member has a replica of and does not lead, by topic uid."""
        return self._followed.get(member, {})

    def is_active(self, member: int) -> bool:
        """Whether a node is in the cluster on this very disk, and has said where clients find it."""
        return is_active(self.nodes, member)

    @property
    def active_members(self) -> list[int]:
        """All that may lead a segment, in the order of their numbers."""
        return sorted(node.member for node in self.nodes.values() if node.client_port > 0)

    def _note_open(self, topic: TopicState) -> None:
        opened = topic.open_segment
        self._led.setdefault(opened.leader, {})[topic.uid] = topic.key_of(opened)
        for member in opened.replicas:
            if member != opened.leader:
                self._followed.setdefault(member, {})[topic.uid] = opened.uid

    def _note_not_open(self, topic: TopicState) -> None:
        opened = topic.open_segment
        self._led.get(opened.leader, {}).pop(topic.uid, None)
        for member in opened.replicas:
            self._followed.get(member, {}).pop(topic.uid, None)

    def who_lacks(self, needed: Shapes) -> tuple[int, str]:
        """The first node whose build does not know all of it, and what it lacks; 0 if there is none."""
        for node in self.nodes.values():
            if node.knows and (lacks := what_lacks(node.knows, needed)):
                return node.node_id, lacks
        return 0, ""

    def all_know(self, needed: Shapes) -> bool:
        """Whether this was applied wherever a node of this cluster is."""
        return any(node.knows for node in self.nodes.values()) and not self.who_lacks(needed)[0]

    def apply(self, index: int, command: Command | None, needed: Shapes = NOTHING) -> Outcome:
        """`needed` is what a build has to know for it: what any node lacks changes nothing on all of them."""
        invariant(index == self.applied_index + 1, f"index {index} applied after {self.applied_index}")
        self.applied_index = index
        node_id, lacks = self.who_lacks(needed)
        if node_id:
            return Outcome(Result.REFUSED, index, f"the build of node {node_id} does not know {lacks}")
        if command is None:
            return Outcome(Result.REFUSED, index, "this build does not know the command")
        for name, fields in needed.items():
            if self.used.get(name, -1) < fields:
                self.used[name] = fields
        outcome = apply_command(self, index, command)
        topic = self.topics_by_uid.get(outcome.topic_uid)
        if topic is not None:
            self.moves.look(topic)
        return outcome

    # For those who apply a command: what is derived stays right.

    def add(self, topic: TopicState) -> None:
        self.topics[topic.name] = self.topics_by_uid[topic.uid] = topic
        self._note_open(topic)

    def drop(self, topic: TopicState) -> None:
        self._note_not_open(topic)
        del self.topics[topic.name]
        del self.topics_by_uid[topic.uid]

    @contextmanager
    def another_open_segment(self, topic: TopicState) -> Iterator[None]:
        """Around what may seal the open one."""
        self._note_not_open(topic)  # by the replicas that it has until then: the seal may name others
        yield
        self._note_open(topic)

    def skip(self, index: int) -> None:
        """An index that is not a command of ours."""
        invariant(index == self.applied_index + 1, f"index {index} passed after {self.applied_index}")
        self.applied_index = index

    # Snapshots.

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(
            _Snapshot(
                self.applied_index,
                self.cluster_id,
                list(self.topics_by_uid.values()),
                list(self.nodes.values()),
                self.gone,
                list(self.reports.items()),
                self.moves.to_list(),
                list(self.drains.rows.values()),
                self.used,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ClusterState:
        state = cls()
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        state.applied_index, state.cluster_id = snapshot.applied_index, snapshot.cluster_id
        state.nodes = {node.node_id: node for node in snapshot.nodes}
        state.gone = list(snapshot.gone)
        state.reports = dict(snapshot.reports)
        state.moves = Moves(snapshot.moves)
        state.drains = Drains(snapshot.drains)
        state.used = dict(snapshot.used)
        for topic in snapshot.topics:
            state.add(topic)
        return state
