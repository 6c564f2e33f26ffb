"""How a topic's chain changes: handoffs, recoveries, the replicas of what is sealed, losses, trims.

Functions of a topic, the nodes and a command, and of nothing else (R3). Each says what came of it, and has
changed the topic only if it says `APPLIED`. What holds after each, and is relied on:
- one segment is open, the last; each one's base is the end of the one before it;
- an open segment's replicas are those it was opened with (F4); no list names a member twice, or nobody;
- the numbers of a segment's recoveries only grow, and only its last one ends in a seal (F1);
- no offset that was given out lies past the end of a sealed segment: a loss is a range, not a way back (F6).
"""

from __future__ import annotations

import msgspec

from ister.metadata.commands import (
    AcceptGone,
    AcceptLoss,
    BeginRecovery,
    KeptPart,
    Outcome,
    Result,
    SealSegment,
    SetReplicas,
    TrimTopic,
)
from ister.metadata.copies import listed, may_leave, staying
from ister.metadata.moves import Moves
from ister.metadata.nodes import (
    Nodes,
    inactive_among,
    is_active,
    is_in_cluster,
    named_twice,
    why_not_placed,
    why_not_proposer,
)
from ister.metadata.topics import LostRange, SegmentState, TopicState
from ister.protocol.peer import node_of

MAX_LOST_RANGES = 100
"""So many are kept in a topic; the oldest go first."""


def seal(index: int, topic: TopicState, nodes: Nodes, moves: Moves, command: SealSegment) -> Outcome:
    """The handoff (H1); that of a move only while it is wanted (E7)."""
    last = topic.open_segment
    if last.segment != command.segment:
        return _not_open(index, topic, command.segment)
    refused = _why_no_seal(topic, nodes, command)
    refused = refused or moves.why_no_seal(topic, command.move, command.next_leader)
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    last.end_offset = command.end_offset
    last.end_position = command.end_position
    last.last_append_time_us = command.last_append_time_us
    last.sealed_by, last.sealed_at_us = command.sealed_by, command.sealed_at_us
    last.whole_at_least = command.whole
    listed(index, last, command.replicas or last.replicas, command.holders)
    _open_next(index, topic, command)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _why_no_seal(topic: TopicState, nodes: Nodes, command: SealSegment) -> str:
    last = topic.open_segment
    if command.end_offset < last.base_offset:
        return f"end {command.end_offset} lies before the base {last.base_offset}"
    fault = why_not_proposer(nodes, command.sealed_by, command.starts)
    if fault:
        return fault
    if command.unopened and last.log_exists:
        return f"the log of {topic.key_of(last)} was made after this was proposed"
    return (
        _why_not_ended(topic, command)
        or _why_not_held(topic, nodes, command)
        or why_not_placed(nodes, command.next_leader, command.next_replicas)
    )


def _why_not_ended(topic: TopicState, command: SealSegment) -> str:
    """Why the segment's recovery, or its absence, does not let this seal apply (F1)."""
    last = topic.open_segment
    if command.recovery != last.recovery:
        this = f"of recovery {command.recovery}" if command.recovery else "of no recovery"
        if not last.recovery:
            return f"this seal is {this}, and none was begun for {topic.key_of(last)}"
        return (
            f"recovery {last.recovery} of {topic.key_of(last)} stands, begun by node "
            f"{node_of(last.coordinator)}: this seal is {this}"
        )
    if last.recovery and command.sealed_by != last.coordinator:
        return (
            f"recovery {last.recovery} of {topic.key_of(last)} is for node {node_of(last.coordinator)} to "
            f"end, not for node {node_of(command.sealed_by)}"
        )
    return ""


def _why_not_held(topic: TopicState, nodes: Nodes, command: SealSegment) -> str:
    """Why the replicas that a seal names may not be those of the sealed segment."""
    if not command.replicas or command.replicas == topic.open_segment.replicas:
        return ""
    if not command.recovery:
        return (
            f"the replicas of {topic.key_of(topic.open_segment)} change by a recovery only while it is open"
        )
    return named_twice(command.replicas) or inactive_among(nodes, command.replicas)


