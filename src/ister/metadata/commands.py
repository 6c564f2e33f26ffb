"""The commands that change the metadata, and what can come of them.

A command carries everything that its effect depends on: times, ids and choices are the proposer's, so that
applying is deterministic (R3). The index at which a command is applied is the uid of what it makes (I3).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from ister.protocol.messages import TopicSettings
from ister.protocol.subscriptions import FailurePolicy
from ister.wal.producers import ProducerRow


class Command(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base. On disk and on the wire: a msgpack array that starts with the command's name."""


class FoundCluster(Command, frozen=True):
    """The first command of a cluster's life: whose metadata this is (I1)."""

    cluster_id: str


class UpsertNode(Command, frozen=True):
    """A node tells of itself at every start (I2): where it is, on which disk, and which start this is."""

    node_id: int
    disk_id: str
    starts: int
    peer_host: str
    peer_port: int
    client_host: str
    client_port: int
    replaces: bool = False
    """An operator states that the disk whose place this one takes is gone for good, and with it whatever only
    that one had."""
    replaced_starts: int = 0
    """The last start of that disk when it was found silent: one that came back since keeps its place, however
    long this was on its way. 0: not looked at."""
    replaced: int = 0
    """The member that this is: not whoever else has taken its place since. 0: not looked at."""
    by_name: bool = False
    """Whether a disk may be taken for gone goes by who is known to have all of what it has (C3)."""


class RemoveNode(Command, frozen=True):
    node_id: int
    disk_gone: bool = False
    """An operator states that its disk is gone for good, and with it whatever only that one had."""
    starts: int = 0
    """Its last start then, as in `UpsertNode`."""
    member: int = 0
    """Which disk of the node is meant. 0: whichever it has."""
    keeps_whole: bool = False
    """Refused also while the others that have a sealed segment may all end short of it, by how many were
    counted (R2). What was proposed before there was this goes by the rule of then, whenever it is applied
    (R3)."""
    by_name: bool = False
    """The same by who is known to have all of it (C3)."""


class CreateTopic(Command, frozen=True):
    """Create if absent; the existing topic is the answer otherwise (I3)."""

    name: str
    settings: TopicSettings
    leader: int
    """A member: a node with its disk (I2)."""
    replicas: list[int]
    created_at_us: int


class AlterTopic(Command, frozen=True):
    """Only what changes: the proposer may not have heard of the last change of the others."""

    topic_uid: int
    changes: dict[str, int | str]


class DeleteTopic(Command, frozen=True):
    topic_uid: int


class SealSegment(Command, frozen=True):
    """The handoff (H1): a compare-and-set on the topic's open segment."""

    topic_uid: int
    segment: int
    end_offset: int
    end_position: int
    """How many bytes the sealed log has."""
    next_leader: int
    next_replicas: list[int]
    producers: list[ProducerRow]
    last_append_time_us: int
    sealed_by: int
    starts: int
    """Which start of `sealed_by` proposes this. A process that came back may append again to a segment that
    its predecessor was about to seal: what is left of that proposal on the wire must not apply then."""
    sealed_at_us: int
    move: int = 0
    """The id of the move that this seal is for; 0 if for none."""
    unopened: bool = False
    """Of a segment whose log could not be made, which ends where it begins: applies only while there is no
    log. The proposer may succeed in making it, and append, while this is still on its way."""
    recovery: int = 0
    """The number of the recovery that this ends; 0 of a leader's own seal. It must be the segment's last one,
    and `sealed_by` its coordinator: no leader that was declared lost may seal, and no older recovery."""
    replicas: list[int] = []
    """Who has the sealed segment, substitutes among them (F2); empty leaves the list as it is. A leader's own
    seal changes nothing in it (F4)."""
    whole: int = 0
    """What seals said before there were names: so many of these, at least, have all of it."""
    forgets: bool = False
    """Producers that the log knew are not among `producers` (A5)."""
    holders: list[int] | None = None
    """Who has all of it, durably (C1). None of seals that did not say so."""


