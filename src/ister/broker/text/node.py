"""What the text protocol needs of the node that it runs on, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from ister.metadata.nodes import NodeState
from ister.metadata.store import MetadataStore
from ister.raft import RaftStatus

PEER_SECONDS: Final = 5.0
"""How long another node may take to answer, unless it is said."""


class TextNode(Protocol):
    @property
    def member(self) -> int:
        """This node, on its disk (I2)."""
        ...

    @property
    def metadata(self) -> MetadataStore: ...

    def is_alive(self, member: int) -> bool:
        """Whether a node answers, as far as this one knows."""
        ...

    async def read_one(self, topic: str, offset: int) -> tuple[int, bytes] | None:
        """The first committed record at `offset` or behind it: its own offset, and its value.

        None only where the topic ends. Whatever stands in the way of an answer is raised: a record that can't
        be read is never an end (W7).
        """
        ...

    async def ensure_topic(self, topic: str) -> None:
        """Create the topic if it is not there."""
        ...

    async def append_one(self, topic: str, value: bytes) -> int:
        """Append one record, wherever the topic is led; returns its offset once it is acknowledged.

        Makes the topic if first appends make topics here. `NotLeader` and `NodeUnreachable` mean that no node
        has taken it.
        """
        ...

    def raft_status(self) -> RaftStatus: ...

    def raft_nodes(self) -> Mapping[int, NodeState]:
        """The nodes of the cluster by their ids, as far as this one knows."""
        ...

    async def peer_request(
        self, member: int, kind: int, header: bytes, payload: bytes, timeout: float = PEER_SECONDS
    ) -> bytes:
        """Ask another node; its answer, or the error that it answered with, or that it can't be asked."""
        ...
