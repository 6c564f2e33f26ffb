"""`ister why`: where one record is, who has it, and what its frame says, as one node sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ister.broker.topic.location import (
    Follower,
    GivenUp,
    Here,
    History,
    Location,
    Remote,
    Trimmed,
    Unavailable,
)
from ister.broker.topic.topic_log import TopicLog
from ister.errors import IsterError
from ister.frame import FRAME_LIMIT, Frame, decode
from ister.metadata.state import SegmentState
from ister.protocol.history import Explanation
from ister.protocol.peer import node_of


def tier_of(found: Location, topic: TopicLog, offset: int) -> str:
    match found:
        case Here(segment):
            if segment.is_sealed:
                return "log"
            return "log, hot tail" if offset < topic.reads.end_offset else "not written yet"
        case Follower():
            return "follower"
        case Remote():
            return "other node"
        case History():
            return "history"
        case GivenUp():
            return "given up"
        case Unavailable():
            return "lost"
        case Trimmed():
            return "trimmed"


async def explain(topic: TopicLog, offset: int, read: Callable[[int], Awaitable[bytes]]) -> Explanation:
    """`read` has the frames from one that holds an offset on, wherever they are."""
    found = topic.places.locate(offset)
    told = Explanation(
        topic.state.name, offset, tier_of(found, topic, offset), topic.state.hot_start_offset, [], []
    )
    segment = topic.state.holding(offset)
    if segment is None or isinstance(found, Trimmed):
        return told
    told = _with_segment(told, segment)
    if isinstance(found, GivenUp | Unavailable):
        return told
    try:
        frame = decode(await read(offset), limit=FRAME_LIMIT)
    except IsterError as error:
        return msgspec.structs.replace(told, trouble=error.message)
    if not isinstance(frame, Frame):
        return msgspec.structs.replace(told, tier="not written yet")
    header = frame.header
    return msgspec.structs.replace(
        told,
        frame_offset=header.base_offset,
        frame_count=header.count,
        frame_size=header.size,
        body_crc=header.body_crc,
        header_crc=header.header_crc,
        append_time_us=header.append_time_us,
        producer_id=header.producer_id,
        sequence=header.sequence,
    )


def _with_segment(told: Explanation, segment: SegmentState) -> Explanation:
    history = segment.history
    return msgspec.structs.replace(
        told,
        segment=segment.segment,
        segment_uid=segment.uid,
        start_offset=segment.base_offset,
        end_offset=segment.end_offset or 0,
        leader=node_of(segment.leader),
        replicas=[node_of(member) for member in segment.replicas],
        whole=[node_of(member) for member in segment.whole],
        object_name=history.name if history is not None else "",
        object_crc=history.crc if history is not None else 0,
    )
