"""R2, I2: what counts is who is known to have all of a sealed segment, not who is named in its list."""

from __future__ import annotations

import pytest

from ister.metadata.commands import AcceptGone, Command, KeptPart, RemoveNode, Result, SetReplicas
from ister.metadata.state import ClusterState
from tests.metadata.chains import (
    FOUR,
    ONE,
    THREE,
    TWO,
    accept_loss,
    apply,
    create,
    member,
    node,
    recover,
    seal,
    state_after,
    the_topic,
)

FIVE = member(5)


def sealed_on(*replicas: int, whole: int = 2) -> tuple[ClusterState, int]:
    """Segment 1 was led by the first of these, and acknowledged by most of them; the topic goes on on 5."""
    state = state_after(*(node(number) for number in range(1, 6)), create(leader=ONE, replicas=[*replicas]))
    uid = the_topic(state).uid
    assert apply(state, seal(uid, 1, 10, then=FIVE, then_on=[FIVE], whole=whole)) is Result.APPLIED
    return state, uid


def removal(number: int) -> RemoveNode:
    return RemoveNode(number, keeps_whole=True)


def comes_up_empty(state: ClusterState, number: int) -> Result:
    return apply(state, node(number, 9, starts=0, client_port=0))


def test_r2_removals_one_after_the_other_do_not_take_the_last_whole_copy() -> None:
    """1 and 2 acknowledged it, 3 was down and ends short. Nobody says that a disk is gone."""
    state, _ = sealed_on(ONE, TWO, THREE)
    assert apply(state, removal(1)) is Result.APPLIED
    assert apply(state, removal(2)) is Result.REFUSED


def test_r2_a_node_can_go_once_those_who_stay_have_said_that_they_are_whole() -> None:
    state, uid = sealed_on(ONE, TWO, THREE)
    assert apply(state, removal(1)) is Result.APPLIED
    confirmed = SetReplicas(uid, 1, [ONE, TWO, THREE], [TWO, THREE], confirmed=2)
    assert apply(state, confirmed) is Result.APPLIED
    assert apply(state, removal(2)) is Result.APPLIED
    assert apply(state, removal(3)) is Result.REFUSED


def test_i2_a_list_that_was_shortened_unasked_makes_nobody_whole() -> None:
    state, uid = sealed_on(ONE, TWO, THREE)
    assert apply(state, removal(1)) is Result.APPLIED
    assert apply(state, SetReplicas(uid, 1, [ONE, TWO, THREE], [TWO, THREE])) is Result.APPLIED
    assert comes_up_empty(state, 2) is Result.REFUSED, "3 may end short, and 2 was one of two that did not"


def test_i2_of_a_seal_with_a_substitute_only_a_majority_of_the_first_replicas_counts() -> None:
    """Recovered by 2, with 4 in the place of one that was gone: 1 and 3 are named, and may both end short."""
    state = state_after(
        *(node(number) for number in range(1, 6)), create(leader=ONE, replicas=[ONE, TWO, THREE])
    )
    uid = the_topic(state).uid
    assert apply(state, recover(uid, 1, TWO)) is Result.APPLIED
    ended = seal(
        uid,
        1,
        10,
        by=TWO,
        then=FIVE,
        then_on=[FIVE],
        recovery=the_topic(state).open_segment.recovery,
        replicas=[TWO, FOUR, ONE, THREE],
        whole=2,
    )
    assert apply(state, ended) is Result.APPLIED
    assert comes_up_empty(state, 2) is Result.APPLIED
    assert comes_up_empty(state, 4) is Result.REFUSED


def test_i2_an_offer_makes_one_whole_and_not_those_who_were_there() -> None:
    """1 and 2, which had all of it, left; 3 ends short. 4, which had been replaced, comes back with it."""
    state, uid = sealed_on(ONE, TWO, THREE)
    for number in (1, 2):
        assert apply(state, RemoveNode(number, disk_gone=True)) is Result.APPLIED
    assert apply(state, SetReplicas(uid, 1, [ONE, TWO, THREE], [THREE, FOUR])) is Result.APPLIED
    assert comes_up_empty(state, 4) is Result.REFUSED


