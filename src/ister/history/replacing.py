"""The last step of a compaction: a merged object takes the place of those that it was made of (E5).

Whoever asks has uploaded the object and read it back to its end (`ister.history.merging`). The node that is
asked names it by what the metadata has of its segments, looks that it is in the store, of the size that they
have together, and proposes the change. What must hold is decided when that is applied
(`ister.metadata.merging`): all descriptors are replaced, or none.

Fault model: the answer is lost, and the request comes again: it is told the same. The store is down: nothing
is changed, and the request is repeated. Somebody replaces, trims or deletes meanwhile: nothing is changed,
and the answer says why; the object is one that nobody names then, and the sweeper's.
"""

from __future__ import annotations

import logging

from ister.errors import BadRequest, ObjectNotFound
from ister.history.history import History
from ister.history.names import ObjectName
from ister.metadata.commands import MergedPart, ReplaceObjects
from ister.metadata.copies import find_segment
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.history import MergeObjects, ObjectsMerged

log = logging.getLogger("ister.history")

MAX_PARTS = 1000
"""Segments in one merged object: all of them are in one command."""


async def merge_objects(history: History | None, request: MergeObjects) -> ObjectsMerged:
    if history is None:
        raise BadRequest("there is no store, and nothing to merge: storage_mode is local", hint="")
    if not 2 <= len(request.parts) <= MAX_PARTS:
        raise BadRequest(
            f"{len(request.parts)} segments are to be one object; 2 to {MAX_PARTS} can be",
            hint="`ister pipeline compact` keeps to that.",
        )
    topic = history.metadata.state.topic_by_uid(request.topic_uid)
    found = [find_segment(topic, part.segment_uid) for part in request.parts] if topic is not None else []
    segments = [segment for segment in found if segment is not None and segment.history is not None]
    if topic is None or len(segments) != len(request.parts):
        return ObjectsMerged("", 0, f"some of these segments of {request.topic} were trimmed meanwhile")
    name = merged_name(history.cluster_id(), topic, segments[0], segments[-1], request.attempt)
    size = sum(segment.history.size for segment in segments if segment.history is not None)
    problem = await _look_at(history, name, size)
    if problem:
        return ObjectsMerged(name, size, problem)
    parts = [MergedPart(part.segment_uid, part.attempt) for part in request.parts]
    command = ReplaceObjects(topic.uid, name, request.attempt, parts, history.member, history.now_us())
    outcome = await history.metadata.propose(command)
    fields = {"object": name, "segments": len(parts), "result": str(outcome.result)}
    log.info("merged", extra={"fields": fields})
    return ObjectsMerged(name, size, "" if outcome.ok else outcome.detail)


def merged_name(
    cluster_id: str, topic: TopicState, first: SegmentState, last: SegmentState, attempt: int
) -> str:
    """Of the object that has all from one segment to another."""
    assert last.data_end is not None
    return str(
        ObjectName(
            cluster_id,
            topic.name,
            topic.uid,
            first.segment,
            first.uid,
            first.base_offset,
            last.data_end,
            attempt,
        )
    )


async def _look_at(history: History, name: str, size: int) -> str:
    """What is wrong with it, as far as its size tells; empty if nothing is."""
    try:
        stored = (await history.store.head(name)).size
    except ObjectNotFound as error:
        return error.message
    return "" if stored == size else f"object {name} has {stored} bytes, its segments have {size} together"
