"""What a client may ask for of subscriptions, and how it is told of them."""

from __future__ import annotations

import re
from typing import Final

from ister.broker.subscriptions.policy import dead_letter_topic
from ister.errors import BadRequest
from ister.metadata.topics import SubscriptionState, TopicState
from ister.protocol.messages import EARLIEST, LATEST
from ister.protocol.peer import node_of
from ister.protocol.subscriptions import (
    CreateSubscription,
    FailurePolicy,
    OnFailure,
    SubscriptionDescription,
    SubscriptionKind,
)

MAX_MS: Final = 1_000_000_000
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_new(request: CreateSubscription) -> None:
    if not _NAME.fullmatch(request.name):
        raise BadRequest(
            f"{request.name[:200]!r} cannot be the name of a subscription",
            hint="Give 1 to 200 letters, digits, dots, dashes or underscores; it does not start with a dot.",
        )
    if request.kind not in list(SubscriptionKind):
        raise BadRequest(
            f"there is no kind of subscription {request.kind[:40]!r}",
            hint=f"Choose {' or '.join(SubscriptionKind)}.",
        )
    check_offset(request.name, request.offset, request.at_us)


def check_offset(subscription: str, offset: int, at_us: int) -> None:
    if at_us < 0 and offset < 0 and offset not in (EARLIEST, LATEST):
        raise BadRequest(f"{subscription} cannot be at offset {offset}", hint="Offsets begin at 0.")


def check_policy(policy: FailurePolicy) -> None:
    for name, value, least in (
        ("ack_timeout_ms", policy.ack_timeout_ms, 0),
        ("max_redeliveries", policy.max_redeliveries, 0),
        ("backoff_ms", policy.backoff_ms, 0),
        ("backoff_max_ms", policy.backoff_max_ms, policy.backoff_ms),
    ):
        if not least <= value <= MAX_MS:
            raise BadRequest(f"{name} is {value}", hint=f"Choose {least} to {MAX_MS}.")
    if policy.on_failure not in list(OnFailure):
        raise BadRequest(f"on_failure is {policy.on_failure[:40]!r}", hint=f"Choose {', '.join(OnFailure)}.")
    if policy.dead_letter_topic and policy.on_failure != OnFailure.DEAD_LETTER:
        raise BadRequest(
            f"a dead letter topic is given, and on_failure is {policy.on_failure}",
            hint="Choose dead-letter, or leave the topic out.",
        )


def describe(topic: TopicState, state: SubscriptionState) -> SubscriptionDescription:
    return SubscriptionDescription(
        topic.name,
        topic.uid,
        state.name,
        state.uid,
        state.kind,
        state.created_at_us,
        state.cursor,
        state.beyond,
        state.attempts,
        node_of(state.owner),
        state.epoch,
        state.policy,
        dead_letter_topic(topic.name, state.name, state.policy),
        state.paused,
    )
