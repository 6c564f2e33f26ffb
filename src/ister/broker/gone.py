"""Sealed segments that left the cluster with the disks that had them: who finds them missing, and says so.

A disk that left does not come back (I2), and a disk that alone has records leaves only by an operator's word
(`--replace-disk`). Its records are gone from then on; an operator may have that recorded (F6).
"""

from __future__ import annotations

import msgspec

from ister.metadata.nodes import Nodes, is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.protocol.recovery import LostRecords


def segments_of(topic: TopicState, nodes: Nodes) -> list[SegmentState]:
    """Sealed ones whose records are on no disk that is in the cluster. Disks that left do not come back."""
    return [segment for segment in topic.segments if is_gone(segment, nodes)]


def is_gone(segment: SegmentState, nodes: Nodes) -> bool:
    if not segment.is_sealed or segment.is_empty:
        return False
    return not any(is_in_cluster(nodes, member) for member in segment.replicas)


def ranges(segments: list[SegmentState]) -> list[LostRecords]:
    """Of segments in their order; those that follow each other are one."""
    ranges: list[LostRecords] = []
    for segment in segments:
        start, end = segment.base_offset, segment.data_end
        assert end is not None
        if ranges and ranges[-1].end_offset == start:
            ranges[-1] = msgspec.structs.replace(ranges[-1], end_offset=end)
        else:
            ranges.append(LostRecords(start, end, segment.segment, 0))
    return ranges


def why_incomplete(segments: list[SegmentState]) -> str:
    nodes = sorted({node_of(member) for segment in segments for member in segment.replicas})
    disks = f"disks of node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
    count = f"{len(segments)} sealed segment{'s' if len(segments) > 1 else ''}"
    return f"{count} had copies only on {disks} that left the cluster, and cannot be read any more"