class BeginRecovery(Command, frozen=True):
    """A replica sets out to seal the open segment in its leader's place (F1). The index of this command is
    the recovery's number; a later one supersedes an earlier one."""

    topic_uid: int
    segment: int
    by: int
    """The member that coordinates: one of the replicas, so that it has the log."""
    starts: int
    """Which start of `by` proposes this, as in a seal."""


class SetReplicas(Command, frozen=True):
    """Other replicas for a sealed segment, for repair and drain: a compare-and-set on the list (F4)."""

    topic_uid: int
    segment: int
    expected: list[int]
    replicas: list[int]
    """Those that are new in it have said that they are whole."""
    confirmed: int = 0
    """What was said before there were names: so many in it have said so; 0 if only those that are new were
    asked. Together with new ones: these, and nothing is known of the others any more."""
    expected_whole: list[int] | None = None
    """Who is known to have all of it: the other half of what is compared (C3). Those that come have nothing,
    as far as this says. None of commands from before there were names."""


class Reported(IntEnum):
    """What a node says of its copy of a sealed segment (C2)."""

    WHOLE = 1
    SHORT = 2
    """It ends early, and nobody who answers can complete it."""
    DAMAGED = 3
    """What is there is not as it should be, or not all there any more."""
    ABSENT = 4


class CopyEntry(msgspec.Struct, array_like=True, frozen=True):
    topic_uid: int
    segment_uid: int
    state: int
    """A `Reported`. One that this build does not know says nothing."""
    end_offset: int = 0
    """Where it ends, if it is short."""


class ReportCopies(Command, frozen=True):
    """A node says how its copies of sealed segments are, where that is not what the metadata has (C2)."""

    member: int
    starts: int
    number: int
    """Counted from 1 by each start of a node. One that is not higher than the last says nothing new."""
    index: int
    """What the node had applied when it compared. An entry about a list that has changed since is old."""
    entries: list[CopyEntry]


class AcceptLoss(Command, frozen=True):
    """An operator gives up what nobody can reach of an open segment, so that the topic goes on (F6)."""

    topic_uid: int
    segment: int
    end_offset: int
    """Where the next segment begins: past every offset that may have been acknowledged."""
    next_leader: int
    next_replicas: list[int]
    lost_from: int
    """The offsets from here to `end_offset` are lost; what lies before them can still be read."""
    at_us: int
    by: int
    """The member that was asked to."""
    node_stopped: bool
    """The operator states that the leader's node is stopped, and stays so until it has learnt of this."""
    leader_starts: int = 0
    """The leader's start that the operator was told of: a leader that came back since has what was to be
    given up, and a command that was long on its way must not take it. 0: not looked at."""
    end_position: int = 0
    """How many bytes lie before `lost_from`."""
    last_append_time_us: int = 0
    """Of the last record before `lost_from`; 0 if there is none."""
    producers: list[ProducerRow] = []
    """What the log before `lost_from` says of them: what is repeated from there is still recognised (A5)."""
    records_limit: int = 0
    """The segment's, by which `end_offset` was chosen: one that was raised since would let its leader go on
    past that. 0: not looked at."""
    recovery: int = 0
    """The segment's last one: to it the replicas have said what can be reached. One that began since may have
    heard more."""
    whole: int = 0
    """As in a seal, of what lies before `lost_from`."""
    forgets: bool = False
    """As in a seal."""
    holders: list[int] | None = None
    """The same by name."""


class KeptPart(msgspec.Struct, array_like=True, frozen=True):
    """What disks that are in the cluster have of a sealed segment whose whole copies left with others."""

    segment: int
    """Its uid."""
    end_offset: int
    """Of the longest copy, which is durable up to here; the rest is given up."""
    end_position: int
    last_append_time_us: int
    """Of the last record before `end_offset`."""
    asked: list[int]
    """Who has said how far its copy goes: the members of the segment's list that are in the cluster, all of
    them, in the list's order. One that is not among them may have more."""
    holders: list[int] | None = None
    """Those of them whose copies go that far. None of commands from before there were names."""


