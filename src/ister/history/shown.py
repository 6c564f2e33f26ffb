"""The history of a topic for people: what is where, and whether it is what it should be."""

from __future__ import annotations

from ister.errors import BadRequest, UnknownTopic
from ister.history.history import History
from ister.metadata.state import SegmentState, TopicState
from ister.names import normalise_topic
from ister.protocol.history import HistoryEntry, HistoryList, HistorySwept, ObjectVerified, VerifyObject
from ister.protocol.peer import node_of


def list_history(
    topic: TopicState, history: History | None, start_offset: int = 0, end_offset: int = 0, index: int = 0
) -> HistoryList:
    """Of the segments that have offsets from `start_offset` to before `end_offset`; 0 is no bound. `index` is
    what of the metadata is applied."""
    segments = [
        segment
        for segment in topic.segments
        if (segment.end_offset is None or segment.end_offset > start_offset or not start_offset)
        and (not end_offset or segment.base_offset < end_offset)
    ]
    return HistoryList(
        topic.name,
        topic.uid,
        topic.start_offset,
        "local" if history is None else "store",
        "" if history is None else history.store.location,
        [_entry(segment, has_store=history is not None) for segment in segments],
        index,
    )


def state_of(segment: SegmentState, *, has_store: bool) -> str:
    if not segment.is_sealed:
        return "open"
    if segment.history is not None:
        return "damaged" if segment.history.damaged else "published"
    if segment.is_empty:
        return "empty"
    return "waiting" if has_store else "local"


def _entry(segment: SegmentState, *, has_store: bool) -> HistoryEntry:
    found = segment.history
    end = segment.data_end
    return HistoryEntry(
        segment.segment,
        segment.uid,
        segment.base_offset,
        segment.base_offset if end is None else end,
        state_of(segment, has_store=has_store),
        [node_of(member) for member in segment.replicas],
        found.name if found is not None else "",
        found.size if found is not None else 0,
        found.crc if found is not None else 0,
        found.first_append_time_us if found is not None else 0,
        segment.last_append_time_us,
        node_of(found.exported_by) if found is not None else 0,
        found.published_at_us if found is not None else 0,
        segment.end_position,
        found.position if found is not None else 0,
        found.stored_size if found is not None else 0,
        found.attempt if found is not None else 0,
        max(segment.first_attempt, found.attempt + 1 if found is not None else 0),
    )


async def sweep_topic(history: History | None, topic: str) -> HistorySwept:
    """Delete what no descriptor of this topic names, and of those that had its name before."""
    if history is None:
        raise BadRequest("there is no store, and nothing to sweep: storage_mode is local", hint="")
    return HistorySwept(await history.sweeping.sweep(normalise_topic(topic)))


async def verify_segment(history: History | None, request: VerifyObject) -> ObjectVerified:
    """Read an object to its end, and report what it is. A store that is down raises; what is wrong with the
    object is the answer."""
    if history is None:
        raise BadRequest(
            "there is no store: storage_mode is local", hint="`ister pipeline audit` compares the copies."
        )
    topic = history.metadata.state.topic_by_uid(request.topic_uid)
    segments = topic.segments if topic is not None else []
    segment = next((one for one in segments if one.uid == request.segment_uid), None)
    if topic is None or segment is None:
        raise UnknownTopic(f"segment {request.segment_uid} of {request.topic} was trimmed or deleted")
    found = segment.history
    if found is None:
        raise BadRequest(f"{topic.key_of(segment)} is not in the history yet")
    return ObjectVerified(found.name, found.size, await history.suspecting.look_at(topic, segment))
