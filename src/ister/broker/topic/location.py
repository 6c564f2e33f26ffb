"""Where an offset of a topic lives, as a value: this node has it, or who does, or why nobody need be asked.

It is what this node knows of the metadata at this moment, which may be old: whoever does not find there what
it says looks again (`Looking`, in `ister.broker.forward.elsewhere`). Who asks answers for each of these, and
the type checker names who has to know of one more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ister.metadata.state import SegmentState
from ister.wal.followed import FollowedSegment


@dataclass(frozen=True, slots=True)
class Here:
    """This node answers: it leads the segment, or it has a whole copy of a sealed one (F3)."""

    segment: SegmentState


@dataclass(frozen=True, slots=True)
class Follower:
    """In the open segment, which another node leads and this one follows as far as there: it may answer a
    reader that allows it (F5), and else asks the leader."""

    segment: SegmentState
    copy: FollowedSegment


@dataclass(frozen=True, slots=True)
class Remote:
    """Other nodes have it, and this one does not."""

    segment: SegmentState


@dataclass(frozen=True, slots=True)
class History:
    """In an object of the history, and on no node that answers: any node reads it from there."""

    segment: SegmentState


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An operator accepted the loss of these offsets (F6): nobody has them."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Unavailable:
    """In a sealed segment that no disk in the cluster has: there is nobody to ask."""

    segment: SegmentState


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Before the first offset that the topic still has."""


Location = Here | Follower | Remote | History | GivenUp | Unavailable | Trimmed