class AcceptGone(Command, frozen=True):
    """An operator gives up what no disk that is in the cluster has of sealed segments (F6)."""

    topic_uid: int
    segments: list[int]
    """Their uids."""
    at_us: int
    by: int
    """The member that was asked to."""
    kept: list[KeptPart] = []
    """Of those that disks in the cluster have a part of; of the others everything is given up."""
    whole: int = 0
    """As in a seal, of each kept part."""


class OpenedSegment(Command, frozen=True):
    """The leader has made the segment's log. From now on a missing log is a loss, not a beginning (E6)."""

    topic_uid: int
    segment: int
    member: int


class TrimTopic(Command, frozen=True):
    """Records below `start_offset` are no longer there for anybody; it is a segment's base (E4)."""

    topic_uid: int
    start_offset: int


class ClaimCursor(Command, frozen=True):
    """A member takes over a topic's shared GET cursor: a compare-and-set on its epoch (S1, S5)."""

    topic_uid: int
    owner: int
    epoch: int
    """One more than the epoch that it is taken from."""


class FlushCursors(Command, frozen=True):
    """How far GET has come in the topics that one member owns; one command for all of them (S2).

    Each row stands for itself: it applies if the owner and its epoch are the current ones, and never takes a
    cursor back.
    """

    owner: int
    rows: list[tuple[int, int, int]]
    """Topic uid, epoch, the next offset (S4)."""


class PinRow(msgspec.Struct, array_like=True, frozen=True):
    topic_uid: int
    name: str
    offset: int
    """The next one that the reader needs."""
    ttl_us: int
    """How long it holds from `SetPins.at_us` on; 0 lets go of it."""
    about: str = ""


class SetPins(Command, frozen=True):
    """Readers renew their pins, or let go of them: those that one node heard of, in one command."""

    at_us: int
    """The proposer's time. What is older than what a pin has changes nothing of it."""
    rows: list[PinRow]


class PublishObject(Command, frozen=True):
    """A sealed segment is in the history, verified (E1): once for each segment."""

    topic_uid: int
    segment_uid: int
    name: str
    attempt: int
    end_offset: int
    """Where the records end that it has: all that the segment has."""
    size: int
    crc: int
    first_append_time_us: int
    exported_by: int
    at_us: int


class AbandonObject(Command, frozen=True):
    """This attempt, and those before it, will never be published: then the object may be deleted (E3)."""

    topic_uid: int
    segment_uid: int
    attempt: int


class ReleaseCopies(Command, frozen=True):
    """No node is to have a copy of a segment any more: its object has it, which the proposer has just read to
    its end (C3). A compare-and-set on the list and the object."""

    topic_uid: int
    segment_uid: int
    name: str
    expected: list[int]


class ReportObject(Command, frozen=True):
    """What somebody found who read an object: whether it is damaged, or missing (C3)."""

    topic_uid: int
    segment_uid: int
    name: str
    damaged: bool


class RequestMove(Command, frozen=True):
    """A topic is to be led by another node (`metadata.moves`). The index of this command is the move's id."""

    topic_uid: int
    target: int
    reason: int
    """A `MoveReason`."""
    stays: bool
    """Whether the target becomes the topic's home: it stays there across rollovers."""
    at_us: int
    by: int
    """The member that was asked to, in which of its starts, and its how manieth: by these a repeat of the
    command is known."""
    starts: int
    number: int


class CancelMove(Command, frozen=True):
    """From here on its seal is refused (E7); after the seal the topic stays where it is by then."""

    move: int


class FailMove(Command, frozen=True):
    """The topic's leader cannot hand it to the target."""

    move: int
    why: str


