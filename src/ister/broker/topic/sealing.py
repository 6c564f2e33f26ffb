"""When a segment is full, and the seal that ends it."""

from __future__ import annotations

from typing import NamedTuple

from ister.broker.node.storage import Storage
from ister.metadata.commands import AcceptLoss, SealSegment
from ister.metadata.moves import MoveState
from ister.metadata.placement import Place, Seen, Why, Wish, place
from ister.metadata.state import TopicState
from ister.protocol.codec import MAX_MESSAGE_BYTES
from ister.replication.recovery.failover_events import ProposeSeal
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.segment import FsyncPolicy, Segment

PRODUCER_MEMORY_US = 7 * 24 * 3600 * 1_000_000
"""Producers silent for a week are forgotten at the next seal."""
PRODUCERS_PER_SEGMENT = 20_000
"""More producers than this in one segment roll it over, so that the table stays bounded."""
HARD_CAP = 4
"""How many times its limit a segment may grow to while no metadata leader answers (A8)."""
MOST_RECORDS_IN_A_FRAME = MAX_MESSAGE_BYTES // 4
"""Each takes four bytes of the largest frame that a broker may be set to take, if only for where it ends."""


class Limits(NamedTuple):
    """Past any of these the open segment is full. A frame is never split, so it may pass them by one."""

    offset: int
    position: int
    producers: int
    are_hard: bool


def limits_of(topic: TopicState, *, are_hard: bool = False) -> Limits:
    times, settings = HARD_CAP if are_hard else 1, topic.settings
    return Limits(
        offset=topic.open_segment.base_offset + settings.segment_records * times,
        position=settings.segment_bytes * times,
        producers=PRODUCERS_PER_SEGMENT * times,
        are_hard=are_hard,
    )


def is_past(segment: Segment, limits: Limits) -> bool:
    return (
        segment.end_offset >= limits.offset
        or segment.position >= limits.position
        or len(segment.producers) >= limits.producers
    )


def make_seal(
    storage: Storage, topic: TopicState, segment: Segment, end: int, why: Why = Why.FULL
) -> SealSegment:
    """The seal of the open segment at its true end, with the next leader chosen as of now (H1)."""
    following = next_place(storage, topic, why if segment.failure is None else Why.STORAGE)
    move = wanted_move(storage, topic)
    producers = segment.producers
    if segment.failure is not None:
        producers = producers.without_records_past(end)
    carried = producers.expired(segment.committed_append_time_us - PRODUCER_MEMORY_US)
    return SealSegment(
        topic_uid=topic.uid,
        segment=topic.open_segment.segment,
        end_offset=end,
        end_position=segment.committed_position,
        next_leader=following.leader,
        next_replicas=following.replicas,
        producers=carried.rows(),
        # Of a record that is in the log: by it a time is found in the right segment.
        last_append_time_us=segment.committed_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
        move=move.id if move is not None and following.leader == move.target else 0,
        forgets=len(carried) < len(producers),
        holders=_holders(storage, segment, end),
    )


def _holders(storage: Storage, segment: Segment, end: int) -> list[int]:
    """Who is known to have synced all of it (C1). Under a weak fsync mode no answer says that: each looks at
    its own log then, and reports."""
    if segment.policy is not FsyncPolicy.FSYNC:
        return []
    own = [storage.member] if segment.failure is None and segment.durable_end >= end else []
    return [*own, *(segment.replication.synced_to(end) if segment.replication is not None else ())]


def make_recovery_seal(
    storage: Storage,
    topic: TopicState,
    found: ProposeSeal,
    producers: list[ProducerRow],
    last_append_time_us: int,
) -> SealSegment:
    """The seal of an open segment whose leader was lost, where a recovery found its end (F2)."""
    following = next_place(storage, topic, Why.LOST)
    carried = ProducerTable(producers).expired(last_append_time_us - PRODUCER_MEMORY_US)
    return SealSegment(
        topic_uid=topic.uid,
        segment=topic.open_segment.segment,
        end_offset=found.end_offset,
        end_position=found.end_position,
        next_leader=following.leader,
        next_replicas=following.replicas,
        producers=carried.rows(),
        last_append_time_us=last_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
        recovery=found.recovery,
        replicas=list(found.replicas),
        forgets=len(carried) < len(producers),
        holders=list(found.holders),
    )


