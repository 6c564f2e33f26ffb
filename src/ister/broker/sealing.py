"""When a segment is full, and the seal that ends it."""

from __future__ import annotations

from typing import NamedTuple

from ister.broker.storage import Storage
from ister.metadata.commands import SealSegment
from ister.metadata.placement import choose_replicas, next_leader
from ister.metadata.state import TopicState
from ister.replication.failover_events import ProposeSeal
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.segment import Segment

PRODUCER_MEMORY_US = 7 * 24 * 3600 * 1_000_000
"""Producers silent for a week are forgotten at the next seal."""
PRODUCERS_PER_SEGMENT = 20_000
"""More producers than this in one segment roll it over, so that the table stays bounded."""
HARD_CAP = 4
"""How many times its limit a segment may grow to while no metadata leader answers (A8)."""


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


def make_seal(storage: Storage, topic: TopicState, segment: Segment, end: int) -> SealSegment:
    """The seal of the open segment at its true end, with the next leader chosen as of now (H1)."""
    next_member = _next_leader(storage, must_leave=segment.failure is not None)
    replicas = next_replicas(storage, topic, next_member)
    producers = segment.producers
    if segment.failure is not None:
        producers = producers.without_records_past(end)
    return SealSegment(
        topic_uid=topic.uid,
        segment=topic.open_segment.segment,
        end_offset=end,
        end_position=segment.committed_position,
        next_leader=next_member,
        next_replicas=replicas,
        producers=producers.expired(segment.committed_append_time_us - PRODUCER_MEMORY_US).rows(),
        # Of a record that is in the log: by it a time is found in the right segment.
        last_append_time_us=segment.committed_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
    )


def make_recovery_seal(
    storage: Storage,
    topic: TopicState,
    found: ProposeSeal,
    producers: list[ProducerRow],
    last_append_time_us: int,
) -> SealSegment:
    """The seal of an open segment whose leader was lost, where a recovery found its end (F2)."""
    # Away from the leader that was lost, whatever this node thinks of it: it may come and go.
    lost = topic.open_segment.leader
    next_member = next_leader(lost, [m for m in can_lead(storage) if m != lost] or [storage.member])
    table = ProducerTable(producers).expired(last_append_time_us - PRODUCER_MEMORY_US)
    return SealSegment(
        topic_uid=topic.uid,
        segment=topic.open_segment.segment,
        end_offset=found.end_offset,
        end_position=found.end_position,
        next_leader=next_member,
        next_replicas=next_replicas(storage, topic, next_member),
        producers=table.rows(),
        last_append_time_us=last_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
        recovery=found.recovery,
        replicas=list(found.replicas),
    )


def next_replicas(storage: Storage, topic: TopicState, leader: int) -> list[int]:
    """Where the next segment lives: as many nodes as its topic wants, of those that can serve."""
    return replicas_for(storage, topic.name, topic.settings.replicas, leader)


def replicas_for(storage: Storage, name: str, count: int, leader: int) -> list[int]:
    return choose_replicas(leader, sorted({leader, *can_lead(storage)}), count, name)


def make_empty_seal(storage: Storage, topic: TopicState) -> SealSegment:
    """The seal of an open segment whose log was never made: it ends where it begins."""
    opened, next_member = topic.open_segment, _next_leader(storage, must_leave=True)
    return SealSegment(
        topic_uid=topic.uid,
        segment=opened.segment,
        end_offset=opened.base_offset,
        end_position=0,
        next_leader=next_member,
        next_replicas=next_replicas(storage, topic, next_member),
        producers=opened.carried_producers,
        last_append_time_us=opened.carried_append_time_us,
        sealed_by=storage.member,
        starts=storage.metadata.starts,
        sealed_at_us=storage.clock.now_us(),
        unopened=True,
    )


def has_other_nodes(storage: Storage) -> bool:
    """Whether another node could lead what this one cannot."""
    return _next_leader(storage, must_leave=True) != storage.member


def has_better_clocks(storage: Storage) -> bool:
    """Whether there is a node to which those lead away whose clocks are wrong (A6)."""
    return any(member != storage.member for member in _with_good_clocks(storage, _alive(storage)))


def _next_leader(storage: Storage, *, must_leave: bool = False) -> int:
    """Round-robin over the nodes that can lead; this one if it is the only one.

    What `must_leave`, for a disk is broken, goes to a node with a wrong clock rather than stay."""
    alive = [member for member in _alive(storage) if not must_leave or member != storage.member]
    return next_leader(storage.member, _with_good_clocks(storage, alive) or alive or [storage.member])


def can_lead(storage: Storage) -> list[int]:
    """The nodes that are active and answer, and have clocks that agree with most others' (A6)."""
    alive = _alive(storage)
    return _with_good_clocks(storage, alive) or alive


def _alive(storage: Storage) -> list[int]:
    metadata = storage.metadata
    return [member for member in metadata.state.active_members if metadata.is_alive(member)]


def _with_good_clocks(storage: Storage, members: list[int]) -> list[int]:
    error, limit = storage.metadata.clock_error_us, storage.max_clock_skew_us
    return [member for member in members if abs(error(member)) <= limit]
