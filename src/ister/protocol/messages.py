"""Requests, answers and what they carry. All are msgpack arrays: a field's place is its identity."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

PREAMBLE_MAGIC: Final = b"ISTR"
PROTOCOL_VERSION: Final = 1

EARLIEST: Final = -2
LATEST: Final = -1
ANY_OFFSET: Final = -1


class Kind(IntEnum):
    HELLO = 1
    APPEND = 2
    FETCH = 3
    LIST_OFFSETS = 4
    CREATE_TOPIC = 5
    DELETE_TOPIC = 6
    LIST_TOPICS = 7
    DESCRIBE_TOPIC = 8
    ALTER_TOPIC = 9
    CLUSTER = 10
    STATS = 11
    TRANSFER_LEADER = 12
    ADD_NODE = 13
    REMOVE_NODE = 14
    PROMOTE_NODE = 15
    CONTROL = 16
    RECOVER_TOPIC = 17
    TRIM_TOPIC = 18
    PIN_TOPIC = 19
    LIST_PINS = 20
    LIST_HISTORY = 30
    VERIFY_OBJECT = 31
    SWEEP_HISTORY = 32
    LOOK_UP = 33
    EXPLAIN = 34
    MERGE_OBJECTS = 35
    MOVE_TOPIC = 40
    """This one and the next: `ister.protocol.moves`."""
    LIST_MOVES = 41
    CANCEL_MOVE = 42
    DRAIN_NODE = 43
    ACTIVATE_NODE = 44
    LOAD = 45
    BALANCE = 46
    CREATE_SUBSCRIPTION = 60
    DELETE_SUBSCRIPTION = 61
    LIST_SUBSCRIPTIONS = 62
    PULL = 63
    SETTLE = 64
    SEEK_SUBSCRIPTION = 65
    PAUSE_SUBSCRIPTION = 66


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Base of all that is encoded as a msgpack array."""


class Failure(Message, frozen=True):
    """The header of an answer whose kind is the number of an error."""

    message: str
    hint: str = ""
    offsets: list[int] = []
    """What it is about, where that is a range: its first offset, and the one behind it."""
    index: int = 0
    """Of `unknown-producer`, where a first frame was refused for want of a newer `told_index`: this one."""


class Hello(Message, frozen=True):
    client: str
    """Name and version of the client, for logs."""
    cluster_id: str = ""
    """The cluster that the client expects; empty if it will take any."""


class HelloAnswer(Message, frozen=True):
    version: int
    """The protocol version spoken on this connection."""
    broker: str
    cluster_id: str
    node_id: int
    max_message_bytes: int
    max_in_flight_bytes: int
    """Unanswered request bytes that the broker takes from one connection before it stops reading."""
    index: int = 0
    """The metadata that the broker has applied: for `Append.told_index`."""


class Append(Message, frozen=True):
    """Payload: one frame. The answer's header is `AppendAnswer` in its fixed layout (`codec`)."""

    topic: str
    min_index: int = 0
    """The receiver applies metadata up to here before it looks at this.

    From a node that passes it on: no two nodes can then send it to each other for ever, for who passes it on
    again knows of a later handoff (H3). From a client: it has made or deleted a topic of this name at that
    index, and does not mean the one before (I3)."""
    expected_offset: int = ANY_OFFSET
    """Append only if the first record gets this offset, else fail with `UnexpectedOffset`. A frame that the
    log has already is answered with its original offsets, whatever is expected (A5)."""
    told_index: int = 0
    """Of a producer's first frame, with sequence 0: a metadata index that the client had been told before it
    sent the frame for the first time (A5). A log that has forgotten producers since cannot know whether it
    has the frame."""
    topic_uid: int = 0
    """Append only to the topic that has this uid, and never to one that was made again under its name, or is
    made for this (I3); 0 is whichever has the name."""


