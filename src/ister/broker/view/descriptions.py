"""A topic as people are shown it: its chain, its settings, its copies, and what they should know of it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from ister.broker.topic.topic_log import TopicLog
from ister.metadata.commands import Reported
from ister.metadata.copies import is_mendable, is_missing, state_of
from ister.metadata.moves import MoveStage
from ister.metadata.state import LostRange, SegmentState, TopicState
from ister.protocol.messages import CopyDescription, SegmentDescription, TopicDescription
from ister.protocol.peer import node_of
from ister.protocol.standing import Standing
from ister.replication.stream.leader import Behind

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

WEAK_FSYNC = {
    "interval": "fsync=interval: a power cut may lose the last acknowledged records and give out their "
    "offsets again (P6)",
    "none": "fsync=none: a power cut may lose acknowledged records and give out their offsets again (P6)",
}
_NOT_WHOLE = ("behind", "incomplete", "damaged", "gone")


async def ask_about(broker: Broker, topic: TopicLog) -> dict[int, Standing]:
    """How the copies of its open segment are: its leader knows, and those who get nothing of it know why. Who
    has what was given up says so."""
    state = topic.state
    members = [
        member
        for segment in state.segments[:-1]
        if segment.lost_from is not None
        for member in segment.replicas
    ]
    members += [behind.member for behind in topic.facts.followers_behind() if behind.why]
    if state.open_segment.recovery:
        members.append(state.open_segment.coordinator)
    return await broker.replication.standings.gather(members, state.uid)


def describe_topic(
    broker: Broker, topic: TopicLog, standings: Mapping[int, Standing] | None = None
) -> TopicDescription:
    """With its segments if it is said how their copies are."""
    state = topic.state
    weak, trouble = WEAK_FSYNC.get(state.settings.fsync), topic.facts.trouble
    notes = [*([weak] if weak else []), *topic.led.notes, *([trouble] if trouble else [])]
    if state.open_segment.recovery:
        notes.append(recovery_note(broker, state, standings or {}))
    notes += move_notes(broker, state)
    notes += map(loss_note, state.lost)
    notes += [note for told in (standings or {}).values() for note in told.notes]
    return TopicDescription(
        topic=state.name,
        uid=state.uid,
        start_offset=state.start_offset,
        end_offset=topic.facts.least_end,
        bytes=topic.facts.sealed_bytes + topic.facts.least_open_bytes,
        settings=state.settings,
        segments=_segments(broker, topic, standings) if standings is not None else [],
        producers=topic.facts.producers,
        notes=notes,
        lost=sum(map(_lost, state.segments)) if state.lost else 0,
        end_is_known=topic.facts.end_is_known,
        resumed=str(topic.led.resumed) if topic.leads and topic.led.resumed is not None else "",
    )


def _lost(segment: SegmentState) -> int:
    end, lost_from = segment.end_offset, segment.lost_from
    return 0 if end is None or lost_from is None else end - lost_from


def describe_elsewhere(
    broker: Broker, topic: TopicLog, standings: Mapping[int, Standing] | None = None, *, trouble: str = ""
) -> TopicDescription:
    """A topic whose open segment another node leads, which does not answer: what is known of it here."""
    found = describe_topic(broker, topic, standings)
    node = node_of(topic.state.open_segment.leader)
    asked = broker.config.node_id
    note = (
        f"node {node} leads it and does not answer: at least so much is there, as far as node {asked} knows"
    )
    return msgspec.structs.replace(found, notes=[*found.notes, f"{note} ({trouble})" if trouble else note])


def recovery_note(broker: Broker, topic: TopicState, standings: Mapping[int, Standing]) -> str:
    """Who recovers a topic's open segment, since when, and what that waits for."""
    segment = topic.open_segment
    note = f"node {node_of(segment.coordinator)} recovers {topic.key_of(segment)}"
    since_us = broker.replication.standings.recovering_since_us(topic.uid)
    if since_us is not None:
        note += f" since {clock_time(since_us)}"
    detail = recovery_detail(segment, standings)
    return f"{note}: {detail}" if detail else note


def recovery_detail(segment: SegmentState, standings: Mapping[int, Standing]) -> str:
    """What the coordinator says; else what another says that has tried."""
    told = {
        member: found.detail
        for member, standing in standings.items()
        for found in standing.recoveries
        if found.segment_uid == segment.uid and found.detail
    }
    return told.get(segment.coordinator) or next(iter(told.values()), "")


def move_notes(broker: Broker, topic: TopicState) -> list[str]:
    """Where it stays, and where it is about to go."""
    notes = [f"stays on node {node_of(topic.home)}, where it was moved to"] if topic.home else []
    move = broker.metadata.state.moves.of(topic.uid)
    if move is not None:
        stage = MoveStage(move.stage).name.lower()
        notes.append(f"move {move.id} to node {node_of(move.target)}: {stage}")
    return notes


