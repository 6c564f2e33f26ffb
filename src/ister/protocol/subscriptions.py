"""Subscriptions on the wire. Deliveries and acknowledgements are ranges of offsets, never single records.

Any node answers: one that does not own the subscription passes the request to the owner, and the answer says
who that is, so that the next one goes there directly.
"""

from __future__ import annotations

from enum import StrEnum

from ister.protocol.messages import Message


class SubscriptionKind(StrEnum):
    EXCLUSIVE = "exclusive"
    """One consumer at a time; another one is refused."""
    FAILOVER = "failover"
    """Any number of consumers; the first of them gets everything, the next takes over when it is gone."""
    SHARED = "shared"
    """Any number of consumers; each record goes to one of them."""
    KEY_SHARED = "key-shared"
    """As shared, with the records of each key in order: while a consumer has some of a key's, no other gets
    any of them."""


class OnFailure(StrEnum):
    """What becomes of a record that was delivered as often as is allowed."""

    BLOCK = "block"
    """It is delivered again and again: the cursor does not pass it."""
    DROP = "drop"
    """It is passed over."""
    DEAD_LETTER = "dead-letter"
    """It goes to another topic, and is passed over."""


class FailurePolicy(Message, frozen=True):
    ack_timeout_ms: int = 60_000
    """A record that is not acknowledged for so long goes to somebody else; 0 for no such bound."""
    max_redeliveries: int = 5
    """How often it is delivered again, before `on_failure` is done with it."""
    backoff_ms: int = 1_000
    """The pause before it is delivered again; twice as long each time."""
    backoff_max_ms: int = 60_000
    """The longest pause."""
    on_failure: str = OnFailure.BLOCK
    dead_letter_topic: str = ""
    """Where dead letters go; the topic's name, the subscription's and `dead` for an empty one."""


class CreateSubscription(Message, frozen=True):
    topic: str
    name: str
    kind: str
    offset: int
    """Where it begins: an offset, or `EARLIEST` or `LATEST`."""
    at_us: int = -1
    """Or a time, in microseconds: at the first record appended at or after it."""
    if_absent: bool = False
    policy: FailurePolicy = FailurePolicy()


class DeleteSubscription(Message, frozen=True):
    topic: str
    name: str
    uid: int = 0
    """Only the one that has this uid; 0 is whichever has the name now."""


class SeekSubscription(Message, frozen=True):
    """Let it go on elsewhere, for all of its consumers; what was acknowledged before counts no more."""

    topic: str
    name: str
    offset: int
    """An offset, or `EARLIEST` or `LATEST`."""
    at_us: int = -1
    """Or a time, in microseconds: at the first record appended at or after it."""


class PauseSubscription(Message, frozen=True):
    """Nothing is handed out until it is resumed; acknowledgements are taken."""

    topic: str
    name: str
    paused: bool


class ListSubscriptions(Message, frozen=True):
    prefix: str = ""
    """Of full names of topics, as in `ListTopics`."""
    name: str = ""
    """Only those of this name; all of them for an empty one."""


class SubscriptionDescription(Message, frozen=True):
    topic: str
    topic_uid: int
    name: str
    uid: int
    kind: str
    created_at_us: int
    cursor: int
    """The next offset, as stored."""
    beyond: list[tuple[int, int]]
    """Ranges acknowledged beyond it, as stored."""
    attempts: list[tuple[int, int, int]]
    owner: int
    """The node that hands out its records; 0 if none does yet."""
    epoch: int
    policy: FailurePolicy = FailurePolicy()
    dead_letter_topic: str = ""
    """Where its dead letters go; empty if nowhere."""
    paused: bool = False


class SubscriptionList(Message, frozen=True):
    subscriptions: list[SubscriptionDescription]


class Pull(Message, frozen=True):
    """A consumer asks for records, and by that says that it is there. Payload of the answer: the whole frames
    that the ranges lie in."""

    topic: str
    subscription: str
    consumer: int
    """Its own number, chosen at random."""
    number: int
    """Of this request, from 1: deliveries to requests after `received` and before this one were lost on the
    way, and are handed out again."""
    received: int
    """The last request whose answer has come."""
    window: int
    """How many records the consumer is willing to have without having acknowledged them."""
    max_bytes: int
    wait_ms: int = 0
    min_index: int = 0
    here_only: bool = False
    """From a node that passes it on, to the owner."""
    uid: int = 0
    """Of the subscription that was asked so far: another one of its name is not meant."""
    kind: str = ""
    """What the consumer takes it for; refused if it is of another kind. Empty: whichever it is."""


class Delivered(Message, frozen=True):
    start: int
    end: int
    attempt: int
    """From 1."""
    may_repeat: bool = False
    """It may have been delivered before: it was, or an earlier owner may have and did not say."""


class Pulled(Message, frozen=True):
    served_by: int
    epoch: int
    uid: int
    ranges: list[Delivered]


class Refused(Message, frozen=True):
    """A range that a consumer could not deal with."""

    start: int
    end: int
    delay_ms: int = -1
    """When it is to be delivered again; -1 for as its policy says."""
    reason: str = ""


class Settle(Message, frozen=True):
    """A consumer says what became of what it was given; without anything to say: that it is there."""

    topic: str
    subscription: str
    consumer: int
    epoch: int
    uid: int
    acknowledged: list[tuple[int, int]]
    durable: bool = False
    """Answer when it is stored, not when it is noted."""
    leaves: bool = False
    """It wants no more: what it has and did not acknowledge goes to others at once."""
    min_index: int = 0
    here_only: bool = False
    refused: tuple[Refused, ...] = ()


class Settled(Message, frozen=True):
    served_by: int
