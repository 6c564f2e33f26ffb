"""Pins as this node takes them from readers: all that come while one command is under way go with the next.

So a thousand readers that renew cost a few commands a second, and one that is alone waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ister.errors import BadRequest, IsterError, Overloaded, ShuttingDown, UnknownTopic
from ister.metadata.commands import PinRow, SetPins
from ister.metadata.pins import FORGOTTEN_US, MAX_NAME, is_valid
from ister.metadata.topics import PinState, TopicState
from ister.protocol.messages import PinDescription, Pinned, PinTopic

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

MIN_TTL_MS: Final = 1_000
MAX_TTL_MS: Final = 3_600_000
ROWS_IN_A_COMMAND: Final = 500
MAX_WAITING: Final = 5_000
"""Renewals that wait for a command, of all topics."""


class _Renewal:
    """One reader's wish, until a command has carried it."""

    def __init__(self, row: PinRow) -> None:
        self.row = row
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Pins:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: list[_Renewal] = []
        self._is_proposing = False

    async def pin(self, request: PinTopic) -> Pinned:
        _check(request)
        broker = self._broker
        uid = (await broker.find_same(request.topic, request.uid)).state.uid
        renewal = _Renewal(PinRow(uid, request.name, request.offset, request.ttl_ms * 1000, request.about))
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(f"{len(self._waiting)} renewals of pins wait for the metadata already")
        self._waiting.append(renewal)
        if not self._is_proposing:
            self._is_proposing = True
            broker.spawn(self._propose())
        await renewal.done
        state = broker.metadata.state.topic_by_uid(uid)
        if state is None:
            raise UnknownTopic(f"topic {request.topic} was deleted")
        return _answer(state, request)

    async def _propose(self) -> None:
        """Until nobody waits any more. Who waits is told of an error, and asks again."""
        metadata, clock = self._broker.metadata, self._broker.clock
        taken: list[_Renewal] = []
        try:
            while self._waiting:
                taken = self._waiting[:ROWS_IN_A_COMMAND]
                self._waiting = self._waiting[ROWS_IN_A_COMMAND:]
                try:
                    await metadata.propose(SetPins(clock.now_us(), [renewal.row for renewal in taken]))
                except IsterError as error:
                    _settle(taken, error)
                else:
                    _settle(taken, None)
        finally:
            left, self._waiting, self._is_proposing = taken + self._waiting, [], False
            _settle(left, ShuttingDown("the broker is stopping"))

    def of(self, topics: Iterable[str]) -> list[PinDescription]:
        """The pins of these topics; those that ran out long ago are forgotten, though not yet removed."""
        now_us = self._broker.clock.now_us()
        states = [self._broker.topics[name].state for name in topics]
        return [
            describe(state, pin, now_us)
            for state in states
            for pin in sorted(state.pins, key=lambda pin: pin.name)
            if now_us - pin.expires_at_us < FORGOTTEN_US
        ]


def describe(topic: TopicState, pin: PinState, now_us: int) -> PinDescription:
    took_us = pin.renewed_at_us - pin.before_us if pin.before_us else 0
    rate = (pin.offset - pin.before_offset) * 1e6 / took_us if took_us > 0 else 0.0
    return PinDescription(
        topic.name,
        topic.uid,
        pin.name,
        pin.offset,
        pin.renewed_at_us,
        pin.expires_at_us,
        pin.is_live(now_us),
        pin.about,
        rate,
    )


def _settle(renewals: Iterable[_Renewal], error: IsterError | None) -> None:
    for renewal in renewals:
        if renewal.done.done():
            continue  # whoever asked has gone
        if error is None:
            renewal.done.set_result(None)
        else:
            renewal.done.set_exception(error.again())


def _check(request: PinTopic) -> None:
    if not is_valid(request.name, request.about):
        raise BadRequest(
            f"the pin {request.name[:MAX_NAME]!r} has no name, or one that cannot be kept",
            hint=f"Give it and what it is about 1 to {MAX_NAME} printable characters.",
        )
    if request.offset < 0:
        raise BadRequest(f"the pin {request.name} is at offset {request.offset}", hint="Offsets begin at 0.")
    if request.ttl_ms and not MIN_TTL_MS <= request.ttl_ms <= MAX_TTL_MS:
        raise BadRequest(
            f"the pin {request.name} is to hold for {request.ttl_ms} ms",
            hint=f"Give {MIN_TTL_MS} to {MAX_TTL_MS} ms, and renew it before that is over.",
        )


def _answer(topic: TopicState, request: PinTopic) -> Pinned:
    """What came of it, by the metadata: the command carried others' too."""
    found = next((pin for pin in topic.pins if pin.name == request.name), None)
    if request.ttl_ms == 0:
        return Pinned(topic.start_offset, 0)
    if found is None:
        raise Overloaded(
            f"{topic.name} has {len(topic.pins)} pins, all of them live",
            hint="`ister lag` shows whose they are. Those that nobody renews run out by themselves.",
        )
    return Pinned(topic.start_offset, found.expires_at_us)
