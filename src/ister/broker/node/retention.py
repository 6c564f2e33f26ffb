"""What is dropped of a topic: whole sealed segments from the front of the chain, never the open one."""

from __future__ import annotations

from ister.metadata.state import TopicState


def first_offset_to_keep(topic: TopicState, size: int, now_us: int) -> int:
    """The base of the first segment that retention leaves; only whole sealed segments go."""
    settings = topic.settings
    start = topic.start_offset
    for segment in topic.segments:
        if segment.end_offset is None:
            break
        # Nobody knows when the last of those that were given up was appended: not after that, though.
        last_us = segment.last_append_time_us if segment.lost_from is None else segment.sealed_at_us
        too_old = 0 < settings.retention_ms * 1000 <= now_us - last_us
        too_large = 0 < settings.retention_bytes < size
        if not (too_old or too_large):
            break
        start = segment.end_offset
        size -= segment.end_position
    return start


def first_offset_from(topic: TopicState, before_offset: int) -> int:
    """Where the topic begins when all that lies before an offset and may go is gone."""
    start = topic.start_offset
    for segment in topic.segments:
        if segment.end_offset is None or segment.end_offset > before_offset:
            break
        start = segment.end_offset
    return start
