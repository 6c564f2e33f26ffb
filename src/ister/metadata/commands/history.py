"""Commands about segments in the history (E1 to E3, C3)."""

from __future__ import annotations

from ister.metadata.commands.base import Command


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
