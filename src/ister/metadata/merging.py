"""Merged objects: one object of the history takes the place of those of several segments (E5).

It has their bytes, end to end and unchanged, so that what a descriptor says of a segment stays true, but for
where it is. All of them are replaced in one command, or none.

Fault model: several merge at once, each with its own view; segments are trimmed, released and reported
damaged meanwhile; what was uploaded may have been abandoned since (E3); commands come late, or twice. What
holds:
- A descriptor is replaced only by one of the same bytes, from the object that the proposer has copied.
- What is published of a merged object is a run of the chain: its segments next to each other, but for empty
  ones. Retention drops the first of them one by one; the object is named until the last one has gone.
- It is replaced as a whole. So the first segment that is left of a run tells whether it is named at all.
- A segment's attempts rise with each object that it is published in. So none comes back (no A-B-A), and what
  was abandoned is told by its number.

Functions of the state and a command (R3).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice

import msgspec

from ister.metadata.commands import Outcome, ReplaceObjects, Result
from ister.metadata.copies import find_segment
from ister.metadata.topics import HistoryObject, SegmentState, TopicState


def replace_objects(index: int, topic: TopicState, command: ReplaceObjects) -> Outcome:
    uids = [part.segment_uid for part in command.parts]
    segments = [segment for uid in uids if (segment := find_segment(topic, uid)) is not None]
    found = [segment.history for segment in segments if segment.history is not None]
    if len(found) != len(uids):
        return Outcome(Result.STALE, index, "some of the segments were trimmed meanwhile", topic.uid)
    if found and all(one.name == command.name for one in found):
        return Outcome(Result.EXISTS, index, f"{command.name} is published already", topic.uid)
    for part, segment, one in zip(command.parts, segments, found, strict=True):
        if one.attempt != part.attempt:
            detail = f"{topic.key_of(segment)} was replaced meanwhile: it is in {one.name}"
            return Outcome(Result.STALE, index, detail, topic.uid)
    wrong = _why_not(topic, segments, found, command)
    if wrong:
        return Outcome(Result.REFUSED, index, wrong, topic.uid)
    if command.attempt < segments[0].first_attempt:
        return Outcome(Result.STALE, index, f"{command.name} was abandoned", topic.uid)
    _replace(segments, found, command)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _why_not(
    topic: TopicState, segments: list[SegmentState], found: list[HistoryObject], command: ReplaceObjects
) -> str:
    """Why these may not be replaced by one object; empty if they may."""
    if len(segments) < 2:
        return f"{command.name} has {len(segments)} segments: two at least make a merged object"
    first, last = (bisect_left(topic.segments, one.uid, key=_uid_of) for one in (segments[0], segments[-1]))
    run = [one.uid for one in topic.segments[first : last + 1] if not one.is_empty]
    if run != [one.uid for one in segments]:
        return f"the segments of {command.name} are not next to each other"
    before, behind = reversed(topic.segments[:first]), islice(topic.segments, last + 1, None)
    for one, neighbours in ((found[0], before), (found[-1], behind)):
        segment = next((other for other in neighbours if other.history is not None), None)
        if segment is not None and segment.history is not None and segment.history.name == one.name:
            return f"{one.name} has {topic.key_of(segment)} too, and is replaced as a whole"
    if any(one.damaged for one in found):
        return f"an object that {command.name} was made of was found damaged"
    if command.attempt <= max(one.attempt for one in found):
        return f"attempt {command.attempt} is not above those of the objects that {command.name} replaces"
    return ""


def _uid_of(segment: SegmentState) -> int:
    return segment.uid


def _replace(segments: list[SegmentState], found: list[HistoryObject], command: ReplaceObjects) -> None:
    size, position = sum(one.size for one in found), 0
    for segment, one in zip(segments, found, strict=True):
        segment.history = msgspec.structs.replace(
            one,
            name=command.name,
            attempt=command.attempt,
            exported_by=command.made_by,
            published_at_us=command.at_us,
            position=position,
            stored_size=size,
        )
        position += one.size
