"""A segment as its frames showed it, held against what the metadata says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ister.protocol.messages import SegmentDescription
from ister.spark.jobs.auditing.findings import (
    CONTINUITY,
    COUNT,
    END,
    OBJECT,
    TIME,
    Checked,
    Finding,
    is_told,
    shown,
)
from ister.spark.jobs.snapshot import Snapshot


@dataclass
class AuditedSegment:
    """What an audit saw of a segment."""

    segment: int
    base_offset: int
    end_offset: int
    """Of the open one, where it ended when the audit began."""
    sealed: bool
    leader: int
    replicas: list[int]
    """The nodes that have copies; none if only the history has it."""
    object_name: str = ""
    """Of the history; empty if it is not there."""
    records: int = 0
    bytes: int = 0
    first_time_us: int = 0
    last_time_us: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings


def segments_of(snapshot: Snapshot) -> list[AuditedSegment]:
    """As the metadata has them. Where it calls an object damaged and nodes have copies, they are read, not
    the object: so what it says is the finding."""
    by_number: dict[int, AuditedSegment] = {}
    for part, end in snapshot.segments():
        replicas = list(part.replicas or [part.leader])
        by_number[part.segment] = AuditedSegment(
            part.segment, part.base_offset, end, part.sealed, part.leader, replicas
        )
    for piece in snapshot.lives:
        if piece.descriptor is not None:
            by_number[piece.segment].replicas = list(piece.nodes)
            by_number[piece.segment].object_name = piece.descriptor.name
    for entry in snapshot.bad_objects:
        segment = by_number[entry.segment]
        segment.object_name = entry.name
        start, end = max(entry.start_offset, snapshot.start), entry.end_offset
        what = (
            f"{shown(start, end)}: the object {entry.name} was found damaged by a broker; "
            f"nodes {', '.join(map(str, entry.replicas))} have copies, and brokers make another object of one"
        )
        segment.findings.append(Finding(OBJECT, start, end, what, segment.segment))
    return list(by_number.values())


def join_checked(
    segment: AuditedSegment,
    part: SegmentDescription,
    own: Sequence[Checked],
    last_time: int,
    complete: bool,
) -> int:
    """Fill the segment in, and hold it against the metadata. Returns the time of the last append so far."""
    expected = segment.base_offset
    find = segment.findings.append
    missing = [hole for checked in own for hole in checked.missing]
    for checked in own:
        segment.findings += checked.findings
        if checked.first_offset < 0:
            continue
        first = checked.first_offset
        if first != expected and not is_told(expected, first, missing):
            low, high = min(expected, first), max(expected, first)
            what = f"{shown(low, high)}: a frame begins at {first} where offset {expected} must follow"
            find(Finding(CONTINUITY, low, high, what, segment.segment))
        if checked.first_time_us < last_time:
            what = f"offset {first}: appended at {checked.first_time_us} us, behind one of {last_time} us"
            find(Finding(TIME, first, first + 1, what, segment.segment))
        expected, last_time = checked.next_offset, max(last_time, checked.last_time_us)
        segment.records += checked.records
        segment.bytes += checked.bytes
        segment.first_time_us = segment.first_time_us or checked.first_time_us
        segment.last_time_us = checked.last_time_us
    if complete:
        _check_end(segment, expected, missing)
        if not missing:
            _check_counts(segment, part)
    return last_time


def _check_end(segment: AuditedSegment, expected: int, missing: Sequence[tuple[int, int]]) -> None:
    end = segment.end_offset
    if expected == end or (expected < end and is_told(expected, end, missing)):
        return
    low, high = min(expected, end), max(expected, end)
    kind = "is sealed at" if segment.sealed else "ended at"
    what = f"{shown(low, high)}: the frames end at {expected}, and the segment {kind} {end}"
    segment.findings.append(Finding(END, low, high, what, segment.segment))


def _check_counts(segment: AuditedSegment, part: SegmentDescription) -> None:
    """Of sealed segments, whose figures do not change any more."""
    wanted = segment.end_offset - segment.base_offset - part.lost
    whole = (segment.base_offset, segment.end_offset)
    if segment.records != wanted:
        what = f"{segment.records} records where the metadata counts {wanted}"
        segment.findings.append(Finding(COUNT, *whole, what, segment.segment))
    if not part.sealed or not segment.records:
        return
    if part.bytes and segment.bytes != part.bytes:
        what = f"{segment.bytes} bytes of frames where the metadata says {part.bytes}"
        segment.findings.append(Finding(COUNT, *whole, what, segment.segment))
    if part.last_append_time_us and segment.last_time_us != part.last_append_time_us:
        told = part.last_append_time_us
        what = f"last appended at {segment.last_time_us} us where the metadata says {told} us"
        last = (segment.end_offset - 1, segment.end_offset)
        segment.findings.append(Finding(TIME, *last, what, segment.segment))
