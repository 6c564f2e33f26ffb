"""A topic as people are shown it: its chain, its settings, and what they should know of it."""

from __future__ import annotations

import msgspec

from ister.broker.topic_log import TopicLog
from ister.protocol.messages import SegmentDescription, TopicDescription
from ister.protocol.peer import node_of

WEAK_FSYNC = {
    "interval": "fsync=interval: a power cut may lose the last acknowledged records and give out their "
    "offsets again (P6)",
    "none": "fsync=none: a power cut may lose acknowledged records and give out their offsets again (P6)",
}


def describe_topic(topic: TopicLog, *, with_segments: bool) -> TopicDescription:
    state = topic.state
    weak = WEAK_FSYNC.get(state.settings.fsync)
    notes = [*([weak] if weak else []), *topic.notes, *([topic.trouble] if topic.trouble else [])]
    return TopicDescription(
        topic=state.name,
        uid=state.uid,
        start_offset=state.start_offset,
        end_offset=topic.end_offset,
        bytes=topic.bytes,
        settings=state.settings,
        segments=_segments(topic) if with_segments else [],
        producers=topic.producers,
        notes=notes,
    )


def describe_elsewhere(topic: TopicLog, *, with_segments: bool, trouble: str = "") -> TopicDescription:
    """A topic whose open segment another node leads, which does not answer: what the metadata says of it."""
    found = describe_topic(topic, with_segments=with_segments)
    node = node_of(topic.state.open_segment.leader)
    note = f"node {node} leads it and does not answer: the end and the size are as of the last handoff"
    return msgspec.structs.replace(found, notes=[*found.notes, f"{note} ({trouble})" if trouble else note])


def _segments(topic: TopicLog) -> list[SegmentDescription]:
    return [
        SegmentDescription(
            segment=segment.segment,
            uid=segment.uid,
            base_offset=segment.base_offset,
            end_offset=topic.end_offset if segment.end_offset is None else segment.end_offset,
            bytes=segment.end_position if segment.is_sealed else topic.open_segment_bytes,
            leader=node_of(segment.leader),
            sealed=segment.is_sealed,
            first_append_time_us=segment.opened_at_us,
            last_append_time_us=segment.last_append_time_us
            if segment.is_sealed
            else topic.last_append_time_us,
            state="sealed" if segment.is_sealed else (topic.trouble or "open"),
            replicas=[node_of(replica) for replica in segment.replicas],
        )
        for segment in topic.state.segments
    ]
