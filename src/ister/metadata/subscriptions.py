"""Subscriptions in the metadata: made, claimed by an owner, flushed by it, sent elsewhere, deleted (S1, S2,
S4).

Fault model: a command may be applied twice or late, after another owner's. A claim and a seek are
compare-and-sets on the epoch, each raises it, and a flush applies in its own epoch only: an owner that was
replaced, or that has not heard of a seek, changes nothing any more. Within an epoch a cursor never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping

from ister.metadata.commands import (
    ClaimSubscription,
    CreateSubscription,
    DeleteSubscription,
    FlushRow,
    FlushSubscriptions,
    Outcome,
    PauseSubscription,
    Result,
    SeekSubscription,
)
from ister.metadata.nodes import NodeState, inactive_among
from ister.metadata.topics import SubscriptionState, TopicState

SubscriptionCommand = (
    CreateSubscription | DeleteSubscription | ClaimSubscription | SeekSubscription | PauseSubscription
)


def change_subscription(
    index: int, topic: TopicState, nodes: Mapping[int, NodeState], command: SubscriptionCommand
) -> Outcome:
    if isinstance(command, CreateSubscription):
        return _create(index, topic, command)
    found = topic.subscription_by_uid(command.uid)
    if found is None:
        detail = f"{topic.name} has no subscription with uid {command.uid}"
        return Outcome(Result.STALE, index, detail, topic.uid)
    match command:
        case DeleteSubscription():
            topic.subscriptions = [one for one in topic.subscriptions if one is not found]
        case ClaimSubscription() | SeekSubscription() if command.epoch != found.epoch + 1:
            detail = f"{found.name} of {topic.name} is in epoch {found.epoch}, not {command.epoch - 1}"
            return Outcome(Result.STALE, index, detail, topic.uid)
        case ClaimSubscription():
            refused = inactive_among(nodes, [command.owner])
            if refused:
                return Outcome(Result.REFUSED, index, refused, topic.uid)
            found.owner, found.epoch = command.owner, command.epoch
        case PauseSubscription():
            found.paused = command.paused
        case SeekSubscription():
            found.epoch, found.cursor = command.epoch, command.cursor
            found.beyond, found.attempts = [], []
    return Outcome(Result.APPLIED, index, topic_uid=topic.uid)


def _create(index: int, topic: TopicState, command: CreateSubscription) -> Outcome:
    if topic.subscription(command.name) is not None:
        return Outcome(Result.EXISTS, index, f"{topic.name} has {command.name} already", topic.uid)
    made = SubscriptionState(
        command.name, index, command.kind, command.created_at_us, command.cursor, policy=command.policy
    )
    topic.subscriptions = [*topic.subscriptions, made]
    return Outcome(Result.CREATED, index, topic_uid=topic.uid)


def flush(index: int, topics: Mapping[int, TopicState], command: FlushSubscriptions) -> Outcome:
    """Each row stands for itself; the detail names those that were not applied."""
    refused = [why for row in command.rows if (why := _flush(topics.get(row.topic_uid), command.owner, row))]
    result = Result.STALE if refused and len(refused) == len(command.rows) else Result.APPLIED
    return Outcome(result, index, "; ".join(refused))


def _flush(topic: TopicState | None, owner: int, row: FlushRow) -> str:
    """Why a row does not hold; empty if it does."""
    found = topic.subscription_by_uid(row.uid) if topic is not None else None
    if found is None:
        return f"there is no subscription with uid {row.uid}"
    if (found.owner, found.epoch) != (owner, row.epoch):
        return f"{found.name} is in epoch {found.epoch}, the flush is of epoch {row.epoch}"
    if row.cursor < found.cursor:
        return f"the cursor of {found.name} is at {found.cursor}, the flush at {row.cursor}"
    found.cursor, found.beyond, found.attempts = row.cursor, row.beyond, row.attempts
    return ""
