"""Commands with few words, and the states that they make."""

from __future__ import annotations

from ister.metadata.commands import (
    AcceptLoss,
    BeginRecovery,
    Command,
    CreateTopic,
    Result,
    SealSegment,
    UpsertNode,
)
from ister.metadata.state import ClusterState, TopicState
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import member_of


def disk(number: int) -> str:
    return f"{number:016x}"


def member(number: int, disk_number: int = 0) -> int:
    return member_of(number, disk(disk_number or number))


ONE, TWO, THREE, FOUR = (member(number) for number in (1, 2, 3, 4))
NEW_TWO = member(2, 9)
"""Node 2 on another disk."""


def node(number: int, disk_number: int = 0, starts: int = 1, client_port: int = 9091) -> UpsertNode:
    """A node tells of itself; one whose client port is 0 has only been let in."""
    name = f"node-{number}"
    return UpsertNode(number, disk(disk_number or number), starts, name, 6001, name, client_port)


def create(
    name: str = "default/t", at: int = 1, leader: int = ONE, replicas: list[int] | None = None
) -> CreateTopic:
    return CreateTopic(name, TopicSettings(), leader, [leader] if replicas is None else replicas, at)


def seal(
    uid: int,
    segment: int,
    end: int,
    *,
    by: int = ONE,
    starts: int = 1,
    then: int = ONE,
    then_on: list[int] | None = None,
    recovery: int = 0,
    replicas: list[int] | None = None,
    whole: int = 0,
    holders: list[int] | None = None,
) -> SealSegment:
    return SealSegment(
        topic_uid=uid,
        segment=segment,
        end_offset=end,
        end_position=end * 100,
        next_leader=then,
        next_replicas=[then] if then_on is None else then_on,
        producers=[],
        last_append_time_us=end,
        sealed_by=by,
        starts=starts,
        sealed_at_us=50,
        recovery=recovery,
        replicas=replicas or [],
        whole=whole,
        holders=holders,
    )


def recover(uid: int, segment: int, by: int = TWO, starts: int = 1) -> BeginRecovery:
    return BeginRecovery(uid, segment, by, starts)


def accept_loss(
    uid: int,
    segment: int,
    end: int,
    lost_from: int,
    *,
    then: int = ONE,
    then_on: list[int] | None = None,
    by: int = ONE,
    is_stopped: bool = True,
    leader_starts: int = 0,
    last_append_time_us: int = 0,
) -> AcceptLoss:
    return AcceptLoss(
        topic_uid=uid,
        segment=segment,
        end_offset=end,
        next_leader=then,
        next_replicas=[then] if then_on is None else then_on,
        lost_from=lost_from,
        at_us=60,
        by=by,
        node_stopped=is_stopped,
        leader_starts=leader_starts,
        end_position=lost_from * 100,
        last_append_time_us=last_append_time_us,
    )


def state_after(*commands: Command | None) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate(commands, 1):
        state.apply(index, command)
    return state


def apply(state: ClusterState, command: Command | None) -> Result:
    return result_of(state, command)[0]


def result_of(state: ClusterState, command: Command | None) -> tuple[Result, str]:
    """What came of it, and what it said. Nothing but `applied` has changed anything."""
    before = state.to_bytes(), _derived(state)
    outcome = state.apply(state.applied_index + 1, command)
    if not outcome.ok:
        expected = ClusterState.from_bytes(before[0])
        expected.skip(state.applied_index)
        assert (state.to_bytes(), _derived(state)) == (expected.to_bytes(), before[1])
    return outcome.result, outcome.detail


def _derived(state: ClusterState) -> list[object]:
    return [
        (state.led_by(who).copy(), state.followed_by(who).copy()) for who in (ONE, TWO, NEW_TWO, THREE, FOUR)
    ]


def the_topic(state: ClusterState) -> TopicState:
    return state.topics["default/t"]


def chain(state: ClusterState) -> list[tuple[int, int, int | None]]:
    return [(s.segment, s.base_offset, s.end_offset) for s in the_topic(state).segments]
