"""Which topics are to move, by what nodes report: the strategies, the threshold, the bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.broker.node.spreading import NodeLoad, Strategy, TopicLoad, plan, variation


def node(
    member: int, *rates: float, cpu: float = 0.0, memory: float = 0.0, may_move: bool = True
) -> NodeLoad:
    topics = [
        TopicLoad(member * 1000 + place, f"default/t{member}-{place}", rate, may_move)
        for place, rate in enumerate(rates)
    ]
    return NodeLoad(member, topics, sum(rates), 0.0, cpu, memory)


def test_fair_counts_topics() -> None:
    found = plan([node(1, *[0.0] * 9), node(2), node(3)], Strategy.FAIR, 0.1, 100)
    assert [(shift.source, shift.target) for shift in found.shifts].count((1, 2)) == 3
    assert len(found.shifts) == 6
    assert found.after == 0.0 < found.before


def test_weighted_moves_the_topic_that_fits_and_not_the_one_that_would_only_change_places() -> None:
    found = plan([node(1, 100.0, 10.0), node(2, 80.0)], Strategy.WEIGHTED, 0.01, 10)
    assert [shift.topic.bytes_in for shift in found.shifts] == [10.0]
    assert plan([node(1, 100.0), node(2)], Strategy.WEIGHTED, 0.01, 10).shifts == []


def test_balanced_looks_at_cpu_and_memory_too() -> None:
    nodes = [node(1, 1.0, 1.0, cpu=3.0, memory=300.0), node(2, 1.0, 1.0, cpu=1.0, memory=100.0)]
    assert plan(nodes, Strategy.FAIR, 0.01, 10).shifts == []
    assert [(one.source, one.target) for one in plan(nodes, Strategy.BALANCED, 0.1, 1).shifts] == [(1, 2)]


def test_nothing_moves_below_the_threshold_or_past_the_bound_or_if_it_may_not() -> None:
    nodes = [node(1, *[0.0] * 9), node(2, *[0.0] * 3)]
    assert plan(nodes, Strategy.FAIR, 0.5, 10).shifts == []
    assert len(plan(nodes, Strategy.FAIR, 0.1, 2).shifts) == 2
    assert plan([node(1, *[0.0] * 9, may_move=False), node(2)], Strategy.FAIR, 0.1, 10).shifts == []


@pytest.mark.parametrize("strategy", Strategy)
@given(st.lists(st.lists(st.floats(0, 1e9), max_size=6), min_size=1, max_size=5))
def test_a_plan_makes_nodes_more_alike_and_moves_no_topic_twice(
    strategy: Strategy, rates: list[list[float]]
) -> None:
    nodes = [node(member, *found, cpu=len(found), memory=1.0) for member, found in enumerate(rates, 1)]
    found = plan(nodes, strategy, 0.2, 50)
    assert found.after <= found.before + 1e-9
    uids = [shift.topic.uid for shift in found.shifts]
    assert len(uids) == len(set(uids))
    assert all(shift.source != shift.target for shift in found.shifts)
    if found.before <= 0.2:
        assert not found.shifts


def test_nodes_without_any_load_are_alike() -> None:
    assert variation([]) == variation([0.0, 0.0]) == 0.0
