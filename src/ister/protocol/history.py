"""What is asked about the history of a topic, and what is answered."""

from __future__ import annotations

from ister.protocol.messages import Message


class ListHistory(Message, frozen=True):
    topic: str


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


class HistoryList(Message, frozen=True):
    topic: str
    topic_uid: int
    start_offset: int
    mode: str
    location: str
    """Of the store; empty where there is none."""
    entries: list[HistoryEntry]


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
