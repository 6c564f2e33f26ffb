"""What Raft nodes say to each other, and the entries of their log. Frozen, and as bytes.

Every message has a sender, a receiver and the sender's term. All are msgpack arrays led by a number that
tells the kind: a field's place is its identity, so a later version may only add fields with defaults at the
end; an older reader ignores them. The first byte of an encoded message is the version of this file.

The core trusts that `sender` is who it says: the driver checks cluster id and disk id (I1, I2) when it
accepts a peer's connection, before a message gets here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from ister.errors import BadRequest, UnsupportedVersion

MESSAGES_VERSION: Final = 1

NOBODY: Final = 0
"""No node: no vote was cast, no leader is known. Node ids start at 1."""

ENTRY_OVERHEAD_BYTES: Final = 24
"""What an entry counts for besides its data, in every bound on bytes."""


class EntryKind(IntEnum):
    COMMAND = 0
    """Data of the state machine."""
    NOOP = 1
    """The first entry of a leader's term; once committed, so is everything before it (5.4.2)."""
    MEMBERSHIP = 2
    """Data is an encoded `Membership`: the whole one that holds from this entry on."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place in the log. (term, index) names it: no two entries that share both ever differ."""

    term: int
    index: int
    kind: EntryKind = EntryKind.COMMAND
    data: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data) + ENTRY_OVERHEAD_BYTES


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Who takes part: voters count for quorums, learners only receive. Both sorted."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    def __contains__(self, node: object) -> bool:
        return node in self.voters or node in self.learners

    @property
    def quorum(self) -> int:
        """How many voters decide: more than half."""
        return len(self.voters) // 2 + 1


class SnapshotMetadata(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot replaces: every entry up to `index`, and the membership that held there (R1)."""

    index: int
    term: int
    membership: Membership


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages."""

    sender: int
    to: int
    term: int


class PreVoteRequest(Message, frozen=True, array_like=True, tag=1, gc=False):
    """Would you vote for me? `term` is the one the sender would campaign in; it is not in it yet (9.6)."""

    last_index: int
    last_term: int


class PreVoteAnswer(Message, frozen=True, array_like=True, tag=2, gc=False):
    """`term` is the asked one if granted, else the answering node's own."""

    granted: bool


class VoteRequest(Message, frozen=True, array_like=True, tag=3, gc=False):
    last_index: int
    last_term: int
    by_transfer: bool = False
    """The leader asked for this election, so a live leader is no reason to refuse (4.2.3)."""


class VoteAnswer(Message, frozen=True, array_like=True, tag=4, gc=False):
    granted: bool


class AppendRequest(Message, frozen=True, array_like=True, tag=5, gc=False):
    prev_index: int
    prev_term: int
    """The entry right before `entries`; the receiver refuses unless it has it (log matching, 5.3)."""
    entries: tuple[Entry, ...]
    commit: int


class AppendAnswer(Message, frozen=True, array_like=True, tag=6, gc=False):
    index: int
    """If accepted: the receiver durably holds the sender's log up to here. If not: the refused prev_index."""
    refused: bool = False
    hint_term: int = 0
    """If refused: the term of the receiver's entry at `index`; 0 if its log ends before it."""
    hint_index: int = 0
    """The first index of that term in the receiver's log; without a term, the index after its last."""


class Heartbeat(Message, frozen=True, array_like=True, tag=7, gc=False):
    commit: int
    """Never past what the receiver has acknowledged, so it may always be taken over."""
    round: int
    """Counts this leader's heartbeats. An answer to round r shows that it still led when r began (6.4)."""


class HeartbeatAnswer(Message, frozen=True, array_like=True, tag=8, gc=False):
    round: int


class SnapshotChunk(Message, frozen=True, array_like=True, tag=9, gc=False):
    metadata: SnapshotMetadata
    position: int
    """Where in the snapshot's bytes `data` starts."""
    data: bytes
    done: bool
    """Nothing follows: the snapshot's size is position + len(data)."""


class SnapshotAnswer(Message, frozen=True, array_like=True, tag=10, gc=False):
    """The position wanted next. The end of a transfer is answered with `AppendAnswer`, once durable."""

    index: int
    position: int


class TimeoutNow(Message, frozen=True, array_like=True, tag=11, gc=False):
    """Campaign at once: the leader hands its office over (3.10)."""


AnyMessage = (
    PreVoteRequest
    | PreVoteAnswer
    | VoteRequest
    | VoteAnswer
    | AppendRequest
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | SnapshotChunk
    | SnapshotAnswer
    | TimeoutNow
)

_VERSION_BYTE = bytes([MESSAGES_VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
_membership_decoder = msgspec.msgpack.Decoder(Membership)


def encode_message(message: AnyMessage) -> bytes:
    return _VERSION_BYTE + _encoder.encode(message)


def decode_message(encoded: bytes | bytearray | memoryview) -> AnyMessage:
    """The message; raises `UnsupportedVersion` or `BadRequest`, never anything else."""
    view = memoryview(encoded)
    if not view:
        raise BadRequest("an empty Raft message")
    if view[0] != MESSAGES_VERSION:
        raise UnsupportedVersion(f"a Raft message of version {view[0]}; this node speaks {MESSAGES_VERSION}")
    try:
        return _decoder.decode(view[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"cannot read a Raft message of {len(view)} bytes: {error}") from error


def encode_membership(membership: Membership) -> bytes:
    return _encoder.encode(membership)


def decode_membership(data: bytes) -> Membership:
    try:
        return _membership_decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"cannot read a membership of {len(data)} bytes: {error}") from error
