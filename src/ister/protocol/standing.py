"""What a node tells another, on the peer port, of the copies that it keeps: for views that people are shown.

Lists are bounded: the counts beside them are not.
"""

from __future__ import annotations

from ister.protocol.messages import Message


class AskStanding(Message, frozen=True):
    topic_uid: int = 0
    """Only of this topic, and as of this very moment. 0 is all: of those only what has lasted for a while,
    since a copy is looked at after each seal, and is not known to be whole until then."""


class FollowerStanding(Message, frozen=True):
    """A follower of an open segment that the node which answers leads."""

    topic_uid: int
    segment_uid: int
    member: int
    lacks: int
    """How many committed records it is not known to have."""
    why: str
    """Why it gets none; empty if it follows."""


class RecoveryStanding(Message, frozen=True):
    """A recovery that the node which answers coordinates, or has given up for now."""

    topic_uid: int
    segment_uid: int
    detail: str
    """What has been heard, and what it waits for."""


class TopicFault(Message, frozen=True):
    """Why the node that leads a topic does not take appends to it."""

    topic_uid: int
    why: str


class Standing(Message, frozen=True):
    incomplete: list[int]
    incomplete_count: int
    damaged: list[int]
    unmendable: list[int]
    """These four were said before the metadata knew who has what, and are empty since."""
    followers: list[FollowerStanding]
    recoveries: list[RecoveryStanding]
    faults: list[TopicFault]
    notes: list[str]
    """What is kept here of records that were given up (F6); only if one topic was asked for."""
    has_looked: bool = True
    """The same: always so."""
    disk: str = ""
    """What is wrong with its disk, if copies could not be written to it and were not since."""
