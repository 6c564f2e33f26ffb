"""A topic as people are shown it: its chain, its settings, and what they should know of it."""

from __future__ import annotations

from ister.broker.topic_log import TopicLog
from ister.protocol.messages import SegmentDescription, TopicDescription

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


def _segments(topic: TopicLog) -> list[SegmentDescription]:
    return [
        SegmentDescription(
            segment=segment.segment,
            uid=segment.uid,
            base_offset=segment.base_offset,
            end_offset=topic.end_offset if segment.end_offset is None else segment.end_offset,
            bytes=segment.end_position if segment.is_sealed else topic.open_segment_bytes,
            leader=segment.leader,
            sealed=segment.is_sealed,
            first_append_time_us=segment.opened_at_us,
            last_append_time_us=segment.last_append_time_us
            if segment.is_sealed
            else topic.last_append_time_us,
            state="sealed" if segment.is_sealed else (topic.trouble or "open"),
        )
        for segment in topic.state.segments
    ]
