"""Subscriptions in the metadata: claimed by compare-and-set, flushed by their owner in its epoch (S1, S2)."""

from __future__ import annotations

from typing import Any

import pytest

from ister.metadata.codec import decode_command, encode_command
from ister.metadata.commands import (
    ClaimSubscription,
    Command,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    FlushRow,
    FlushSubscriptions,
    Result,
    SeekSubscription,
    UpsertNode,
)
from ister.metadata.state import ClusterState
from ister.metadata.topics import SubscriptionState
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import member_of

A, B = member_of(1, f"{1:016x}"), member_of(2, f"{2:016x}")
TOPIC, SUBSCRIPTION = 3, 4


def claimed() -> ClusterState:
    state = ClusterState()
    commands: list[Command] = [
        *(UpsertNode(number, f"{number:016x}", 1, "h", 1, "h", 2) for number in (1, 2)),
        CreateTopic("default/t", TopicSettings(), A, [A], 1),
        CreateSubscription(TOPIC, "s", "shared", 10, 1),
        ClaimSubscription(TOPIC, SUBSCRIPTION, A, 1),
    ]
    for command in commands:
        assert apply(state, command).ok
    return state


def apply(state: ClusterState, command: Command) -> Any:
    assert decode_command(encode_command(command)) == command
    return state.apply(state.applied_index + 1, command)


def found(state: ClusterState) -> SubscriptionState:
    topic = state.topic_by_uid(TOPIC)
    assert topic is not None
    subscription = topic.subscription("s")
    assert subscription is not None
    return subscription


def flush(owner: int, epoch: int, cursor: int) -> FlushSubscriptions:
    return FlushSubscriptions(owner, [FlushRow(TOPIC, SUBSCRIPTION, epoch, cursor, [], [])])


@pytest.mark.parametrize("owner, epoch", [(A, 1), (A, 2), (B, 1), (B, 3)])
def test_only_the_owner_flushes_and_only_in_its_epoch(owner: int, epoch: int) -> None:
    state = claimed()
    apply(state, ClaimSubscription(TOPIC, SUBSCRIPTION, B, 2))
    assert apply(state, flush(owner, epoch, 50)).result is Result.STALE
    assert found(state).cursor == 10
    assert apply(state, flush(B, 2, 50)).ok
    assert found(state).cursor == 50


def test_a_cursor_goes_back_by_a_seek_only_and_no_flush_from_before_undoes_it() -> None:
    state = claimed()
    apply(state, flush(A, 1, 50))
    assert apply(state, flush(A, 1, 40)).result is Result.STALE
    assert apply(state, SeekSubscription(TOPIC, SUBSCRIPTION, 2, 20)).ok
    assert apply(state, flush(A, 1, 60)).result is Result.STALE
    assert (found(state).cursor, found(state).epoch) == (20, 2)
    assert apply(state, SeekSubscription(TOPIC, SUBSCRIPTION, 2, 30)).result is Result.STALE


def test_of_two_that_claim_the_same_epoch_one_wins() -> None:
    state = claimed()
    assert apply(state, ClaimSubscription(TOPIC, SUBSCRIPTION, B, 2)).ok
    assert apply(state, ClaimSubscription(TOPIC, SUBSCRIPTION, A, 2)).result is Result.STALE
    assert found(state).owner == B


def test_what_a_flush_carries_outlives_a_snapshot_and_goes_with_the_subscription() -> None:
    state = claimed()
    row = FlushRow(TOPIC, SUBSCRIPTION, 1, 12, [(14, 16), (20, 21)], [(12, 14, 3)])
    gone = FlushRow(TOPIC, 99, 1, 12, [], [])
    outcome = apply(state, FlushSubscriptions(A, [gone, row]))
    assert outcome.ok and "99" in outcome.detail, "each row stands for itself"
    again = ClusterState.from_bytes(state.to_bytes())
    assert (found(again).cursor, found(again).beyond) == (12, [(14, 16), (20, 21)])
    assert found(again).attempts == [(12, 14, 3)]
    assert apply(state, CreateSubscription(TOPIC, "s", "shared", 0, 1)).result is Result.EXISTS
    assert apply(state, DeleteSubscription(TOPIC, SUBSCRIPTION)).ok
    assert apply(state, DeleteSubscription(TOPIC, SUBSCRIPTION)).result is Result.STALE