class ReleaseTopic(Command, frozen=True):
    """The topic has no home any more: it goes round with its rollovers."""

    topic_uid: int


class DrainNode(Command, frozen=True):
    """A node is to get nothing new, and what it has is to go elsewhere (`metadata.drains`)."""

    member: int
    max_parallel: int
    """So many of its topics move at a time."""
    at_us: int


class ActivateNode(Command, frozen=True):
    """A drained node is one like the others again."""

    member: int


class CreateSubscription(Command, frozen=True):
    """Create if absent: a durable place in a topic; the existing one is the answer otherwise."""

    topic_uid: int
    name: str
    kind: str
    cursor: int
    """Where it begins: the next offset (S4)."""
    created_at_us: int
    policy: FailurePolicy = FailurePolicy()


class DeleteSubscription(Command, frozen=True):
    topic_uid: int
    uid: int


class ClaimSubscription(Command, frozen=True):
    """A member becomes the owner of a subscription: a compare-and-set on its epoch (S1)."""

    topic_uid: int
    uid: int
    owner: int
    epoch: int
    """One more than the epoch that it is taken from."""


class FlushRow(msgspec.Struct, array_like=True, frozen=True):
    """How far one subscription has come (S2)."""

    topic_uid: int
    uid: int
    epoch: int
    cursor: int
    """The next offset: everything below is acknowledged (S4)."""
    beyond: list[tuple[int, int]]
    """Ranges that are acknowledged beyond the cursor."""
    attempts: list[tuple[int, int, int]]
    """From, to before, and how often these were handed out that are not acknowledged."""


class FlushSubscriptions(Command, frozen=True):
    """What one member's subscriptions have come to; one command for all of them. Each row stands for itself:
    it applies if the owner and the epoch are the current ones, and never takes a cursor back."""

    owner: int
    rows: list[FlushRow]


class SeekSubscription(Command, frozen=True):
    """Go on at another offset. Raises the epoch, so that no flush from before undoes it (S1)."""

    topic_uid: int
    uid: int
    epoch: int
    """One more than the epoch that is left."""
    cursor: int


class PauseSubscription(Command, frozen=True):
    """Hand out nothing, or go on."""

    topic_uid: int
    uid: int
    paused: bool


AnyCommand = (
    FoundCluster
    | UpsertNode
    | RemoveNode
    | CreateTopic
    | AlterTopic
    | DeleteTopic
    | SealSegment
    | BeginRecovery
    | SetReplicas
    | ReportCopies
    | AcceptLoss
    | AcceptGone
    | OpenedSegment
    | TrimTopic
    | ClaimCursor
    | FlushCursors
    | SetPins
    | PublishObject
    | AbandonObject
    | ReleaseCopies
    | ReportObject
    | RequestMove
    | CancelMove
    | FailMove
    | ReleaseTopic
    | DrainNode
    | ActivateNode
    | CreateSubscription
    | DeleteSubscription
    | ClaimSubscription
    | FlushSubscriptions
    | SeekSubscription
    | PauseSubscription
)

_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyCommand)


def encode_command(command: AnyCommand) -> bytes:
    return msgspec.msgpack.encode(command)


def decode_command(data: bytes) -> AnyCommand | None:
    """None for a command that this build does not know: its application is an error result, not a crash."""
    try:
        return _decoder.decode(data)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, ValueError):
        return None


class Result(StrEnum):
    CREATED = "created"
    EXISTS = "exists"
    APPLIED = "applied"
    STALE = "stale"
    """The compare-and-set lost: somebody else's command came first."""
    REFUSED = "refused"
    """Well-formed and not allowed in this state; the detail says why."""


class Outcome(msgspec.Struct, frozen=True):
    """What applying a command came to."""

    result: Result
    index: int
    detail: str = ""
    topic_uid: int = 0

    @property
    def ok(self) -> bool:
        return self.result in (Result.CREATED, Result.EXISTS, Result.APPLIED)
