"""The shared cursors of GET in the metadata: claimed by an owner, flushed by it (S1, S2, S5)."""

from __future__ import annotations

from collections.abc import Mapping

from ister.metadata.commands import ClaimCursor, FlushCursors, Outcome, Result
from ister.metadata.nodes import Nodes, inactive_among
from ister.metadata.topics import TopicState


def claim_cursor(index: int, topic: TopicState, nodes: Nodes, command: ClaimCursor) -> Outcome:
    if command.epoch != topic.get_epoch + 1:
        detail = f"the cursor of {topic.name} is in epoch {topic.get_epoch}, {command.epoch} was claimed"
        return Outcome(Result.STALE, index, detail, topic.uid)
    refused = inactive_among(nodes, [command.owner])
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    topic.get_owner, topic.get_epoch = command.owner, command.epoch
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def flush_cursors(index: int, topics: Mapping[int, TopicState], command: FlushCursors) -> Outcome:
    stale: list[int] = []
    for uid, epoch, offset in command.rows:
        topic = topics.get(uid)
        if (
            topic is None
            or (topic.get_owner, topic.get_epoch) != (command.owner, epoch)
            or offset < topic.get_offset
        ):
            stale.append(uid)
        else:
            topic.get_offset = offset
    detail = f"not the owner's to move any more: topics {', '.join(map(str, stale))}" if stale else ""
    result = Result.STALE if len(stale) == len(command.rows) else Result.APPLIED
    return Outcome(result, index, detail)