class Fetch(Message, frozen=True):
    topic: str
    offset: int
    max_bytes: int
    """About how many bytes of frames to return; at least one whole frame comes, however large."""
    wait_ms: int = 0
    """How long to wait if `offset` is the end and nothing is there yet."""
    min_index: int = 0
    only_wait: bool = False
    """Answer without a payload, once there is one or the wait is over: for a node that passes the request on,
    and for a client that only wants to know whether there is more."""
    topic_uid: int = 0
    """The topic that the reader has read so far: one that was made again under its name is another (I3)."""
    here_only: bool = False
    """From a node that passes it on, to one of a sealed segment's replicas: answer from it, or fail."""
    read_from_any: bool = False
    """Any replica of the open segment may answer, as far as it knows what is committed (F5). With nothing to
    answer with when the wait is over, the leader is asked: an empty answer is always the leader's."""
    as_it_is: bool = False
    """With `here_only`, from a client that compares copies: damage to this one is an error at once, where
    others are answered from another copy, or from this one once it is mended."""


class FetchAnswer(Message, frozen=True):
    """Payload: whole frames; the first one holds `offset`, and may start before it."""

    start_offset: int
    """The topic's first available offset."""
    end_offset: int
    """The topic's end, as far as the node that answers knows: the offset that the next record will get."""
    served_by: int = 0
    """The node that has the records: the one to ask next. 0 if nobody knows."""
    topic_uid: int = 0


class ListOffsets(Message, frozen=True):
    topic: str
    at: list[int]
    """`EARLIEST`, `LATEST`, or a time in microseconds: the first record appended at or after it."""
    min_index: int = 0
    here_only: bool = False
    topic_uid: int = 0
    """Of the topic that has it, and no other that has its name now (I3); of any for 0."""


class ListOffsetsAnswer(Message, frozen=True):
    offsets: list[int]
    """One for each asked; the end of the topic where there is no such record."""


