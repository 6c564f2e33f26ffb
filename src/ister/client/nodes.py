"""The part of a log about the cluster and its nodes.

Where an answer is lost these are sent again, and may then hear that it is done already.
"""

from __future__ import annotations

from ister.client.requests import Part
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import (
    AddNode,
    Cluster,
    ClusterAnswer,
    Control,
    Empty,
    Kind,
    NodeAnswer,
    NodeRequest,
    StatsAnswer,
)
from ister.protocol.moves import ActivateNode, DrainDescription, DrainNode


class Nodes(Part):
    """The cluster and its nodes."""

    async def cluster(self) -> ClusterAnswer:
        """The nodes, and what is wrong; each node is asked how its copies of segments are."""
        header = encode_header(Cluster(ask_nodes=True))
        answer = await self.requests.call("asking for the cluster", Kind.CLUSTER, header)
        return decode_header(ClusterAnswer, answer.header or answer.payload)

    async def stats(self) -> StatsAnswer:
        answer = await self.requests.call("asking for figures", Kind.STATS, encode_header(Empty()))
        return decode_header(StatsAnswer, answer.header)

    async def transfer_leader(self, node_id: int = 0) -> NodeAnswer:
        """Let another node lead the metadata: the one named, or the one that is most up to date."""
        what = f"handing the metadata to node {node_id}" if node_id else "handing the metadata over"
        return await self._administer(what, Kind.TRANSFER_LEADER, NodeRequest(node_id))

    async def add_node(self, host: str, port: int) -> NodeAnswer:
        """Invite the node that waits at this peer address; it joins as a learner."""
        return await self._administer(f"adding the node at {host}:{port}", Kind.ADD_NODE, AddNode(host, port))

    async def remove_node(self, node_id: int, *, disk_gone: bool = False) -> NodeAnswer:
        """Take a node out of the cluster; refused while it has records that nobody else has (R2), unless
        `disk_gone` states that they are gone for good."""
        request = NodeRequest(node_id, disk_gone)
        return await self._administer(f"removing node {node_id}", Kind.REMOVE_NODE, request)

    async def promote_node(self, node_id: int) -> NodeAnswer:
        """Make a voter of a learner that has caught up (R2)."""
        return await self._administer(f"promoting node {node_id}", Kind.PROMOTE_NODE, NodeRequest(node_id))

    async def _administer(self, what: str, kind: Kind, request: NodeRequest | AddNode) -> NodeAnswer:
        answer = await self.requests.call(what, kind, encode_header(request))
        return decode_header(NodeAnswer, answer.header)

    async def drain_node(
        self, node_id: int, *, dry_run: bool = False, max_parallel: int = 4
    ) -> DrainDescription:
        """A node gets nothing new, and what it has goes elsewhere. Returns what it has now; called again it
        says how far that is. With `dry_run` only that."""
        header = encode_header(DrainNode(node_id, dry_run, max_parallel))
        answer = await self.requests.call(f"draining node {node_id}", Kind.DRAIN_NODE, header)
        return decode_header(DrainDescription, answer.header)

    async def activate_node(self, node_id: int) -> DrainDescription:
        """A drained node is one like the others again; what has moved stays where it is."""
        header = encode_header(ActivateNode(node_id))
        answer = await self.requests.call(f"activating node {node_id}", Kind.ACTIVATE_NODE, header)
        return decode_header(DrainDescription, answer.header)

    async def control(self, action: str, secret: str, topic: str = "", count: int = 1) -> None:
        """For tests: let the broker that is asked misbehave; refused unless it has `test_controls` on."""
        header = encode_header(Control(secret, action, topic, count))
        await self.requests.call(f"the test control {action}", Kind.CONTROL, header)
