"""Commands about segments in the history (E1 to E3, C3)."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import Command, TopicCommand


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
    replaces: str = ""
    """The object that it is made in place of, which was reported damaged."""


class AbandonObject(Command, frozen=True):
    """This attempt, and those before it, will never be published: then the object may be deleted (E3)."""

    topic_uid: int
    segment_uid: int
    """Of a merged object the first one."""
    attempt: int
    name: str = ""
    """Refused while this is what a descriptor names, of whichever segment. Empty of commands from before
    objects were merged: those go by the attempt."""


class MergedPart(msgspec.Struct, array_like=True, frozen=True):
    """A segment whose bytes are in a merged object."""

    segment_uid: int
    attempt: int
    """That of the object which it was copied from: what is compared. It rises with each that is published."""


class ReplaceObjects(TopicCommand, frozen=True):
    """One object has the bytes of all these segments, end to end, verified (E5): a compare-and-set on each of
    their descriptors, of all or of none."""

    name: str
    attempt: int
    """Of the first segment, as in its name; above those of all parts."""
    parts: list[MergedPart]
    """Neighbours in the chain, in order."""
    made_by: int
    at_us: int


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
