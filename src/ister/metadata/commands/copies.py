"""What nodes say of their copies of sealed segments (C2)."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from ister.metadata.commands.base import Command


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
