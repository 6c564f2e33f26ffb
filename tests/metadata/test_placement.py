"""Where replicas go: the leader first, and nobody much more than the others."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.metadata.placement import choose_replicas, next_leader
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
