"""The ancestors' holes that replicas close: W1, D15, D16, D20. What they did is in each docstring."""

from __future__ import annotations

import functools

import pytest

from ister.errors import IsterError, NodeUnreachable, RequestTimeout
from ister.testing.cluster import run_story
from tests.holes import replica_plants as plants
from tests.holes.replica_plants import Dies

ONE_MOMENT: list[Dies] = [
    plants.dies_before_it_drains,
    plants.dies_before_it_proposes,
    plants.dies_with_its_proposal_on_the_way,
]


def name(dies: Dies) -> str:
    return dies.__name__


@pytest.mark.parametrize("seed", range(3))
def test_w1_a_topic_is_written_and_read_on_when_its_leader_is_gone_with_its_disk(seed: int) -> None:
    """W1: no replication, no failover: a dead leader's topic was not written, and read up to its segment."""
    run_story(plants.the_leader_and_its_disk_are_gone, segment_records=5, replicas=3, seed=seed)


def test_w1_one_replica_and_the_check_can_see_it() -> None:
    with pytest.raises((NodeUnreachable, RequestTimeout)):
        run_story(plants.the_leader_and_its_disk_are_gone, segment_records=5, replicas=1)


@pytest.mark.parametrize("seed", range(3))
def test_d15_a_live_leader_that_is_taken_for_dead_keeps_its_records_and_gives_out_nothing(seed: int) -> None:
    """D15: a live broker whose registration had expired deleted its data; without an epoch two owners wrote
    the same keys."""
    run_story(plants.a_live_leader_is_taken_for_dead, replicas=3, seed=seed)


def test_d15_two_owners_and_the_check_can_see_it() -> None:
    with plants.a_leader_needs_nobody(), pytest.raises(AssertionError, match="two records"):
        run_story(plants.a_live_leader_is_taken_for_dead, replicas=3)


def test_d15_a_broker_that_clears_its_disk_and_the_check_can_see_it() -> None:
    with (
        plants.who_cannot_lead_any_more_deletes_what_it_has(),
        pytest.raises(AssertionError, match="is not what it was"),
    ):
        run_story(plants.a_live_leader_is_taken_for_dead, replicas=3)


@pytest.mark.parametrize("dies", [*ONE_MOMENT, plants.the_next_leader_dies_before_it_opens], ids=name)
def test_d16_a_topic_goes_on_whoever_dies_in_the_middle_of_its_handoff(dies: Dies) -> None:
    """D16: a topic was stranded when its source died before its seal was marked ready."""
    story = functools.partial(plants.the_topic_is_not_stranded, dies=dies)
    run_story(story, segment_records=10, replicas=3)


def test_d16_a_topic_goes_on_when_who_recovers_it_dies_before_the_seal() -> None:
    story = functools.partial(plants.the_topic_is_not_stranded, dies=plants.who_recovers_dies_before_its_seal)
    run_story(story, nodes=5, replicas=5)


@pytest.mark.parametrize("dies", ONE_MOMENT, ids=name)
def test_d16_one_replica_and_the_check_can_see_it(dies: Dies) -> None:
    story = functools.partial(plants.the_topic_is_not_stranded, dies=dies)
    with pytest.raises(IsterError):
        run_story(story, segment_records=10, replicas=1)


@pytest.mark.parametrize("seed", range(3))
def test_d20_what_only_a_dead_broker_had_was_seen_by_nobody_and_no_cursor_is_ahead(seed: int) -> None:
    """D20: a dead broker's records stayed on its disk, their offsets were given to others, and cursors could
    be ahead of the log."""
    run_story(plants.cursors_outlive_a_dead_broker, replicas=3, seed=seed)


def test_d20_a_record_of_one_disk_is_served_and_the_check_can_see_it() -> None:
    with plants.a_leader_needs_nobody(), pytest.raises(AssertionError, match="two records"):
        run_story(plants.cursors_outlive_a_dead_broker, replicas=3)
