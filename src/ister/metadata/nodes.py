"""The nodes of a cluster as they are kept in the metadata, and who of them counts.

Everything that is held or decided is a member's: a node with its disk. A node that comes back on another disk
is not what its list entries mean (I2). Pure functions: applying a command calls them (R3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ister.metadata.commands import UpsertNode
from ister.protocol.peer import NodeAddress, member_of, node_of


class NodeState(msgspec.Struct, array_like=True, frozen=True):
    """A node as it last told of itself."""

    node_id: int
    disk_id: str
    starts: int
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int
    knows: dict[str, int] = {}
    """The shapes that its build knows (`metadata.shapes`). Empty if it did not tell: then nobody looks."""

    @property
    def member(self) -> int:
        return member_of(self.node_id, self.disk_id)


Nodes = Mapping[int, NodeState]
"""By node id."""


def is_active(nodes: Nodes, member: int) -> bool:
    """Whether a node is in the cluster on this very disk, and has said where clients find it."""
    return is_in_cluster(nodes, member) and nodes[node_of(member)].client_port > 0


def is_in_cluster(nodes: Nodes, member: int) -> bool:
    """Whether a node is in the cluster on this very disk. One that left never comes back (I2)."""
    node = nodes.get(node_of(member))
    return node is not None and node.member == member


def inactive_among(nodes: Nodes, members: Iterable[int]) -> str:
    """Which of these is not active, in words; empty if all are."""
    for member in members:
        if not is_active(nodes, member):
            return f"node {node_of(member)} is not active on that disk"
    return ""


def why_not_placed(nodes: Nodes, leader: int, replicas: list[int]) -> str:
    """Why no segment may be opened there; empty if one may (H1)."""
    if leader not in replicas:
        return f"node {node_of(leader)} is to lead, and is not among the replicas"
    return named_twice(replicas) or inactive_among(nodes, replicas)


def named_twice(replicas: list[int]) -> str:
    """Which of these is there twice, and would count twice in a majority; empty if none is."""
    for place, member in enumerate(replicas):
        if member in replicas[:place]:
            return f"node {node_of(member)} is named twice among the replicas"
    return ""


def why_not_proposer(nodes: Nodes, member: int, starts: int) -> str:
    """Why what this start of a member has proposed counts no more; empty if it does."""
    node = nodes.get(node_of(member))
    if node is None or node.member != member:
        return f"node {node_of(member)} is not in the cluster on the disk that proposed this"
    if node.starts != starts:
        return f"node {node.node_id} was started again after it proposed this"
    return ""


# A node as it speaks of itself, as it is kept, and as a command tells of it.


def address_of(node: NodeState) -> NodeAddress:
    return NodeAddress(
        node.node_id,
        node.disk_id,
        node.peer_host,
        node.peer_port,
        node.client_host,
        node.client_port,
    )


def node_state_of(command: UpsertNode) -> NodeState:
    return NodeState(
        command.node_id,
        command.disk_id,
        command.starts,
        command.peer_host,
        command.peer_port,
        command.client_host,
        command.client_port,
        command.knows,
    )


def upsert_of(
    node: NodeAddress,
    starts: int,
    knows: Mapping[str, int],
    *,
    replaces: bool = False,
    replaced: NodeState | None = None,
) -> UpsertNode:
    return UpsertNode(
        node.node_id,
        node.disk_id,
        starts,
        node.peer_host,
        node.peer_port,
        node.client_host,
        node.client_port,
        replaces,
        replaced.starts if replaced is not None else 0,
        replaced.member if replaced is not None else 0,
        by_name=True,
        knows=dict(knows),
    )