def begin_recovery(index: int, topic: TopicState, nodes: Nodes, command: BeginRecovery) -> Outcome:
    """From here on only this recovery, or a later one, seals the segment (F1)."""
    last = topic.open_segment
    if last.segment != command.segment:
        return _not_open(index, topic, command.segment)
    refused = _why_no_recovery(topic, nodes, command)
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    last.recovery, last.coordinator = index, command.by
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _why_no_recovery(topic: TopicState, nodes: Nodes, command: BeginRecovery) -> str:
    last = topic.open_segment
    if len(last.replicas) == 1:
        return (
            f"{topic.key_of(last)} has one replica, on node {node_of(last.replicas[0])}: it waits for that "
            f"node, or for an operator who accepts the loss"
        )
    if command.by not in last.replicas:
        return f"node {node_of(command.by)} has no replica of {topic.key_of(last)} on that disk"
    return inactive_among(nodes, [command.by]) or why_not_proposer(nodes, command.by, command.starts)


def set_replicas(index: int, topic: TopicState, nodes: Nodes, command: SetReplicas) -> Outcome:
    """Of a sealed segment (F4). Members that stay may be out of the cluster; those that come must not be."""
    segment = topic.segment(command.segment)
    if segment is None:
        detail = f"there is no segment {command.segment} of {topic.name}, or no more"
        return Outcome(Result.STALE, index, detail, topic.uid)
    if not segment.is_sealed:
        detail = f"{topic.key_of(segment)} is open, and an open segment's replicas never change"
        return Outcome(Result.REFUSED, index, detail, topic.uid)
    if segment.replicas != command.expected:
        detail = f"the replicas of {topic.key_of(segment)} are now on nodes {_shown(segment.replicas)}"
        return Outcome(Result.STALE, index, detail, topic.uid)
    come = [member for member in command.replicas if member not in segment.replicas]
    refused = named_twice(command.replicas) or inactive_among(nodes, come)
    if not refused and not any(is_active(nodes, member) for member in command.replicas):
        refused = f"no node would be left in the cluster that has {topic.key_of(segment)}"
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    if command.expected_whole is None:
        _count(segment, command, come)
    else:
        if segment.whole != command.expected_whole:
            detail = f"{topic.key_of(segment)} is now whole on nodes {_shown(segment.whole) or 'none'}"
            return Outcome(Result.STALE, index, detail, topic.uid)
        refused = _why_not_let_go(topic, nodes, segment, command.replicas)
        if refused:
            return Outcome(Result.REFUSED, index, refused, topic.uid)
        segment.whole_at_least = 0
    listed(index, segment, command.replicas, None if command.expected_whole is None else segment.whole)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _why_not_let_go(topic: TopicState, nodes: Nodes, segment: SegmentState, replicas: list[int]) -> str:
    """Whom C3 keeps in the list; empty if all who leave it may."""
    stay = staying(nodes, [member for member in replicas if member in segment.replicas])
    whole = [member for member in stay if segment.is_whole_at(member)]
    for member in segment.replicas if not segment.is_empty else ():
        if member not in replicas and not may_leave(segment, member, replicas, stay):
            return (
                f"node {node_of(member)} is needed for {topic.key_of(segment)}: of those that stay only "
                f"nodes {_shown(whole) or 'none'} are known to have all of it"
            )
    return ""


def _count(segment: SegmentState, command: SetReplicas, come: list[int]) -> None:
    """As it was done before there were names: what such commands left behind is what such removals go by."""
    if segment.whole_at_least or command.confirmed:
        left = sum(member not in command.replicas for member in segment.replicas)
        counted = max(1, segment.whole_at_least - left + len(come), command.confirmed)
        if come and command.confirmed:  # an offer: those who were there may be damaged
            counted = command.confirmed
        segment.whole_at_least = min(counted, len(command.replicas))


