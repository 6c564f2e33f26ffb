"""What becomes of a record that is not acknowledged: tried again, ever later, and in the end as its policy
says.

    block         it is delivered again and again, at the longest pause; the cursor does not pass it
    drop          it is passed over, with a warning in the log
    dead-letter   it is appended to another topic, with where it was and why it failed in its headers, and
    then passed over

A dead letter is acknowledged once its topic has it. An owner that dies in between appends it a second time:
its headers, topic and offset, say that it is the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ister.broker.subscriptions.dispatch import Past, Wait
from ister.errors import ConnectionFailed, IsterError, NodeUnreachable, NotLeader, RequestTimeout
from ister.frame import Record, admit, encode
from ister.io.clock import monotonic
from ister.protocol.subscriptions import FailurePolicy, OnFailure

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.subscriptions")

APPEND_SECONDS: Final = 10.0
_AGAIN: Final = (NotLeader, NodeUnreachable, ConnectionFailed, RequestTimeout)
_PAUSE_SECONDS: Final = 0.1

TOPIC, OFFSET, SUBSCRIPTION = "x-original-topic", "x-original-offset", "x-original-subscription"
REASON, ATTEMPTS = "x-failure-reason", "x-delivery-attempt"
OWN_HEADERS: Final = (TOPIC, OFFSET, SUBSCRIPTION, REASON, ATTEMPTS)


def pause_s(policy: FailurePolicy, attempts: int) -> float:
    """Before the next attempt, after so many: twice as long each time, up to a bound."""
    doubled = policy.backoff_ms << min(max(attempts - 1, 0), 30)
    return min(policy.backoff_max_ms, doubled) / 1000


def judge(policy: FailurePolicy, attempts: int) -> Wait:
    return Wait(pause_s(policy, attempts), is_failed=attempts > policy.max_redeliveries)


def dead_letter_topic(topic: str, subscription: str, policy: FailurePolicy) -> str:
    """Where its dead letters go, by its full name; empty if nowhere."""
    if policy.on_failure != OnFailure.DEAD_LETTER:
        return ""
    return policy.dead_letter_topic or f"{topic}.{subscription}.dead"


def dead_letter(record: Record, topic: str, subscription: str, past: Past) -> bytes:
    """The record as it goes into the other topic: a frame, with why it is there."""
    added = {
        TOPIC: topic,
        OFFSET: str(record.offset),
        SUBSCRIPTION: subscription,
        REASON: past.reason or "not acknowledged",
        ATTEMPTS: str(past.attempts),
    }
    kept = [(name, value) for name, value in record.headers if name not in OWN_HEADERS]
    headers = [*kept, *((name, value.encode()) for name, value in added.items())]
    return encode(
        [record.value],
        keys=[record.key] if record.key is not None else None,
        timestamps_us=[record.timestamp_us],
        headers=[headers],
    )


class DeadLetters:
    """Appends to other topics in this node's own name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def append(self, topic: str, frame: bytes) -> None:
        """Returns when it is durable; the topic is made if it is not there."""
        until = monotonic() + APPEND_SECONDS
        while True:
            try:
                if topic not in self._broker.topics:
                    await self._broker.create_topic(topic, {}, if_absent=True)
                async with asyncio.timeout_at(until):
                    await self._append_once(topic, frame)
                return
            except TimeoutError as error:
                raise RequestTimeout(
                    f"a dead letter was not taken by {topic} in {APPEND_SECONDS:.0f} s"
                ) from error
            except _AGAIN as error:
                if monotonic() >= until:
                    raise
                log.debug("a dead letter is appended again: %s", error.message)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _append_once(self, topic: str, frame: bytes) -> None:
        data = bytearray(frame)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broker.append(topic, data, admit(data), _OneAppend(done), 0, monotonic())
        await done


class _OneAppend:
    """Waits for one append."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def refused(self, token: int, error: IsterError) -> None:
        if not self._done.done():
            self._done.set_exception(error)
