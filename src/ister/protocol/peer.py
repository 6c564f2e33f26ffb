"""What brokers say to each other on the peer port. Same framing as the client protocol, another preamble.

A connection opens with "ISTP" and a version, then `PeerHello`, which is refused unless it names this cluster
(I1) or asks to join one. Raft messages go one way and are not answered; everything else is a request.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final

import msgspec

from ister.errors import BadRequest, UnsupportedVersion
from ister.protocol.messages import PREAMBLE_MAGIC, Message
from ister.protocol.text import is_text

PEER_MAGIC: Final = b"ISTP"
PEER_VERSION: Final = 1
_PREAMBLE = struct.Struct("<4sHH")
PEER_PREAMBLE_SIZE: Final = _PREAMBLE.size

MEMBER_BITS: Final = 31
_DISK_ID = re.compile("[0-9a-f]{1,16}")


class PeerKind(IntEnum):
    HELLO = 1
    RAFT = 2
    """Payload: one Raft message. Never answered."""
    PROPOSE = 3
    """Payload: one command for the metadata leader. The answer's header is its `Outcome`."""
    JOIN = 4
    READ_INDEX = 5
    PING = 6
    ADMIN = 7
    """Header: `AdminRequest`, a request of the client protocol that only the metadata leader can answer."""
    INVITE = 8
    """To a node that waits to be added: join us."""
    REMOVED = 9
    """To a node that is not in the cluster any more, so that it knows. Header: `Removed`."""
    GET = 10
    """To the owner of a topic's shared cursor: the next record, please. Answered with `GetAnswer`."""
    GET_DONE = 11
    """Header: `GetSettled`. Their replies have left for their clients."""
    GET_RETURNED = 12
    """Header: `GetSettled`. Their clients did not get them: to be handed out again."""
    REPLICATE = 13
    """Header: `Replicate` (`ister.protocol.replication`), payload: frames. Answered, when it is durable, by a
    message with no correlation: `Replicated`."""
    FENCE = 14
    COPY = 15
    READ_LOG = 16
    STANDING = 17
    """Header: `AskStanding` (`ister.protocol.standing`): how the copies that this node keeps are."""
    REACH = 18
    """Header: `AskReach` (`ister.protocol.replication`)."""
    RAFT_MATCHES = 19
    """To the metadata leader, with an empty header; answered with `RaftMatches`."""


class NodeAddress(Message, frozen=True):
    """Where a node is, and which disk it runs on (I2)."""

    node_id: int
    disk_id: str
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int

    def __post_init__(self) -> None:
        # Raised while it is decoded: what cannot be a member's name must not get as far as its use.
        fault = identity_fault(self.node_id, self.disk_id)
        if fault:
            raise ValueError(fault)

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
    replaces: bool = False
    """The disk that the node had before is gone for good, and with it whatever only that one had."""
    knows: dict[str, int] = msgspec.field(default_factory=dict)
    """The shapes that its build knows (`metadata.shapes`)."""


class JoinAnswer(Message, frozen=True):
    cluster_id: str
    nodes: list[NodeAddress]


class AdminRequest(Message, frozen=True):
    kind: int
    """Of the client protocol: `TRANSFER_LEADER`, `REMOVE_NODE` or `PROMOTE_NODE`."""
    node_id: int
    disk_gone: bool = False


class Invite(Message, frozen=True):
    cluster_id: str
    nodes: list[NodeAddress]


class Removed(Message, frozen=True):
    reason: str
    member: int
    """Who was removed. At its address there may be another by now."""


class GetRequest(Message, frozen=True):
    """One GET that a client sent to a node that does not own the topic's cursor (S5)."""

    topic_uid: int
    member: int
    """Who asks: if it goes away, what it was given is handed out again."""
    request: int
    """The asker's number for it: the same number gets the same record, as long as that is not settled."""
    wait_ms: int
    """How long the asker waits: later than that a record would be handed out to nobody."""


class GetAnswer(Message, frozen=True):
    offset: int
    """-1: there is nothing to hand out."""
    epoch: int = 0
    attempt: int = 0
    value: bytes = b""


class GetSettled(Message, frozen=True):
    rows: list[tuple[int, int, int, int]]
    """Topic uid, epoch, offset, attempt."""
    abandoned: list[tuple[int, int, int]]
    """With `GET_RETURNED`: topic uid, member and request of those whose answer never came."""


class RaftMatches(Message, frozen=True):
    matches: list[tuple[int, int]]
    """Member, and up to which index it durably holds the leader's log; the leader among them."""


def member_of(node_id: int, disk_id: str) -> int:
    """The Raft member that a node with this disk is. A wiped node is another one (I2)."""
    return node_id << MEMBER_BITS | int(disk_id, 16) & ((1 << MEMBER_BITS) - 1)


def identity_fault(node_id: int, disk_id: str) -> str:
    """Why no member can be called so; empty if one can."""
    if not 0 < node_id < 1 << MEMBER_BITS:
        return f"{node_id} is no node id"
    return "" if _DISK_ID.fullmatch(disk_id) else f"{disk_id[:40]!r} is no disk id"


def node_of(member: int) -> int:
    return member >> MEMBER_BITS


def encode_peer_preamble() -> bytes:
    return _PREAMBLE.pack(PEER_MAGIC, PEER_VERSION, PEER_VERSION)


def check_peer_preamble(data: bytes) -> None:
    magic, lowest, highest = _PREAMBLE.unpack(data)
    if magic == PREAMBLE_MAGIC:
        raise BadRequest(
            "this is the port for other brokers, and a client has called",
            hint="Connect to the broker's client port, which is 9091 unless it was set; "
            "`ister cluster status` shows every node's.",
        )
    if is_text(magic):
        raise BadRequest(
            "this is the port for other brokers, and a client of the text protocol has called",
            hint="Connect to the broker's client port, which is 9091 unless it was set; "
            "`ister cluster status` shows every node's.",
        )
    if magic != PEER_MAGIC:
        raise BadRequest(
            f"a connection that opens with {magic!r} is no broker's: this is the port for other brokers",
            hint="Clients connect to the broker's client port, which is 9091 unless it was set.",
        )
    if not lowest <= PEER_VERSION <= highest:
        raise UnsupportedVersion(f"the peer speaks versions {lowest} to {highest}, this node {PEER_VERSION}")
