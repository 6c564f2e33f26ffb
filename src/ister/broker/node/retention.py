"""What is dropped of a topic: whole sealed segments from the front of the chain, never the open one.

A live pin, or a subscription's cursor, holds back what its reader has not read, up to `HELD_TIMES` the age or
the size that the topic is set to. What lies beyond that goes, whoever reads: a reader that stands still fills
no disk.
"""

from __future__ import annotations

from typing import Final

from ister.metadata.state import TopicState

HELD_TIMES: Final = 2
"""How many times its `retention_ms` and `retention_bytes` a topic may have for the sake of a pin or a
subscription."""


def first_offset_to_keep(topic: TopicState, size: int, now_us: int, *, has_store: bool = False) -> int:
    """The base of the first segment that retention leaves; only whole sealed segments go, and where there is
    a store none that is not in the history (E4)."""
    settings = topic.settings
    start = topic.start_offset
    held = [pin.offset for pin in topic.pins if pin.is_live(now_us)]
    held += [subscription.cursor for subscription in topic.subscriptions]
    pinned = min(held, default=None)
    for segment in topic.segments:
        if segment.end_offset is None:
            break
        if has_store and segment.history is None and not segment.is_empty:
            break
        times = HELD_TIMES if pinned is not None and pinned < segment.end_offset else 1
        # Nobody knows when the last of those that were given up was appended: not after that, though.
        last_us = segment.last_append_time_us if segment.lost_from is None else segment.sealed_at_us
        too_old = 0 < settings.retention_ms * 1000 * times <= now_us - last_us
        too_large = 0 < settings.retention_bytes * times < size
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