def loss_note(lost: LostRange) -> str:
    when = datetime.fromtimestamp(lost.at_us // 1_000_000, UTC).isoformat(" ").removesuffix("+00:00")
    offsets = f"offsets {lost.from_offset} to {lost.end_offset - 1}"
    return f"{offsets} were given up at {when} UTC, by an operator: they are lost"


def clock_time(time_us: int) -> str:
    """The time of the day, which is the same at every look."""
    seconds = time_us // 1_000_000 % 86_400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d} UTC"


def _segments(broker: Broker, topic: TopicLog, standings: Mapping[int, Standing]) -> list[SegmentDescription]:
    found: list[SegmentDescription] = []
    for segment in topic.state.segments:
        if segment.is_sealed:
            copies = _sealed_copies(broker, segment)
            state = "in history" if segment.is_released else "sealed"
            if segment.lost_from is not None:
                state = f"lost from {segment.lost_from} on"
        else:
            copies = _open_copies(broker, topic, standings)
            state = topic.facts.trouble or ("recovering" if segment.recovery else "open")
        found.append(
            SegmentDescription(
                segment=segment.segment,
                uid=segment.uid,
                base_offset=segment.base_offset,
                end_offset=topic.facts.least_end if segment.end_offset is None else segment.end_offset,
                bytes=segment.end_position if segment.is_sealed else topic.facts.least_open_bytes,
                leader=node_of(segment.leader),
                sealed=segment.is_sealed,
                first_append_time_us=segment.opened_at_us,
                last_append_time_us=segment.last_append_time_us
                if segment.is_sealed
                else topic.facts.last_append_time_us,
                state=state,
                replicas=[node_of(replica) for replica in segment.replicas],
                behind=[copy.node for copy in copies if copy.state in _NOT_WHOLE],
                copies=copies,
                lost=_lost(segment),
                end_is_known=segment.is_sealed or topic.facts.end_is_known,
            )
        )
    return found


def _open_copies(broker: Broker, topic: TopicLog, standings: Mapping[int, Standing]) -> list[CopyDescription]:
    """Of the open segment only its leader knows how far the others are."""
    segment = topic.state.open_segment
    if topic.leads and topic.facts.end_is_known:
        return [
            CopyDescription(
                node_of(behind.member), "behind", behind.lacks, behind.why and why_not(behind, standings)
            )
            for behind in topic.facts.followers_behind()
        ]
    copies: list[CopyDescription] = []
    for member in segment.replicas:
        missing = _why_missing(broker, member)
        if missing is not None:
            copies.append(missing)
        elif member == broker.metadata.member:
            if topic.facts.copy_lacks:
                copies.append(CopyDescription(node_of(member), "behind", topic.facts.copy_lacks))
        elif len(segment.replicas) > 1:
            copies.append(CopyDescription(node_of(member), "unknown", why="only the leader could say"))
    return copies


def why_not(behind: Behind, standings: Mapping[int, Standing]) -> str:
    """Why a follower gets nothing: its node knows better than its leader, if it is its disk."""
    told = standings.get(behind.member)
    return (told.disk if told is not None else "") or behind.why


def _sealed_copies(broker: Broker, segment: SegmentState) -> list[CopyDescription]:
    copies: list[CopyDescription] = []
    if segment.is_empty:
        return copies  # given up whole: there is nothing to have
    for member in segment.replicas:
        copy = _why_missing(broker, member)
        if copy is None:
            copy = _as_known(broker, segment, member)
        if copy is not None:
            copies.append(copy)
    return copies


def _why_missing(broker: Broker, member: int) -> CopyDescription | None:
    node, metadata = node_of(member), broker.metadata
    if not metadata.state.is_active(member):
        return CopyDescription(node, "gone", why="that disk is not in the cluster any more")
    if not metadata.is_alive(member):
        return CopyDescription(node, "down", why=f"node {node} does not answer")
    return None


def _as_known(broker: Broker, segment: SegmentState, member: int) -> CopyDescription | None:
    """By what the metadata has of it (C5)."""
    if not is_missing(segment, member, broker.clock.now_us()):
        return None
    node, state = node_of(member), state_of(segment, member)
    mends = is_mendable(segment, broker.metadata.state.nodes)
    match state:
        case Reported.DAMAGED if not mends:
            return CopyDescription(node, "damaged", why="damage was found, and no other copy is better")
        case Reported.DAMAGED:
            return CopyDescription(node, "damaged", why="damage was found, and it is being replaced")
        case _:
            return CopyDescription(node, "incomplete", why="it is being completed")
