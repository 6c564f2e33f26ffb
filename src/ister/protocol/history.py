"""What is asked about the history of a topic, and what is answered."""

from __future__ import annotations

from ister.protocol.messages import Message


class ListHistory(Message, frozen=True):
    topic: str
    start_offset: int = 0
    """Only segments with offsets from here on,"""
    end_offset: int = 0
    """and before this; 0 is no bound."""


class HistoryEntry(Message, frozen=True):
    """A segment of a topic, as the history has it, or is to have it."""

    segment: int
    uid: int
    start_offset: int
    end_offset: int
    """Behind the last record; of an open one its start."""
    state: str
    """`published`; `waiting` for its export; `open`; `empty`, which is never exported; `local`, where there
    is no store; `damaged`, if somebody has read its object and it was not what it should be."""
    replicas: list[int]
    """The nodes that have copies too; none once they were released."""
    name: str = ""
    size: int = 0
    crc: int = 0
    first_append_time_us: int = 0
    last_append_time_us: int = 0
    exported_by: int = 0
    published_at_us: int = 0
    frames_size: int = 0
    """How many bytes of frames the segment has."""
    position: int = 0
    """Where its bytes begin in the object, which has those of several segments,"""
    stored_size: int = 0
    """and how large all of that object is; 0 of one that has this segment alone."""
    attempt: int = 0
    """Of the object."""
    next_attempt: int = 0
    """An object that begins with this segment has this attempt at least, or is never published."""


class HistoryList(Message, frozen=True):
    topic: str
    topic_uid: int
    start_offset: int
    mode: str
    location: str
    """Of the store; empty where there is none."""
    entries: list[HistoryEntry]
    index: int = 0
    """The revision of the catalog: the metadata that the node had applied when it looked."""


class VerifyObject(Message, frozen=True):
    """Read the object of a segment to its end."""

    topic: str
    topic_uid: int
    segment_uid: int


class ObjectVerified(Message, frozen=True):
    name: str
    size: int
    problem: str = ""
    """Empty if the object is what it should be, to its last byte."""


class SweepHistory(Message, frozen=True):
    """Delete the objects of a topic that no descriptor names, and none will."""

    topic: str


class HistorySwept(Message, frozen=True):
    deleted: list[str]


class ReplacedPart(Message, frozen=True):
    """A segment whose bytes are in a merged object."""

    segment_uid: int
    attempt: int
    """Of the object which they were copied from."""


class MergeObjects(Message, frozen=True):
    """Let one object, uploaded and read back to its end, take the place of those of its segments."""

    topic: str
    topic_uid: int
    attempt: int
    parts: list[ReplacedPart]
    """Neighbours, in order; the object has their bytes end to end."""


class ObjectsMerged(Message, frozen=True):
    name: str
    size: int
    problem: str = ""
    """Why nothing was changed; empty if the segments are in that object now."""


class LookUp(Message, frozen=True):
    """What of the metadata is at a path, and below it (`ister.broker.view.paths`)."""

    path: str


class LookedUp(Message, frozen=True):
    is_there: bool
    value: bytes
    """JSON."""
    below: list[str]


class Explain(Message, frozen=True):
    """Where a record is, and why it is answered from there."""

    topic: str
    offset: int


class Explanation(Message, frozen=True):
    topic: str
    offset: int
    tier: str
    """From where the node that was asked answers: `hot tail`, `log`, `follower`, `other node`, `history`,
    `given up`, `lost`, `trimmed`, `not written yet`."""
    hot_start_offset: int
    """From here on nodes have the records; what is before is in the history only."""
    replicas: list[int]
    whole: list[int]
    """Those of them that are known to have all of it."""
    segment: int = 0
    segment_uid: int = 0
    start_offset: int = 0
    end_offset: int = 0
    """Of the segment; 0 while it is open."""
    leader: int = 0
    object_name: str = ""
    object_crc: int = 0
    frame_offset: int = 0
    """The frame that has the record, which was read for this: where it begins,"""
    frame_count: int = 0
    frame_size: int = 0
    body_crc: int = 0
    header_crc: int = 0
    append_time_us: int = 0
    producer_id: int = 0
    sequence: int = 0
    trouble: str = ""
    """Why the frame could not be read."""
