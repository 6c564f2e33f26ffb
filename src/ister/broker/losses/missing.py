"""Sealed segments that left the cluster with the disks that had them: who finds them missing, and says so.

A disk that left does not come back (I2), and a disk that alone has records leaves only by an operator's word
(`--replace-disk`). Its records are gone from then on; an operator may have that recorded (F6). The same holds
of the rest of a segment, where the disks that had it whole left and the copies that stayed end short.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ister.metadata.copies import gone_from
from ister.metadata.nodes import Nodes, is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.protocol.recovery import LostRecords

PARTS_AT_ONCE = 100
"""Segments with a part left that are shown, and given up, at a time: each of their copies is opened then."""


class Missing(NamedTuple):
    """A sealed segment whose records are gone from an offset on."""

    segment: SegmentState
    from_offset: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is left."""
        return self.from_offset == self.segment.base_offset


def parts_of(topic: TopicState, nodes: Nodes) -> list[Missing]:
    """What is gone of a topic, in its order."""
    found: list[Missing] = []
    parts = 0
    for segment in topic.segments:
        start = gone_from(segment, nodes)
        if start is not None:
            parts += not is_gone(segment, nodes)
            if parts <= PARTS_AT_ONCE:
                found.append(Missing(segment, start))
    return found


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
