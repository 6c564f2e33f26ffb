"""What the replicas of a segment say to each other, on the peer port.

`Replicate` and `Replicated` are a stream on a connection of their own, from the segment's leader to a
follower and back; everything else is a request. A topic and a segment are named by their uids (I3), a replica
by its member (I2). A node applies the metadata up to the segment's uid, or the recovery's number, before it
looks at a message.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ister.protocol.messages import Message


class Replicate(Message, frozen=True):
    """Frames that follow each other, in the payload; none in one that only asks or tells."""

    topic_uid: int
    segment_uid: int
    base_offset: int
    """Where the payload begins, or would."""
    commit_end: int
    """What is committed: followers may serve up to here (F5)."""
    fsync: str
    """The segment's policy, for as long as it lives; the topic's may have changed."""
    question: int = 0
    """Not 0: do you still follow? Its answer has the same number."""


class Refusal(StrEnum):
    """Why a follower did not take what it was sent."""

    NONE = ""
    GAP = "gap"
    """It ends earlier than the payload begins: go on from its end."""
    FENCED = "fenced"
    """A recovery has begun; `recovery` is its number. It takes nothing more of this segment, for good."""
    SEALED = "sealed"
    UNKNOWN = "unknown"
    """It is no replica of this segment, or the segment is gone."""
    STORAGE = "storage"
    """Its disk failed, or what it has is damaged."""


class Replicated(Message, frozen=True):
    segment_uid: int
    end_offset: int
    """Up to here it has synced."""
    refusal: Refusal = Refusal.NONE
    recovery: int = 0
    question: int = 0
    """Of the message that this answers; 0 if that asked nothing, or frames were synced."""


class Fence(Message, frozen=True):
    """Take no more appends to this segment, for good (F2). Answered when that, and the end, are durable."""

    topic_uid: int
    segment_uid: int
    recovery: int
    """The index of the `BeginRecovery` that this is part of; one lower than was promised is refused (F1)."""


class FenceAnswer(Message, frozen=True):
    end_offset: int
    end_position: int
    in_doubt: bool
    """A tail was cut here, which may have been acknowledged and rotten (P3)."""
    commit_end: int
    """What it knows to be committed."""


class Copy(Message, frozen=True):
    """Bring your log of this segment up to `end_offset`, from another's. Answered when that is durable.

    Of a sealed segment, with no recovery: have a whole copy of it. Then it is answered within moments, if
    only with `NOT_YET`, and asked again. Without a source: say only whether you are a replica that has it.
    Whoever is the only one that is known to have it reads its copy to the end for that (C4)."""

    topic_uid: int
    segment_uid: int
    recovery: int
    source: int
    end_offset: int
    index: int = 0
    """Of a sealed one: what whoever asks has applied. The one that is asked applies that first."""


NOT_YET: Final = -1


class CopyAnswer(Message, frozen=True):
    end_offset: int
    """`NOT_YET` of a copy that is under way, or is not whole."""
    end_position: int


class ReadLog(Message, frozen=True):
    """Whole frames from `offset` on, of a log that is fenced or sealed. The answer is the frames
    themselves."""

    topic_uid: int
    segment_uid: int
    offset: int
    max_bytes: int
    recovery: int = 0
    """Of a fenced one: the recovery that asks. 0 of a sealed one."""


class AskReach(Message, frozen=True):
    """How far does your copy of this sealed segment go? For whoever is about to give up the rest (F6)."""

    topic_uid: int
    segment_uid: int
    index: int
    """What whoever asks has applied. The one that is asked applies that first."""


class ReachAnswer(Message, frozen=True):
    """What is durable, from the segment's base on, and was read frame by frame past the last checkpoint."""

    end_offset: int
    end_position: int
    last_append_time_us: int
