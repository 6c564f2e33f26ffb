"""Where an opened segment goes on, and why there: the one place that says so (E6).

The chain says where the segment begins, its own log how far it got. History and "nothing there" never set
an offset; what is not known is no reason at all, so an opened segment whose log is missing does not come
here: it waits, or is recovered. The reasons are named after the documents that this follows; they are for
people.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ister.errors import invariant
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of


class Reason(StrEnum):
    """Of several that hold, the one that decides: an own log is newer than any seal before it (D10)."""

    LOCAL_WAL = "local wal"
    """The segment has a log here: behind its last record."""
    SEALED_STATE = "sealed state"
    """The segment before was sealed at an end: there."""
    CATALOG = "segment catalog"
    """What was before is trimmed; the list of segments begins there."""
    EMPTY = "empty topic"
    """Nothing was ever written: at 0."""


class Resumed(NamedTuple):
    offset: int
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"at offset {self.offset}, by {self.reason}: {self.detail}"


def resume(topic: TopicState, log_end: int | None) -> Resumed:
    """Where the open segment of a topic goes on. `log_end` is the end of its log if it had one already."""
    opened = topic.open_segment
    key = topic.key_of(opened)
    if log_end is not None:
        invariant(log_end >= opened.base_offset, f"the log of {key} ends at {log_end}, before its base")
        return Resumed(log_end, Reason.LOCAL_WAL, f"the log of {key} ends there")
    before = topic.segment(opened.segment - 1)
    if before is not None:
        return Resumed(opened.base_offset, Reason.SEALED_STATE, _sealed(topic, before))
    if opened.segment > 1 or opened.base_offset:
        return Resumed(opened.base_offset, Reason.CATALOG, f"the segments before {key} are trimmed")
    return Resumed(0, Reason.EMPTY, f"{topic.name} is new")


def _sealed(topic: TopicState, before: SegmentState) -> str:
    if before.lost_from is not None:
        return f"{topic.key_of(before)} was ended there when its rest was given up"
    return f"node {node_of(before.sealed_by)} sealed {topic.key_of(before)} there"
