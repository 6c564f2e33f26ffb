"""What a loss leaves behind: an error that carries its range, a segment that retention drops in its time."""

from __future__ import annotations

import pickle

import pytest

from ister.broker.node.leftovers import check_nothing_is_newer, find_dropped, find_leftovers
from ister.broker.node.retention import first_offset_to_keep
from ister.errors import IsterError, RecordsLost, UnknownTopic
from ister.metadata.commands import AlterTopic, TrimTopic
from ister.metadata.state import ClusterState
from ister.protocol.codec import PREFIX_SIZE, decode_failure, encode_failure
from tests.metadata.chains import TWO, accept_loss, apply, create, node, seal, state_after, the_topic

TOPIC = 4


def lost(at_us: int = 60, last_append_time_us: int = 0) -> ClusterState:
    """Segment 1 has offsets 0 to 9, appended at 10; segment 2, from 10 to 4009, was given up at `at_us`."""
    state = state_after(
        node(1), node(2), node(3), create(leader=TWO), seal(TOPIC, 1, 10, by=TWO, then=TWO),
        accept_loss(TOPIC, 2, 4010, 10, last_append_time_us=last_append_time_us),
    )  # fmt: skip
    the_topic(state).segments[1].sealed_at_us = at_us
    return state


@pytest.mark.parametrize("error", [RecordsLost("lost", hint="go on", offsets=(3, 7)), UnknownTopic("none")])
def test_an_error_keeps_its_range_wherever_it_goes(error: IsterError) -> None:
    data = encode_failure(9, error)
    received = decode_failure(error.wire, data[PREFIX_SIZE:])
    for same in (received, error.again(), pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error)
        assert (same.message, same.hint, same.offsets) == (error.message, error.hint, error.offsets)


def test_a_loss_is_not_worth_another_try() -> None:
    assert not RecordsLost.retriable


@pytest.mark.parametrize("last_append_time_us", [0, 33])
def test_retention_counts_the_age_of_a_lost_segment_from_when_it_was_given_up(
    last_append_time_us: int,
) -> None:
    state = lost(at_us=5_000_000, last_append_time_us=last_append_time_us)
    apply(state, AlterTopic(TOPIC, {"retention_ms": 1000}))
    for now_us, kept in ((900_000, 0), (5_900_000, 10), (6_000_000, 4010)):
        assert first_offset_to_keep(the_topic(state), 0, now_us) == kept


def test_a_tail_that_was_set_aside_goes_with_its_segment_and_not_before() -> None:
    uid, segment = f"{TOPIC:016d}", f"{2:08d}-{5:016d}"
    aside = [f"{segment}.lost-10-37.log", f"{segment}.lost-10-37.side"]
    files = {uid: [f"{1:08d}-{4:016d}.log", *aside]}
    state = lost()
    assert find_leftovers("here", files, state) == []
    check_nothing_is_newer("here", files, state.applied_index)
    assert find_dropped(files, state, TWO) == []
    apply(state, TrimTopic(TOPIC, 10))
    assert find_leftovers("here", files, state) == [f"segments/{uid}/{1:08d}-{4:016d}.log"]
    apply(state, TrimTopic(TOPIC, 4010))
    assert find_leftovers("here", files, state)[1:] == [f"segments/{uid}/{name}" for name in aside]
