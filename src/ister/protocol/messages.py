"""Requests, answers and what they carry. All are msgpack arrays: a field's place is its identity."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

PREAMBLE_MAGIC: Final = b"ISTR"
PROTOCOL_VERSION: Final = 1

EARLIEST: Final = -2
LATEST: Final = -1


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


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Base of all that is encoded as a msgpack array."""


class Failure(Message, frozen=True):
    """The header of an answer whose kind is the number of an error."""

    message: str
    hint: str = ""


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


class Append(Message, frozen=True):
    """Payload: one frame. The answer's header is `AppendAnswer` in its fixed layout (`codec`)."""

    topic: str


class Fetch(Message, frozen=True):
    topic: str
    offset: int
    max_bytes: int
    """About how many bytes of frames to return; at least one whole frame comes, however large."""
    wait_ms: int = 0
    """How long to wait if `offset` is the end and nothing is there yet."""


class FetchAnswer(Message, frozen=True):
    """Payload: whole frames; the first one holds `offset`, and may start before it."""

    start_offset: int
    """The topic's first available offset."""
    end_offset: int
    """The topic's end: the offset that the next record will get."""


class ListOffsets(Message, frozen=True):
    topic: str
    at: list[int]
    """`EARLIEST`, `LATEST`, or a time in microseconds: the first record appended at or after it."""


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


class ListTopics(Message, frozen=True):
    prefix: str = ""


class DescribeTopic(Message, frozen=True):
    topic: str


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


class TopicList(Message, frozen=True):
    topics: list[TopicDescription]
    """Without their segments."""


class ClusterNode(Message, frozen=True):
    node_id: int
    client_host: str
    client_port: int


class ClusterAnswer(Message, frozen=True):
    cluster_id: str
    nodes: list[ClusterNode]


class StatsAnswer(Message, frozen=True):
    """A broker's own figures, for `ister bench` and the curious."""

    rss_bytes: int
    uptime_ms: int
    metrics: dict[str, float]


class Empty(Message, frozen=True):
    """A request or an answer that says nothing beyond its kind."""
