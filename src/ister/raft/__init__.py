"""Raft without I/O: a state machine that is fed messages and ticks, and says what to write, send and apply.

It follows Ongaro's thesis ("Consensus: Bridging Theory and Practice"); bare section numbers in this package
are the paper's ("In Search of an Understandable Consensus Algorithm") for 5.x, and the thesis's otherwise.

    core = RaftCore(RaftConfig(node_id=1), storage.load(), random)

    core.tick()                 every 50 ms
    core.step(message)          a message from a peer arrived
    core.propose(data)          -> Accepted(index, term) | Refused(reason, leader)
    core.propose_membership(c)  -> Accepted | Refused
    core.read_index(context)    -> None, and later Ready.reads or Ready.aborted_reads | Refused
    core.transfer_leadership(n) -> None | Refused
    core.campaign()

After any of these, or several, the driver asks for work:

    while (ready := core.ready()) is not None:
        fail ready.aborted_reads; keep ready.reads until their index is applied
        send ready.messages                                       at once
        storage.write_chunk(...) for ready.chunks
        handle = storage.install_snapshot(ready.snapshot)         if any
        storage.append(ready.hard_state, ready.entries)
        restore the state machine from the snapshot, if any; apply ready.committed
        core.applied(the last index restored or applied)

    and once storage.sync() has returned, for the Readys that it covered, in order:
        core.snapshot_saved(handle)                               if one was installed
        core.persisted(ready.number)
        send ready.messages_after

The contract
------------
Order. Readys are written in the order of their numbers, and inside one in the order of its fields. The driver
may take, write and send further Readys while a sync is under way, and may sync several at once; it calls
`persisted` with increasing numbers and may skip to the last one covered. `persisted` usually makes new work:
ask again. With `must_sync` false the write may stay in the queue, and `persisted` be called at once if
nothing before it is outstanding.

Durability (R1). `messages_after` promise something that a crash must not undo: a vote, a term, entries. They
leave only when their Ready, and all before it, are durable. `messages` leave at any time: a leader's appends
travel while its own disk is still writing, and its own copy is counted when `persisted` says so (10.2.1).

Failure. If a write or a sync fails, the driver stops the node: it calls nothing here any more (P1). If the
core raises, `InvariantBroken` above all, the same: some promise does not hold, and going on would spread it.
Messages may be dropped at will: the core sends again what matters. A full queue is a reason.

Ownership. All that is handed out is immutable. Snapshot handles stay readable while the core holds them.

Applying. Every committed entry is handed out once, in order, when it is also durable here. Entries of kind
NOOP and MEMBERSHIP are for the state machine to skip or show. After a restart they come again from the
snapshot on. What a proposer waits for is its (index, term): another term applied at that index means that the
proposal was replaced; no answer for a while means that nobody knows.

Snapshots. When the state machine has applied `index`, `describe_snapshot(index)` gives the metadata, with the
membership at that index (R1); the driver writes it with its bytes, calls `snapshot_saved(handle)` when that
is durable, and then `compact(up_to)`, here and at the storage. A peer that needs what is gone gets the
snapshot in chunks, read from the handle; at the peer they come out of `Ready.chunks`.

Identity. A node here is a number that stands for a node id and a disk id (I2). A node that lost its disk must
come back under another number, as a learner: the core believes that it remembers its votes.
A removed node is not told by its peers, who stop talking to it; the driver tells it.
"""

from ister.raft.config import RaftConfig
from ister.raft.core import PeerStatus, RaftCore, RaftStatus
from ister.raft.membership import PROMOTION_LAG_ENTRIES, ChangeKind, MembershipChange
from ister.raft.messages import (
    NOBODY,
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Membership,
    PreVoteAnswer,
    PreVoteRequest,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMetadata,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
    decode_membership,
    decode_message,
    encode_membership,
    encode_message,
)
from ister.raft.progress import ProgressState
from ister.raft.ready import Accepted, ReadState, Ready, ReceivedChunk, Refusal, Refused, Role, SoftState
from ister.raft.storage import (
    HardState,
    SnapshotHandle,
    Storage,
    StoredState,
    bootstrap_state,
    empty_state,
    entries_after,
)

__all__ = [
    "NOBODY",
    "PROMOTION_LAG_ENTRIES",
    "Accepted",
    "AnyMessage",
    "AppendAnswer",
    "AppendRequest",
    "ChangeKind",
    "Entry",
    "EntryKind",
    "HardState",
    "Heartbeat",
    "HeartbeatAnswer",
    "Membership",
    "MembershipChange",
    "PeerStatus",
    "PreVoteAnswer",
    "PreVoteRequest",
    "ProgressState",
    "RaftConfig",
    "RaftCore",
    "RaftStatus",
    "ReadState",
    "Ready",
    "ReceivedChunk",
    "Refusal",
    "Refused",
    "Role",
    "SnapshotAnswer",
    "SnapshotChunk",
    "SnapshotHandle",
    "SnapshotMetadata",
    "SoftState",
    "Storage",
    "StoredState",
    "TimeoutNow",
    "VoteAnswer",
    "VoteRequest",
    "bootstrap_state",
    "decode_membership",
    "decode_message",
    "empty_state",
    "encode_membership",
    "encode_message",
    "entries_after",
]
