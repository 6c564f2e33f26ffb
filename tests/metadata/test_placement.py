"""Where replicas go: the leader first, and nobody much more than the others."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.metadata.placement import Seen, Why, Wish, choose_leader, choose_replicas, next_leader, place
from tests.metadata.chains import member

SIX = [member(number) for number in range(1, 7)]


@given(st.sets(st.integers(1, 9), min_size=1), st.integers(-1, 9), st.text(max_size=5), st.data())
def test_the_leader_is_first_nobody_is_named_twice_and_no_more_than_there_are(
    numbers: set[int], count: int, topic: str, data: st.DataObject
) -> None:
    members = [member(number) for number in numbers]
    leader = data.draw(st.sampled_from(members))
    chosen = choose_replicas(leader, members, count, topic)
    assert chosen[0] == leader
    assert set(chosen) <= set(members)
    assert len(set(chosen)) == len(chosen) == max(1, min(count, len(members)))
    assert choose_replicas(leader, sorted(members, reverse=True), count, topic) == chosen, "in any order"


def test_a_leader_that_is_not_among_those_that_can_serve_leads_all_the_same() -> None:
    """The only node there is, say, with a wrong clock."""
    assert choose_replicas(SIX[0], [], 3, "default/t") == [SIX[0]]
    assert sorted(choose_replicas(SIX[0], SIX[1:3], 3, "default/t")) == SIX[:3]


@pytest.mark.parametrize("topic", ["default/a", "default/b", "default/c"])
def test_a_topic_whose_leader_goes_round_burdens_all_nodes_alike(topic: str) -> None:
    held: Counter[int] = Counter()
    leader = SIX[0]
    for _ in range(60):
        held.update(choose_replicas(leader, SIX, 3, topic))
        leader = next_leader(leader, SIX)
    assert set(held.values()) == {30}


def test_the_topics_that_one_node_leads_are_followed_by_all_others_alike() -> None:
    followed: Counter[int] = Counter()
    for number in range(1000):
        followed.update(choose_replicas(SIX[2], SIX, 3, f"default/topic-{number}")[1:])
    assert set(followed) == set(SIX) - {SIX[2]}
    assert min(followed.values()) > 0.8 * max(followed.values())


def wish(leader: int = SIX[0], why: Why = Why.FULL, target: int = 0) -> Wish:
    return Wish("default/t", 3, leader, leader, why, target)


def all_well(**changes: object) -> Seen:
    return Seen(**{"active": SIX, "alive": SIX, **changes})  # type: ignore[arg-type]


def test_whose_turn_it_is_leads_next_unless_somebody_is_named() -> None:
    assert choose_leader(wish(), all_well()) == SIX[1]
    assert choose_leader(wish(target=SIX[4]), all_well()) == SIX[4]
    assert place(wish(target=SIX[4]), all_well()).replicas[0] == SIX[4]
    assert choose_leader(wish(target=SIX[0]), all_well()) == SIX[0], "it stays where it was moved to"


@pytest.mark.parametrize(
    "seen",
    [
        all_well(alive=SIX[:4]),
        all_well(active=SIX[:4]),
        all_well(wrong_clocks=[SIX[4]]),
        all_well(refusing=[SIX[4]]),
        all_well(unwanted=[SIX[4]]),
    ],
)
def test_a_node_that_is_named_and_cannot_serve_is_passed_over(seen: Seen) -> None:
    assert choose_leader(wish(target=SIX[4]), seen) == SIX[1]


@pytest.mark.parametrize("why", list(Why))
def test_the_reason_never_lets_a_node_lead_that_could_not(why: Why) -> None:
    """D14: what is safe is the same for all reasons."""
    seen = all_well(alive=[SIX[0], SIX[3], SIX[4]], wrong_clocks=[SIX[3]], refusing=[SIX[4]])
    for target in (0, *SIX):
        chosen = place(wish(why=why, target=target), seen)
        assert chosen.leader in seen.alive
        assert chosen.leader == chosen.replicas[0] and len(set(chosen.replicas)) == len(chosen.replicas)


def test_what_a_node_cannot_go_on_with_leaves_it_though_it_was_moved_there() -> None:
    for why in (Why.STORAGE, Why.LOST):
        assert choose_leader(wish(why=why, target=SIX[0]), all_well()) == SIX[1]
        assert choose_leader(wish(why=why, target=SIX[3]), all_well()) == SIX[3]


def test_an_unwanted_node_has_something_only_where_there_are_no_others() -> None:
    seen = all_well(unwanted=SIX[:3])
    assert all(set(place(wish(leader), seen).replicas) == set(SIX[3:]) for leader in SIX)
    assert place(wish(), Seen(SIX[:1], SIX[:1], unwanted=SIX[:1])) == (SIX[0], [SIX[0]])
