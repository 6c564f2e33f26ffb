"""Giving up sealed segments that left with their disks, or the rest of them (F6).

What is left is kept: all who are in the cluster and are to have one say how far their copy goes, and the
longest is where the loss begins. Whoever does not say it may have all, and then nothing is given up; nor if
more would be lost than the operator was shown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ister.asking import ask_each
from ister.broker.losses.loss_view import ASK_SECONDS, LOOK_AGAIN
from ister.errors import BadRequest
from ister.metadata.commands import AcceptGone, KeptPart, Result
from ister.metadata.nodes import is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import RecoverTopic
from ister.protocol.peer import PeerKind, node_of
from ister.protocol.replication import AskReach, ReachAnswer

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.losses.losses")


async def accept_gone(broker: Broker, topic: TopicLog, request: RecoverTopic) -> None:
    """Sealed segments that left with their disks, or the rest of them. Those that an earlier attempt gave
    up are done."""
    metadata, again = broker.metadata, LOOK_AGAIN.format(topic=topic.state.name)
    shown = dict.fromkeys(request.gone_segments, 0)
    shown |= dict(zip(request.gone_segments, request.gone_from, strict=False))

    def named() -> list[SegmentState]:
        meant = [one for one in topic.state.segments if one.uid in shown and not one.is_empty]
        return [one for one in meant if one.lost_from is None or one.lost_from > shown[one.uid]]

    left = named()
    if not left:
        return
    kept = [part for one in left if (part := await _kept_part(broker, topic.state, one, again)) is not None]
    for part in kept:
        if part.end_offset < shown[part.segment]:
            raise BadRequest(
                f"nothing is given up: offsets from {part.end_offset} on would be lost, and those from "
                f"{shown[part.segment]} on were shown",
                hint=again,
            )
    now_us = broker.storage.clock.now_us()
    uids = [one.uid for one in left]
    outcome = await metadata.propose(AcceptGone(topic.state.uid, uids, now_us, metadata.member, kept))
    if outcome.result is Result.STALE and not named():
        return
    if outcome.result is not Result.APPLIED:
        raise BadRequest(f"nothing is given up: {outcome.detail}", hint=again)
    log.warning(
        "an operator accepted the loss of sealed segments",
        extra={"fields": {"topic": topic.state.name, "segments": len(left), "kept_in_part": len(kept)}},
    )


async def _kept_part(broker: Broker, topic: TopicState, segment: SegmentState, again: str) -> KeptPart | None:
    """What is left of a sealed segment, by all who are in the cluster and may have some of it: whoever
    does not say it may have all. None if there is nobody."""
    metadata, replication, key = broker.metadata, broker.replication, topic.key_of(segment)
    there = [m for m in segment.replicas if is_in_cluster(metadata.state.nodes, m)]
    request = AskReach(topic.uid, segment.uid, metadata.state.applied_index)

    async def ask(member: int) -> ReachAnswer:
        if member == metadata.member:
            return await replication.reach(request)
        found = await replication.ask(member, PeerKind.REACH, encode_header(request), ASK_SECONDS)
        return decode_header(ReachAnswer, found)

    reached, faults = await ask_each(there, ask, ASK_SECONDS)
    for member, why in faults.items():
        raise BadRequest(
            f"nothing is given up: node {node_of(member)} is in the cluster and may have {key}, but did not "
            f"say how far ({why})",
            hint=f"Start node {node_of(member)}, or mend what it says. If its disk is gone for good, say so "
            f"(--replace-disk, or `ister node remove --disk-gone`). {again}",
        ) from why
    if not reached:
        return None
    longest = max(reached, key=lambda member: reached[member].end_offset)
    found = reached[longest]
    if found.end_offset == segment.data_end:
        raise BadRequest(
            f"nothing is given up: node {node_of(longest)} is in the cluster, and has a copy of {key}",
            hint=again,
        )
    holders = [member for member in there if reached[member].end_offset >= found.end_offset]
    return KeptPart(
        segment.uid, found.end_offset, found.end_position, found.last_append_time_us, there, holders
    )