class TopicSettings(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What can be set for each topic. Defaults are the broker's (`ister.config`)."""

    segment_records: int = 1_000_000
    """A segment is handed off once it holds this many records."""
    segment_bytes: int = 256 * 1024 * 1024
    """... or this many bytes."""
    segment_age_ms: int = 0
    """... or is this old; 0 is never."""
    fsync: str = "fsync"
    """`fsync`: acknowledged is on disk. `interval`: synced every so often. `none`: left to the
    operating system. The latter two lose acknowledged records on power loss (P6)."""
    retention_ms: int = 0
    """Sealed segments whose last record is older than this are dropped; 0 keeps them."""
    retention_bytes: int = 0
    """Oldest sealed segments are dropped while the topic is larger than this; 0 keeps them."""
    max_message_bytes: int = 16 * 1024 * 1024
    """The largest frame that the topic takes."""
    replicas: int = 3
    """How many nodes each segment is wanted on; all of them if the cluster has fewer."""
    local_retention_ms: int = 48 * 3_600_000
    """Where there is a history: copies of segments that it has, and whose last record is older than this, are
    removed from the nodes; 0 keeps them."""
    local_retention_bytes: int = 20 * 1024**3
    """The oldest copies are removed too while nodes have more than this of the topic; 0 keeps them."""

    def changed(self, settings: Mapping[str, int | str]) -> TopicSettings | None:
        """With these in place of the old ones; None if a name or the kind of a value is not right."""
        known = msgspec.structs.asdict(self)
        if any(type(known.get(name)) is not type(value) for name, value in settings.items()):
            return None
        return TopicSettings(**{**known, **settings})


class CreateTopic(Message, frozen=True):
    topic: str
    settings: dict[str, int | str] = {}
    """By name; those not named have the broker's defaults."""
    if_absent: bool = False


class AlterTopic(Message, frozen=True):
    topic: str
    settings: dict[str, int | str]


class DeleteTopic(Message, frozen=True):
    topic: str
    uid: int = 0
    """Only the topic that has this uid; 0 is whichever has the name now. A request that is sent again, or was
    delayed, then never deletes a topic that was made after it (I3)."""


class Deleted(Message, frozen=True):
    index: int = 0
    """Since when: a node that has not applied this yet may still take the topic for alive."""
    was_there: bool = True
    """False if the topic with the uid that was given was gone already."""


class TrimTopic(Message, frozen=True):
    """Drop sealed segments that lie before an offset, as retention would: whole ones only, oldest first."""

    topic: str
    before_offset: int
    """No record from here on is dropped."""
    uid: int = 0
    """Only the topic that has this uid; 0 is whichever has the name now (I3)."""


class Trimmed(Message, frozen=True):
    start_offset: int
    """Where the topic begins now."""


class PinTopic(Message, frozen=True):
    """A reader says how far it is in a topic, and asks to be waited for. It says so again before `ttl_ms` are
    over, or retention goes on without it."""

    topic: str
    name: str
    """Of the reader; it has one pin in a topic."""
    offset: int
    """The next one that it needs."""
    ttl_ms: int
    """0 lets go of the pin."""
    uid: int = 0
    """Only the topic that has this uid; 0 is whichever has the name now (I3)."""
    about: str = ""
    """What it is, for people."""


class Pinned(Message, frozen=True):
    start_offset: int
    """Where the topic begins: a reader that needs an earlier offset comes too late."""
    expires_at_us: int
    """By the clock of the node that answers; 0 of a pin that was let go of."""


class ListPins(Message, frozen=True):
    prefix: str = ""
    """Of full names of topics, as in `ListTopics`."""


class PinDescription(Message, frozen=True):
    topic: str
    topic_uid: int
    name: str
    offset: int
    renewed_at_us: int
    expires_at_us: int
    is_live: bool
    """Whether it holds anything back; one that ran out is shown for a day."""
    about: str = ""
    rate: float = 0.0
    """Records a second between its last two renewals."""


class PinList(Message, frozen=True):
    pins: list[PinDescription]


class ListTopics(Message, frozen=True):
    prefix: str = ""
    """Of full names. Topics of system namespaces are listed only if it begins with `_`."""
    own_only: bool = False
    """From another node that gathers: only topics whose open segment the asked node leads."""


class DescribeTopic(Message, frozen=True):
    topic: str
    min_index: int = 0


class CopyDescription(Message, frozen=True):
    """One of a segment's replicas that is not known to be whole."""

    node: int
    state: str
    """`behind`: of an open segment, it lacks records or gets none. `incomplete`, `damaged`: of a sealed one,
    it is being completed or replaced. `gone`: it was on a disk that left the cluster. `down`: its node does
    not answer. `unknown`: it did not say."""
    lacks: int = 0
    """How many committed records of an open segment it is not known to have."""
    why: str = ""


class SegmentDescription(Message, frozen=True):
    segment: int
    uid: int
    base_offset: int
    end_offset: int
    bytes: int
    leader: int
    sealed: bool
    first_append_time_us: int
    last_append_time_us: int
    state: str
    """`open`, `sealed`, or what is wrong with it."""
    replicas: list[int] = []
    """The nodes that have its data."""
    behind: list[int] = []
    """Those of them that do not have all of it, as far as the node that answers knows."""
    copies: list[CopyDescription] = []
    """Those of them that are behind, or may be: how it is with each. All others have all of it."""
    lost: int = 0
    """How many of its offsets were given up, the last ones (F6)."""
    end_is_known: bool = True
    """False of an open one whose leader did not answer: its end and size are the least that they can be."""


class TopicDescription(Message, frozen=True):
    topic: str
    """With its namespace."""
    uid: int
    start_offset: int
    end_offset: int
    bytes: int
    settings: TopicSettings
    segments: list[SegmentDescription]
    producers: int
    """How many idempotent producers the log remembers."""
    notes: list[str]
    """What a person should know: a weak fsync policy, a cut tail, a fenced segment."""
    lost: int = 0
    """How many of the offsets between its start and its end were given up (F6)."""
    end_is_known: bool = True
    """False if its leader did not answer: its end and size are the least that they can be, by what the node
    that answers knows."""
    resumed: str = ""
    """Where its leader went on when it opened the segment, and why (E6); empty if it has not."""


class RecoverTopic(Message, frozen=True):
    """What stands in the way of a topic's open segment; or give up what cannot be reached of it (F6)."""

    topic: str
    accept_loss: bool = False
    node_stopped: bool = False
    """The operator states that the nodes in `TopicRecovery.silent` are stopped, and stay so until they hear
    of it."""
    segment_uid: int = 0
    """The segment that the operator was shown, and no later one."""
    leader_starts: int = 0
    """The leader's last start then: one that came back since has what was to be given up."""
    lost_from: int = 0
    """Where the loss began that was shown. A larger one, which begins earlier, is refused."""
    own_only: bool = False
    """From another node: what the asked one knows by itself (`KnownOfTopic`); or do it there, and pass
    nothing on."""
    min_index: int = 0
    gone_segments: list[int] = []
    """Sealed segments to be given up, by uid, of which the operator was shown that they are gone."""
    gone_from: list[int] = []
    """From which offset on, of each of them. A loss that begins earlier is refused."""


class TopicList(Message, frozen=True):
    topics: list[TopicDescription]
    """Without their segments."""


class Cluster(Message, frozen=True):
    ask_nodes: bool = False
    """Ask the other nodes how their copies are, too: for people. Without it, only who and where they are."""


class ClusterNode(Message, frozen=True):
    node_id: int
    client_host: str
    client_port: int
    peer_host: str = ""
    peer_port: int = 0
    role: str = "voter"
    """`leader`, `voter` or `learner` of the metadata; `joining` until it is one of them."""
    alive: bool = True
    """Whether the node that answers hears from it."""
    disk_id: str = ""
    starts: int = 0
    behind: int = 0
    """How many metadata entries it lacks, if the node that answers leads the metadata; else 0."""
    open_segments: int = 0
    """Topics whose open segment it leads."""
    segments: int = 0
    """Segments that it has the data of."""
    drained: bool = False
    """Whether it gets nothing new, and what it has is to go elsewhere."""


class Problem(Message, frozen=True):
    """Something that a person should know or do."""

    code: str
    what: str
    action: str
    """The command or step that mends it."""


class ClusterAnswer(Message, frozen=True):
    cluster_id: str
    nodes: list[ClusterNode]
    answered_by: int = 0
    leader: int = 0
    """The node that leads the metadata; 0 if none is known."""
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    snapshot_index: int = 0
    topics: int = 0
    segments: int = 0
    is_current: bool = True
    """False: the metadata leader could not be asked, this is the answering node's own view."""
    problems: list[Problem] = []


class NodeRequest(Message, frozen=True):
    """Of `REMOVE_NODE`, `PROMOTE_NODE`, and `TRANSFER_LEADER`, where 0 leaves the choice to the leader."""

    node_id: int
    disk_gone: bool = False
    """Of `REMOVE_NODE`: the operator states that the node's disk is gone for good, and with it whatever only
    that one had."""


class AddNode(Message, frozen=True):
    """Invite the node that waits at this peer address; it joins as a learner."""

    peer_host: str
    peer_port: int


class NodeAnswer(Message, frozen=True):
    node_id: int
    detail: str = ""


class Control(Message, frozen=True):
    """For tests: off unless `test_controls` is on, then only from loopback and with the cluster's secret."""

    secret: str
    action: str
    """`revoke-leases`, `sync-leases`, `monitor-error`, `forward-error`."""
    topic: str = ""
    count: int = 1


class StatsAnswer(Message, frozen=True):
    """A broker's own figures, for `ister bench` and the curious."""

    rss_bytes: int
    uptime_ms: int
    metrics: dict[str, float]


class Empty(Message, frozen=True):
    """A request or an answer that says nothing beyond its kind."""