def test_i2_an_offer_makes_one_whole_where_nothing_was_known() -> None:
    """1 and 2 had all of a segment whose seal did not say who does, and their disks are gone; 4 has it."""
    state = state_after(
        *(node(number) for number in range(1, 6)), create(leader=ONE, replicas=[ONE, TWO, THREE])
    )
    uid = the_topic(state).uid
    assert apply(state, seal(uid, 1, 10, then=FIVE, then_on=[FIVE])) is Result.APPLIED
    for number, gone in ((1, ONE), (2, TWO)):
        assert apply(state, RemoveNode(number, True, 1, gone, keeps_whole=True)) is Result.APPLIED
    assert apply(state, SetReplicas(uid, 1, [ONE, TWO, THREE], [THREE, FOUR], confirmed=1)) is Result.APPLIED
    assert apply(state, removal(4)) is Result.REFUSED


def test_i2_an_offer_beside_a_damaged_copy_makes_one_whole() -> None:
    """1 has said that it is whole when it was to stay alone. It has rotted since, and 2 offers its own."""
    state, uid = sealed_on(ONE, TWO)
    assert apply(state, SetReplicas(uid, 1, [ONE, TWO], [ONE], confirmed=1)) is Result.APPLIED
    assert apply(state, SetReplicas(uid, 1, [ONE], [ONE, TWO], confirmed=1)) is Result.APPLIED
    assert apply(state, removal(2)) is Result.REFUSED
    assert comes_up_empty(state, 2) is Result.REFUSED


def test_i2_of_what_an_operator_kept_only_the_longest_is_whole() -> None:
    state, uid = sealed_on(ONE, TWO, THREE)
    segment = the_topic(state).segments[0]
    assert apply(state, RemoveNode(1, disk_gone=True)) is Result.APPLIED
    kept = KeptPart(segment.uid, 7, 0, 0, [TWO, THREE])
    assert apply(state, AcceptGone(uid, [segment.uid], 1, TWO, [kept], whole=1)) is Result.APPLIED
    assert comes_up_empty(state, 2) is Result.REFUSED


def test_i2_a_repair_that_brings_one_for_each_that_goes_leaves_as_many_whole() -> None:
    state, uid = sealed_on(ONE, TWO, THREE)
    assert apply(state, SetReplicas(uid, 1, [ONE, TWO, THREE], [ONE, TWO, FOUR])) is Result.APPLIED
    assert comes_up_empty(state, 1) is Result.APPLIED
    assert comes_up_empty(state, 2) is Result.REFUSED


# What was decided before anybody counted.

START = [None, *(node(number) for number in range(1, 5)), create(replicas=[ONE, TWO, THREE])]
OLD_SEAL = seal(6, 1, 10, then=FOUR, then_on=[FOUR])


def test_r3_a_removal_of_before_is_applied_as_it_was() -> None:
    state = state_after(*START, OLD_SEAL)
    assert [apply(state, RemoveNode(number)) for number in (1, 2)] == [Result.APPLIED, Result.APPLIED]


@pytest.mark.parametrize(
    "before",
    [
        [accept_loss(6, 1, 100, 10, then=FOUR, then_on=[FOUR], by=FOUR)],
        [OLD_SEAL, SetReplicas(6, 1, [ONE, TWO, THREE], [ONE, TWO])],
        [OLD_SEAL, SetReplicas(6, 1, [ONE, TWO, THREE], [ONE, TWO, THREE, FOUR])],
    ],
    ids=["a loss", "a shorter list", "a longer list"],
)
def test_r3_a_snapshot_of_before_and_its_journal_are_one_state(before: list[Command]) -> None:
    """Each node replays its own journal from its own last snapshot, which another build may have made."""
    replayed = state_after(*START, *before)
    assert [segment.whole_at_least for segment in the_topic(replayed).segments] == [0, 0]
