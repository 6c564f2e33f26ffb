"""What brokers say to each other on the peer port. Same framing as the client protocol, another preamble.

A connection opens with "ISTP" and a version, then `PeerHello`, which is refused unless it names this cluster
(I1) or asks to join one. Raft messages go one way and are not answered; everything else is a request.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from ister.errors import BadRequest, UnsupportedVersion
from ister.protocol.messages import Message

PEER_MAGIC: Final = b"ISTP"
PEER_VERSION: Final = 1
_PREAMBLE = struct.Struct("<4sHH")
PEER_PREAMBLE_SIZE: Final = _PREAMBLE.size

MEMBER_BITS: Final = 31


class PeerKind(IntEnum):
    HELLO = 1
    RAFT = 2
    """Payload: one Raft message. Never answered."""
    PROPOSE = 3
    """Payload: one command for the metadata leader. The answer's header is its `Outcome`."""
    JOIN = 4
    READ_INDEX = 5


class NodeAddress(Message, frozen=True):
    """Where a node is, and which disk it runs on (I2)."""

    node_id: int
    disk_id: str
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int

    @property
    def member(self) -> int:
        return member_of(self.node_id, self.disk_id)


class PeerHello(Message, frozen=True):
    cluster_id: str
    """Empty from a node that has none yet and is about to ask to join."""
    node: NodeAddress
    starts: int = 0


class PeerHelloAnswer(Message, frozen=True):
    cluster_id: str
    node: NodeAddress


class Join(Message, frozen=True):
    """Let this node in, as a learner; the metadata leader answers, others say who it is."""

    node: NodeAddress
    starts: int


class JoinAnswer(Message, frozen=True):
    cluster_id: str
    nodes: list[NodeAddress]


class LeaderHint(Message, frozen=True):
    """Asked of the wrong node: this one leads, if it is known."""

    member: int


def member_of(node_id: int, disk_id: str) -> int:
    """The Raft member that a node with this disk is. A wiped node is another one (I2)."""
    return node_id << MEMBER_BITS | int(disk_id, 16) & ((1 << MEMBER_BITS) - 1)


def node_of(member: int) -> int:
    return member >> MEMBER_BITS


def encode_peer_preamble() -> bytes:
    return _PREAMBLE.pack(PEER_MAGIC, PEER_VERSION, PEER_VERSION)


def check_peer_preamble(data: bytes) -> None:
    magic, lowest, highest = _PREAMBLE.unpack(data)
    if magic != PEER_MAGIC:
        raise BadRequest(f"a connection that opens with {magic!r} is no peer's")
    if not lowest <= PEER_VERSION <= highest:
        raise UnsupportedVersion(f"the peer speaks versions {lowest} to {highest}, this node {PEER_VERSION}")
