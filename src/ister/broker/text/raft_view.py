"""METRICS: the metadata's Raft as this node knows it, and how far each node is with it as the leader does.

Only the leader knows how far the others are, and clients ask any node; so a node that follows asks it, for a
moment. Without an answer `replication` is null: what one knew a while ago would be taken for now.

Two shapes side by side: the documented fields, and those that clients of Walrus look for in what its build
really answers, `membership_config`, `replication` and `snapshot.term`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ister.broker.text.node import TextNode
from ister.errors import BadRequest, IsterError, NotLeader
from ister.metadata.nodes import NodeState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import PeerKind, RaftMatches, node_of
from ister.raft import RaftStatus
from ister.raft.ready import Role

LEADER_SECONDS: Final = 1.0
"""How long the leader may take to answer."""

_ROLES: Final = {
    Role.LEADER: "Leader",
    Role.FOLLOWER: "Follower",
    Role.CANDIDATE: "Candidate",
    Role.PRE_CANDIDATE: "Candidate",
}


class RaftView:
    def __init__(self, node: TextNode) -> None:
        self._node = node

    async def show(self) -> dict[str, Any]:
        matches = await self._matches()
        return raft_object(self._node.raft_status(), self._node.raft_nodes(), matches)

    async def serve_peer(self, kind: int, header: bytes, payload: bytes) -> bytes:
        """Answer another node's `RAFT_MATCHES`."""
        if kind != PeerKind.RAFT_MATCHES:
            raise BadRequest(f"there is no peer request of kind {kind}")
        status = self._node.raft_status()
        if status.role is not Role.LEADER:
            raise NotLeader("this node does not lead the metadata")
        return encode_header(RaftMatches(matches_of(status)))

    async def _matches(self) -> list[tuple[int, int]] | None:
        status = self._node.raft_status()
        if status.role is Role.LEADER:
            return matches_of(status)
        if not status.leader:
            return None
        try:
            header = await self._node.peer_request(
                status.leader, PeerKind.RAFT_MATCHES, b"", b"", LEADER_SECONDS
            )
            return decode_header(RaftMatches, header).matches
        except IsterError:
            return None


def matches_of(status: RaftStatus) -> list[tuple[int, int]]:
    """A leader's view of who durably holds its log up to where, itself included."""
    own = (status.node_id, status.last_index)
    return sorted([own, *((peer.node, peer.match) for peer in status.peers)])


def raft_object(
    status: RaftStatus, nodes: Mapping[int, NodeState], matches: list[tuple[int, int]] | None
) -> dict[str, Any]:
    """Nodes by their ids, without their disks."""
    voters, learners = (
        [node_of(member) for member in members]
        for members in (status.membership.voters, status.membership.learners)
    )
    is_learner = status.node_id in status.membership.learners
    return {
        "id": node_of(status.node_id),
        "state": "Learner" if is_learner else _ROLES[status.role],
        "current_term": status.term,
        "current_leader": node_of(status.leader) or None,
        "membership": {"voters": voters, "learners": learners},
        "membership_config": {
            "membership": {
                "configs": [voters],
                "nodes": {str(node): {"addr": _address(nodes.get(node))} for node in [*voters, *learners]},
            }
        },
        "last_log_index": status.last_index,
        "last_applied": status.applied,
        "snapshot": {"index": status.snapshot_index, "term": status.snapshot_term}
        if status.snapshot_index
        else None,
        "replication": None
        if matches is None
        else {str(node_of(member)): {"index": index} for member, index in matches},
    }


def _address(node: NodeState | None) -> str:
    return f"{node.peer_host}:{node.peer_port}" if node is not None else ""