def records_limit(topic: TopicState) -> int:
    """By the settings that the open segment's leader may have had, the limit that let it go furthest."""
    return max(topic.open_segment.records_limit, topic.settings.segment_records)


def most_it_can_reach(topic: TopicState) -> int:
    """No offset from here on was given out in the open segment, whatever its leader did and heard of (A8):
    it takes nothing more once it is past its hard cap, and one frame takes it there."""
    return topic.open_segment.base_offset + HARD_CAP * records_limit(topic) + MOST_RECORDS_IN_A_FRAME


class Reached(NamedTuple):
    """What can be had of a segment whose rest is given up: its log up to an offset, and what it says
    there."""

    end_offset: int
    end_position: int
    producers: ProducerTable
    last_append_time_us: int


def make_loss(
    storage: Storage,
    topic: TopicState,
    reached: Reached,
    known_end: int,
    leader_starts: int,
    recovery: int,
) -> AcceptLoss:
    """The end of an open segment whose rest nobody can reach (F6). An operator states that its node is
    stopped."""
    following = next_place(storage, topic, Why.LOST)
    carried = reached.producers.expired(reached.last_append_time_us - PRODUCER_MEMORY_US)
    return AcceptLoss(
        topic_uid=topic.uid,
        segment=topic.open_segment.segment,
        end_offset=max(most_it_can_reach(topic), known_end),
        next_leader=following.leader,
        next_replicas=following.replicas,
        lost_from=reached.end_offset,
        at_us=storage.clock.now_us(),
        by=storage.member,
        node_stopped=True,
        leader_starts=leader_starts,
        end_position=reached.end_position,
        last_append_time_us=reached.last_append_time_us,
        producers=carried.rows(),
        records_limit=records_limit(topic),
        recovery=recovery,
        forgets=len(carried) < len(reached.producers),
        holders=[storage.member],
    )


def seen_by(storage: Storage) -> Seen:
    """The nodes as this one sees them now."""
    metadata, limit = storage.metadata, storage.max_clock_skew_us
    active = metadata.state.active_members
    return Seen(
        active,
        alive={member for member in active if metadata.is_alive(member)},
        wrong_clocks={member for member in active if abs(metadata.clock_error_us(member)) > limit},
        refusing=storage.replication.streams.refusing,
        unwanted=metadata.state.drains.members.union([storage.member] if storage.leaving.is_set() else ()),
    )


def wanted_move(storage: Storage, topic: TopicState) -> MoveState | None:
    """The topic's move, if it has not come to its seal yet."""
    move = storage.metadata.state.moves.of(topic.uid)
    return move if move is not None and move.is_requested else None


def wish_of(storage: Storage, topic: TopicState, why: Why) -> Wish:
    """Whatever ends a segment of a topic that is to move makes the move (H5); one whose move was cancelled
    meanwhile stays (E7)."""
    leader, target = topic.open_segment.leader, topic.home
    move = wanted_move(storage, topic)
    if move is not None:
        target = move.target
    elif why is Why.MOVE:
        target = leader
    return Wish(topic.name, topic.settings.replicas, leader, storage.member, why, target)


def next_place(storage: Storage, topic: TopicState, why: Why) -> Place:
    """Where the next segment of a topic goes, as of now."""
    return place(wish_of(storage, topic, why), seen_by(storage))


def make_empty_seal(storage: Storage, topic: TopicState) -> SealSegment:
    """The seal of an open segment whose log was never made: it ends where it begins."""
    opened, following = topic.open_segment, next_place(storage, topic, Why.STORAGE)
    return SealSegment(
        topic_uid=topic.uid,
        segment=opened.segment,
        end_offset=opened.base_offset,
        end_position=0,
        next_leader=following.leader,
        next_replicas=following.replicas,
        producers=opened.carried_producers,
        last_append_time_us=opened.carried_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
        unopened=True,
        holders=[],
    )


def has_other_nodes(storage: Storage, topic: TopicState) -> bool:
    """Whether another node could lead what this one cannot."""
    return next_place(storage, topic, Why.STORAGE).leader != storage.member


def has_better_clocks(storage: Storage) -> bool:
    """Whether there is a node to which those lead away whose clocks are wrong (A6)."""
    seen = seen_by(storage)
    return any(member != storage.member for member in seen.right_of(seen.serving))
