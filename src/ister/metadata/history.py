"""What of a topic is in the history: published, abandoned, released, found damaged (E1, E3, C3).

Fault model: commands come late, twice, or from somebody whose view is old. What holds:
- A segment has one published object, with all of its records, for as long as it is in the chain. Only another
  one with the same bytes takes its place (`metadata.merging`), or the next attempt's where it was reported
  damaged, by a compare-and-set on its name. A merged one is never replaced that way: others share it.
- What was abandoned is never published afterwards, and what is published is never abandoned.
- Nobody is left in a segment's list only where an object is published that nobody has reported damaged.

Functions of the state and a command (R3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice

import msgspec

from ister.metadata.commands import (
    AbandonObject,
    Outcome,
    PublishObject,
    ReleaseCopies,
    ReportObject,
    Result,
)
from ister.metadata.copies import find_segment, listed
from ister.metadata.topics import HistoryObject, SegmentState, TopicState

HistoryCommand = PublishObject | AbandonObject | ReleaseCopies | ReportObject


def change_history(index: int, topics: Mapping[int, TopicState], command: HistoryCommand) -> Outcome:
    topic = topics.get(command.topic_uid)
    segment = find_segment(topic, command.segment_uid) if topic is not None else None
    if topic is None or segment is None:
        if max(command.topic_uid, command.segment_uid) > index:
            # Whoever proposes this is of another cluster, or this metadata is an old copy: nothing is known.
            return Outcome(Result.REFUSED, index, f"there is no segment {command.segment_uid} yet")
        if isinstance(command, AbandonObject) and topic is not None and is_named(topic, command):
            return _is_published(index, topic, command.name)
        return Outcome(Result.STALE, index, f"segment {command.segment_uid} was trimmed or deleted")
    match command:
        case PublishObject():
            return _publish(index, topic, segment, command)
        case AbandonObject():
            return _abandon(index, topic, segment, command)
        case ReleaseCopies():
            return _release(index, topic, segment, command)
        case ReportObject():
            return _report(index, topic, segment, command)


def _publish(index: int, topic: TopicState, segment: SegmentState, command: PublishObject) -> Outcome:
    key = topic.key_of(segment)
    found = segment.history
    if found is not None and not _is_mended_by(found, command):
        detail = f"{key} is in the history already, as {found.name}"
        same = found.name == command.name
        return Outcome(Result.EXISTS if same else Result.STALE, index, detail, topic.uid)
    if not segment.is_sealed or segment.data_end != command.end_offset:
        detail = f"{key} ends at {segment.data_end}, the object at {command.end_offset}"
        return Outcome(Result.REFUSED, index, detail, topic.uid)
    if command.attempt < segment.first_attempt:
        return Outcome(Result.STALE, index, f"{command.name} was abandoned", topic.uid)
    segment.history = HistoryObject(
        command.name,
        command.attempt,
        command.size,
        command.crc,
        command.first_append_time_us,
        command.exported_by,
        command.at_us,
    )
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _is_mended_by(found: HistoryObject, command: PublishObject) -> bool:
    is_replaced = found.is_to_be_made_anew and found.name == command.replaces
    return is_replaced and command.attempt > found.attempt


def _abandon(index: int, topic: TopicState, segment: SegmentState, command: AbandonObject) -> Outcome:
    found = segment.history
    if found is not None and not command.name and found.attempt == command.attempt:
        return _is_published(index, topic, found.name)
    if is_named(topic, command):
        return _is_published(index, topic, command.name)
    segment.first_attempt = max(segment.first_attempt, command.attempt + 1)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _is_published(index: int, topic: TopicState, name: str) -> Outcome:
    return Outcome(Result.REFUSED, index, f"{name} is published, and is not abandoned", topic.uid)


def is_named(topic: TopicState, command: AbandonObject) -> bool:
    found = object_from(topic, command.segment_uid)
    return found is not None and found.name == command.name


def object_from(topic: TopicState, segment_uid: int) -> HistoryObject | None:
    """The descriptor that names an object which begins with this segment, if any does: that of the segment
    itself, or where retention has dropped the first ones of a merged object, of the next one that is left."""
    at = bisect_left(topic.segments, segment_uid, key=lambda one: one.uid)
    later = islice(topic.segments, at, None)
    return next((one.history for one in later if one.history is not None), None)


def _release(index: int, topic: TopicState, segment: SegmentState, command: ReleaseCopies) -> Outcome:
    key, found = topic.key_of(segment), segment.history
    if found is None or found.name != command.name:
        return Outcome(Result.REFUSED, index, f"{command.name} is not the object of {key}", topic.uid)
    if found.damaged:
        detail = f"{found.name} was found damaged: the copies of {key} stay"
        return Outcome(Result.REFUSED, index, detail, topic.uid)
    if segment.replicas != command.expected:
        return Outcome(Result.STALE, index, f"others have {key} now", topic.uid)
    listed(index, segment, [], [])
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _report(index: int, topic: TopicState, segment: SegmentState, command: ReportObject) -> Outcome:
    found = segment.history
    if found is None or found.name != command.name:
        detail = f"{command.name} is not the object of {topic.key_of(segment)}"
        return Outcome(Result.STALE, index, detail, topic.uid)
    segment.history = msgspec.structs.replace(found, damaged=command.damaged)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)