def accept_loss(index: int, topic: TopicState, nodes: Nodes, command: AcceptLoss) -> Outcome:
    """A seal without the log (F6). It ends any recovery: whatever comes of that finds the segment sealed."""
    last = topic.open_segment
    if last.segment != command.segment:
        return _not_open(index, topic, command.segment)
    refused = _why_no_loss(topic, nodes, command)
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    last.end_offset, last.lost_from = command.end_offset, command.lost_from
    last.whole_at_least = command.whole
    listed(index, last, last.replicas, command.holders)
    last.end_position = command.end_position
    last.last_append_time_us = max(last.carried_append_time_us, command.last_append_time_us)
    last.sealed_by, last.sealed_at_us = command.by, command.at_us
    lost = LostRange(command.lost_from, command.end_offset, last.segment, command.at_us)
    topic.lost = [*topic.lost, lost][-MAX_LOST_RANGES:]
    _open_next(index, topic, command)
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _why_no_loss(topic: TopicState, nodes: Nodes, command: AcceptLoss) -> str:
    last = topic.open_segment
    if not command.node_stopped:
        return f"nobody states that node {node_of(last.leader)}, which leads {topic.key_of(last)}, is stopped"
    if command.end_offset < last.base_offset:
        return f"end {command.end_offset} lies before the base {last.base_offset}"
    if not last.base_offset <= command.lost_from <= command.end_offset:
        return (
            f"the loss begins at {command.lost_from}, which is not within {topic.key_of(last)}: "
            f"{last.base_offset} to {command.end_offset}"
        )
    leader = nodes.get(node_of(last.leader))
    is_back = leader is not None and leader.member == last.leader and leader.starts != command.leader_starts
    if command.leader_starts and is_back:
        return f"node {node_of(last.leader)}, which leads {topic.key_of(last)}, was started again meanwhile"
    if command.recovery != last.recovery:
        return f"recovery {last.recovery} of {topic.key_of(last)} has begun since, and may find more of it"
    if 0 < command.records_limit < last.records_limit:
        return f"segment_records of {topic.name} was raised to {last.records_limit} meanwhile"
    return inactive_among(nodes, [command.by]) or why_not_placed(
        nodes, command.next_leader, command.next_replicas
    )


def accept_gone(index: int, topic: TopicState, nodes: Nodes, command: AcceptGone) -> Outcome:
    """Of sealed segments nothing but their records is lost: the chain and the producers stay as they are."""
    meant, kept = set(command.segments), {part.segment: part for part in command.kept}
    named = [segment for segment in topic.segments if segment.uid in meant]
    left = [segment for segment in named if not _is_done(segment, kept.get(segment.uid))]
    if not left or len(named) < len(command.segments):
        detail = f"the segments of {topic.name} that were named are given up already, or are trimmed"
        return Outcome(Result.STALE, index, detail, topic.uid)
    refused = next(filter(None, (_why_not_gone(topic, nodes, one, kept.get(one.uid)) for one in left)), "")
    refused = refused or inactive_among(nodes, [command.by])
    if refused:
        return Outcome(Result.REFUSED, index, refused, topic.uid)
    changed = next(filter(None, (_who_is_there(topic, nodes, one, kept.get(one.uid)) for one in left)), "")
    if changed:
        return Outcome(Result.STALE, index, changed, topic.uid)
    lost: list[LostRange] = []
    for segment in left:
        part, start, end = kept.get(segment.uid), segment.base_offset, segment.data_end
        assert end is not None
        segment.end_position = 0
        if part is not None:
            start, segment.end_position = part.end_offset, part.end_position
            segment.whole_at_least = command.whole
            # Who looks for a later time is not sent here: there is nothing of it.
            segment.last_append_time_us = min(segment.last_append_time_us, part.last_append_time_us)
        if lost and lost[-1].end_offset == start:
            lost[-1] = msgspec.structs.replace(lost[-1], end_offset=end)
        else:
            lost.append(LostRange(start, end, segment.segment, command.at_us, was_sealed=True))
        segment.lost_from = start
        if part is not None:
            segment.told = []  # of another end
            listed(index, segment, segment.replicas, part.holders)
    topic.lost = [*topic.lost, *lost][-MAX_LOST_RANGES:]
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _is_done(segment: SegmentState, part: KeptPart | None) -> bool:
    """Whether nothing is left to be given up: an earlier command did it, or was the same."""
    return segment.is_empty or (part is not None and part.end_offset == segment.data_end)


