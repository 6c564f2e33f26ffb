"""Commands about subscriptions (S1 to S4)."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import Command, TopicCommand
from ister.protocol.subscriptions import FailurePolicy


class CreateSubscription(TopicCommand, frozen=True):
    """Create if absent: a durable place in a topic; the existing one is the answer otherwise."""

    name: str
    kind: str
    cursor: int
    """Where it begins: the next offset (S4)."""
    created_at_us: int
    policy: FailurePolicy = FailurePolicy()


class DeleteSubscription(TopicCommand, frozen=True):
    uid: int


class ClaimSubscription(TopicCommand, frozen=True):
    """A member becomes the owner of a subscription: a compare-and-set on its epoch (S1)."""

    uid: int
    owner: int
    epoch: int
    """One more than the epoch that it is taken from."""


class FlushRow(msgspec.Struct, array_like=True, frozen=True):
    """How far one subscription has come (S2)."""

    topic_uid: int
    uid: int
    epoch: int
    cursor: int
    """The next offset: everything below is acknowledged (S4)."""
    beyond: list[tuple[int, int]]
    """Ranges that are acknowledged beyond the cursor."""
    attempts: list[tuple[int, int, int]]
    """From, to before, and how often these were handed out that are not acknowledged."""


class FlushSubscriptions(Command, frozen=True):
    """What one member's subscriptions have come to; one command for all of them. Each row stands for itself:
    it applies if the owner and the epoch are the current ones, and never takes a cursor back."""

    owner: int
    rows: list[FlushRow]


class SeekSubscription(TopicCommand, frozen=True):
    """Go on at another offset. Raises the epoch, so that no flush from before undoes it (S1)."""

    uid: int
    epoch: int
    """One more than the epoch that is left."""
    cursor: int


class PauseSubscription(TopicCommand, frozen=True):
    """Hand out nothing, or go on."""

    uid: int
    paused: bool
