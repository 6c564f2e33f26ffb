"""Sealed segments that left the cluster with the disks that had them: who finds them missing, and says so.

A disk that left does not come back (I2), and a disk that alone has records leaves only by an operator's word
(`--replace-disk`). Its records are gone from then on; an operator may have that recorded (F6). The same holds
of the rest of a segment, where the disks that had it whole left and the copies that stayed end short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ister.metadata.nodes import Nodes, is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.protocol.recovery import LostRecords
from ister.protocol.standing import Standing

PARTS_AT_ONCE = 100
"""Segments with a part left that are shown, and given up, at a time: each of their copies is opened then."""

Short = Mapping[int, Mapping[int, int]]
"""By member and segment: up to which offset copies go that end short, and cannot be completed."""


class Missing(NamedTuple):
    """A sealed segment whose records are gone from an offset on."""

    segment: SegmentState
    from_offset: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is left."""
        return self.from_offset == self.segment.base_offset


def short_copies(standings: Mapping[int, Standing]) -> Short:
    return {member: dict(told.short) for member, told in standings.items() if told.short}


def parts_of(topic: TopicState, nodes: Nodes, short: Short) -> list[Missing]:
    """What is gone of a topic, in its order."""
    found: list[Missing] = []
    parts = 0
    for segment in topic.segments:
        start = gone_from(segment, nodes, short)
        if start is not None:
            parts += not is_gone(segment, nodes)
            if parts <= PARTS_AT_ONCE:
                found.append(Missing(segment, start))
    return found


def may_be_short(topic: TopicState, nodes: Nodes) -> bool:
    """Whether some disks of a sealed segment left and others are there: those have to say what they have."""
    return any(
        segment.is_sealed
        and not segment.is_empty
        and len({is_in_cluster(nodes, m) for m in segment.replicas}) > 1
        for segment in topic.segments
    )


def gone_from(segment: SegmentState, nodes: Nodes, short: Short) -> int | None:
    """From which offset on a sealed segment's records are on no disk that is in the cluster, as far as those
    say that have a copy; None if nothing is gone, or one of them may have all of it."""
    if not segment.is_sealed or segment.is_empty or segment.history is not None:
        return None
    there = [member for member in segment.replicas if is_in_cluster(nodes, member)]
    if len(there) == len(segment.replicas):
        return None  # who is short waits for one of the others
    ends = [short.get(member, {}).get(segment.uid) for member in there]
    reached = [end for end in ends if end is not None]
    if len(reached) < len(there):
        return None
    start = max(reached, default=segment.base_offset)
    return start if segment.data_end is not None and start < segment.data_end else None


def is_gone(segment: SegmentState, nodes: Nodes) -> bool:
    """Whether no disk that is in the cluster has anything of a sealed segment, or is to have it."""
    if not segment.is_sealed or segment.is_empty or segment.history is not None:
        return False
    return not any(is_in_cluster(nodes, member) for member in segment.replicas)


def ranges(parts: list[Missing]) -> list[LostRecords]:
    """Of segments in their order; those that follow each other are one."""
    ranges: list[LostRecords] = []
    for segment, start in parts:
        end = segment.data_end
        assert end is not None
        if ranges and ranges[-1].end_offset == start:
            ranges[-1] = msgspec.structs.replace(ranges[-1], end_offset=end)
        else:
            ranges.append(LostRecords(start, end, segment.segment, 0))
    return ranges


def why_incomplete(parts: list[Missing], nodes: Nodes) -> str:
    left = {node_of(m) for one in parts for m in one.segment.replicas if not is_in_cluster(nodes, m)}
    disks = f"disks of node{'s' if len(left) > 1 else ''} {', '.join(map(str, sorted(left)))}"
    count = f"{len(parts)} sealed segment{'s' if len(parts) > 1 else ''}"
    if all(one.is_whole for one in parts):
        return f"{count} had copies only on {disks} that left the cluster, and cannot be read any more"
    shown = ", ".join(f"{one.from_offset} to {one.end_offset - 1}" for one in ranges(parts)[:3])
    more = ", ..." if len(ranges(parts)) > 3 else ""
    return (
        f"{count} had whole copies only on {disks} that left the cluster: nobody has offsets {shown}{more}, "
        f"and what is left before them can be read once these are given up"
    )