def _why_not_gone(topic: TopicState, nodes: Nodes, segment: SegmentState, part: KeptPart | None) -> str:
    key = topic.key_of(segment)
    if segment.data_end is None:
        return f"{key} is open"
    if segment.history is not None:
        return f"{key} is in the history, as {segment.history.name}"
    if part is None:
        for member in segment.replicas:
            if is_in_cluster(nodes, member):
                return f"node {node_of(member)} is in the cluster, and has a copy of {key}"
        return ""
    if not part.asked:
        return f"nobody was asked what is left of {key}"
    if not segment.base_offset <= part.end_offset <= segment.data_end:
        return (
            f"{part.end_offset}, up to which {key} is to be kept, is not within it: {segment.base_offset} to "
            f"{segment.data_end}"
        )
    if not 0 <= part.end_position <= segment.end_position:
        return f"{part.end_position} bytes of {key} are to be kept, and it has {segment.end_position}"
    return ""


def _who_is_there(topic: TopicState, nodes: Nodes, segment: SegmentState, part: KeptPart | None) -> str:
    """Who was not asked what it has, or was and is gone; empty if those who were are those who are there."""
    there = [member for member in segment.replicas if is_in_cluster(nodes, member)]
    if part is None or there == part.asked:
        return ""
    return (
        f"of {topic.key_of(segment)} nodes {_shown(part.asked) or 'none'} were asked what they have, and "
        f"those in the cluster that are to have it are now {_shown(there) or 'none'}"
    )


def trim(index: int, topic: TopicState, command: TrimTopic) -> Outcome:
    if command.start_offset <= topic.start_offset:
        return Outcome(Result.STALE, index, f"{topic.name} already starts at {topic.start_offset}", topic.uid)
    kept = [segment for segment in topic.segments if not _ends_by(segment, command.start_offset)]
    if not kept or kept[0].base_offset != command.start_offset:
        detail = f"offset {command.start_offset} is not the base of a segment of {topic.name}"
        return Outcome(Result.REFUSED, index, detail, topic.uid)
    topic.segments = kept
    topic.start_offset = command.start_offset
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _ends_by(segment: SegmentState, offset: int) -> bool:
    return segment.end_offset is not None and segment.end_offset <= offset


def _not_open(index: int, topic: TopicState, segment: int) -> Outcome:
    detail = f"segment {segment} of {topic.name} is not the open one, which is {topic.open_segment.segment}"
    return Outcome(Result.STALE, index, detail, topic.uid)


def _open_next(index: int, topic: TopicState, command: SealSegment | AcceptLoss) -> None:
    """At the end of the segment that has just been sealed."""
    sealed = topic.open_segment
    assert sealed.end_offset is not None
    sealed.carried_producers, sealed.records_limit = [], 0
    topic.segments.append(
        SegmentState(
            segment=sealed.segment + 1,
            uid=index,
            base_offset=sealed.end_offset,
            leader=command.next_leader,
            replicas=command.next_replicas,
            opened_at_us=sealed.sealed_at_us,
            carried_producers=command.producers,
            carried_append_time_us=sealed.last_append_time_us,
            records_limit=topic.settings.segment_records,
            forgot_at=index if command.forgets else sealed.forgot_at,
        )
    )


def _shown(members: list[int]) -> str:
    return ", ".join(str(node_of(member)) for member in members)
