"""What the core hands to its driver: work to do, in `Ready`, and typed answers to requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ister.raft.messages import AnyMessage, Entry, SnapshotMetadata
from ister.raft.storage import HardState


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Refusal(Enum):
    """Why a request was not taken. The request had no effect and may be made again, here or elsewhere."""

    NOT_LEADER = "not the leader"
    TRANSFERRING = "leadership is being handed over"
    TOO_MUCH_UNCOMMITTED = "too much is waiting to be committed"
    TOO_MANY_READS = "too many reads are waiting"
    NOTHING_COMMITTED_YET = "no entry of this term has committed yet"
    CHANGE_PENDING = "an earlier change of the membership has not committed yet"
    ALREADY_MEMBER = "the node is a member already"
    NOT_A_MEMBER = "the node is not a member"
    NOT_A_LEARNER = "the node is not a learner"
    NOT_A_VOTER = "the node is not a voter"
    LEARNER_BEHIND = "the learner has not caught up"
    LAST_VOTER = "the last voter can't be removed"
    ALREADY_LEADER = "the node leads already"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entry has its place in this leader's log. It may still be replaced: it is the one proposed if, and
    only if, the entry applied at `index` has this `term`."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    reason: Refusal
    leader: int
    """Who leads, as far as this node knows; 0 if it does not."""


@dataclass(frozen=True, slots=True)
class SoftState:
    """For people and for routing; nothing durable hangs on it."""

    role: Role
    leader: int
    term: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """The read with this context sees everything it must once `index` has been applied."""

    context: object
    index: int


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    """Part of a snapshot on its way in, to be kept aside. Position 0 begins anew."""

    metadata: SnapshotMetadata
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """Work for the driver. The fields stand in the order in which to do it; the package's docstring has the
    contract."""

    number: int
    """Counts from 1. `RaftCore.persisted` takes it back."""
    soft_state: SoftState | None
    """If it changed."""
    aborted_reads: tuple[object, ...]
    """Contexts of reads that will get no answer here: this node is not the leader any more."""
    reads: tuple[ReadState, ...]
    messages: tuple[AnyMessage, ...]
    """May be sent at once, before or while anything is written (thesis 10.2.1)."""
    chunks: tuple[ReceivedChunk, ...]
    snapshot: SnapshotMetadata | None
    """The chunks handed out so far make up this snapshot: install it, in place of the whole log, and restore
    the state machine from it before applying anything else."""
    entries: tuple[Entry, ...]
    """Cut the durable log at the first one's index, then append them."""
    hard_state: HardState | None
    """If it changed."""
    must_sync: bool
    """False: the write may wait for the next one that syncs, and `persisted` be called at once."""
    messages_after: tuple[AnyMessage, ...]
    """To be sent only when this Ready and all before it are durable (R1)."""
    committed: tuple[Entry, ...]
    """To be applied, in order. Every entry of the log comes here once, NOOP and MEMBERSHIP ones too."""
