"""Choosing what a consumer gets: ranges of offsets, and the whole frames that they lie in.

Frames go out as they are stored, since their checksum is the producer's. A frame of up to `SPLIT_BYTES` is
shared out among the consumers of a shared subscription, and sent to each that gets some of it; of a larger
one a consumer gets as much as it has room for. Of a key-shared one everybody gets the frames that its keys
lie in, whole.

Nothing is passed over but what nobody can have: records that retention dropped, with a warning; records that
an operator gave up (F6), which are an error once, with their range.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from ister.broker.subscriptions.dispatch import NEVER, Candidate, Dispatcher, Past
from ister.broker.subscriptions.frames import ReadFrame, ReadFrames, Run, Spot
from ister.broker.subscriptions.key_order import KeyOrder
from ister.errors import CorruptSegment, IsterError, OffsetOutOfRange, RecordsLost
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.topics import SubscriptionState, TopicState
from ister.protocol.messages import Fetch
from ister.protocol.subscriptions import Delivered, Pull, SubscriptionKind

log = logging.getLogger("ister.broker.subscriptions")

MAX_PIECES: Final = 10_000
"""Ranges that are not acknowledged, or acknowledged beyond the cursor: at this nothing new is handed out."""
MAX_UNACKNOWLEDGED: Final = 1_000_000
"""Records, the same."""
MAX_KEYS: Final = 100_000
"""Records with a key of a key-shared subscription, the same: each is remembered."""
MAX_RANGES: Final = 2_000
"""In one answer."""
READ_BYTES: Final = 1024 * 1024
MAX_PULL_BYTES: Final = 8 * 1024 * 1024
SPLIT_BYTES: Final = 16 * 1024
"""A frame up to this size is shared out among consumers, and sent to each of them."""


class Source(Protocol):
    """The topic's records, wherever they are."""

    async def read(self, request: Fetch) -> bytes: ...

    async def wait(self, topic: str, offset: int, seconds: float) -> None:
        """Until there may be a record at an offset, or the time is over."""
        ...


class Selected:
    """An answer while it is put together."""

    def __init__(self, max_bytes: int) -> None:
        self.ranges: list[Delivered] = []
        self.payload: list[memoryview] = []
        self.is_at_end = False
        """Whether nothing but the end of the topic was in the way."""
        self._max_bytes = max(1, min(max_bytes, MAX_PULL_BYTES))
        self._size = 0
        self._bases: set[int] = set()

    @property
    def room(self) -> int:
        """In bytes."""
        return self._max_bytes - self._size

    @property
    def is_full(self) -> bool:
        return len(self.ranges) >= MAX_RANGES or self.room <= 0

    def add(self, delivered: Delivered, spot: Spot) -> None:
        self.ranges.append(delivered)
        for frame in spot.run.frames[spot.place :]:
            if frame.base >= delivered.end:
                break
            if frame.base not in self._bases:
                self._bases.add(frame.base)
                self.payload.append(frame.data)
                self._size += len(frame.data)


class HandingOut:
    """Of one subscription, while this node owns it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        state: SubscriptionState,
        source: Source,
        current: Callable[[], TopicState],
        changed: Callable[[int], None],
        end_at_claim: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._state = state
        self._source = source
        self._current = current
        """Raises if this node does not own it any more."""
        self._changed = changed
        """To be told how many were acknowledged, or that something else is to be stored."""
        self._end_at_claim = end_at_claim
        """What lies before it an earlier owner may have handed out without having said so."""
        self._frames = ReadFrames(is_one_place=dispatcher.keys is None)
        self._topic: TopicState
        """As it was after the last wait: nothing changes in between."""
        self._deadline = NEVER

    async def select(self, request: Pull, sharers: int) -> Selected:
        """As much as a consumer may have now; nothing at all if there is nothing."""
        selected = Selected(request.max_bytes)
        self._look_again()
        try:
            while not selected.is_full and await self._add(selected, request, sharers):
                pass
        except IsterError:
            if not selected.ranges:
                raise  # else these first; whoever asks next is told
        return selected

    def _look_again(self) -> None:
        """After a wait, however long that was."""
        self._topic = self._current()
        timeout_ms = self._state.policy.ack_timeout_ms
        self._deadline = monotonic() + timeout_ms / 1000 if timeout_ms else NEVER

    async def _add(self, selected: Selected, request: Pull, sharers: int) -> bool:
        """One range more; returns whether to go on."""
        room = request.window - self._dispatcher.held_by(request.consumer)
        if room <= 0:
            return False
        if (keys := self._dispatcher.keys) is not None:
            return await self._add_by_key(selected, request, keys, room)
        candidate = self._dispatcher.candidate
        if candidate.end is None and self._is_full:
            return False
        spot = await self._find(candidate.start, selected)
        if spot is None or candidate != self._dispatcher.candidate:
            return not selected.is_at_end  # it was passed over, or something came back meanwhile
        if self._state.kind != SubscriptionKind.SHARED:
            sharers = 1
        end, is_share = self._extent(candidate, spot, room, selected.room, sharers)
        attempt = self._dispatcher.hand_out(
            request.consumer, request.number, candidate.start, end, self._deadline
        )
        self._deliver(selected, candidate.start, end, attempt, candidate.past, spot)
        return not is_share

    async def _add_by_key(self, selected: Selected, request: Pull, keys: KeyOrder, room: int) -> bool:
        offset = keys.next_for(request.consumer)
        if offset is None:
            if self._is_full or len(keys) >= MAX_KEYS:
                return False
            scanned = keys.scanned
            spot = await self._find(scanned, selected)
            if spot is not None and scanned == keys.scanned:
                hashes = spot.frame.key_hashes()
                self._dispatcher.learn(scanned, hashes[scanned - spot.frame.base :])
            return not selected.is_at_end
        spot = await self._find(offset, selected)
        if spot is None or offset != keys.next_for(request.consumer):
            return not selected.is_at_end
        limit = _end_within(spot.run, spot.place, selected.room)
        start, end, attempt, past = self._dispatcher.hand_out_by_key(
            request.consumer, request.number, limit, room, self._deadline
        )
        self._deliver(selected, start, end, attempt, past, spot)
        return True

    def _deliver(
        self, selected: Selected, start: int, end: int, attempt: int, past: Past, spot: Spot
    ) -> None:
        may_repeat = past.may_repeat or start < self._end_at_claim
        selected.add(Delivered(start, end, attempt, may_repeat), spot)
        if attempt > 1:
            self._changed(0)

    @property
    def _is_full(self) -> bool:
        dispatcher = self._dispatcher
        return dispatcher.pieces >= MAX_PIECES or dispatcher.unacknowledged >= MAX_UNACKNOWLEDGED

    def _extent(
        self, candidate: Candidate, spot: Spot, room: int, max_bytes: int, sharers: int
    ) -> tuple[int, bool]:
        """How far a range goes, and whether it is this consumer's share: then others are to have the rest."""
        start = candidate.start
        known_end = spot.run.end if candidate.end is None else min(candidate.end, spot.run.end)
        limit = min(known_end, start + room, _end_within(spot.run, spot.place, max_bytes))
        if sharers > 1 and len(spot.frame.data) <= SPLIT_BYTES:
            share = -(-spot.run.count // sharers)
            return min(limit, start + share), True
        return limit, False

    async def _find(self, offset: int, selected: Selected) -> Spot | None:
        """The frame that holds an offset. None at the end of the topic, which `selected` is told, or if the
        offset was passed over, since nobody can have it any more."""
        topic, name = self._topic, self._state.name
        if offset < topic.start_offset:
            missed = self._dispatcher.pass_over(offset, topic.start_offset)
            log.warning(
                "retention dropped records before they were consumed",
                extra=fields(topic=topic.name, subscription=name, records=missed, to=topic.start_offset),
            )
            self._changed(missed)
            return None
        found = self._frames.find(offset)
        if found is not None:
            return found
        try:
            data = await self._source.read(Fetch(topic.name, offset, READ_BYTES))
        except RecordsLost as error:
            self._look_again()
            if not selected.ranges and error.offsets and error.offsets[0] <= offset < error.offsets[1]:
                # Whoever asked is told, once; then it goes on behind them.
                self._changed(self._dispatcher.pass_over(offset, error.offsets[1]))
            raise
        except OffsetOutOfRange as error:
            self._look_again()
            if offset < self._topic.start_offset:
                return None  # it was trimmed just now
            raise OffsetOutOfRange(
                f"the subscription {name} is at offset {offset} of {topic.name}: {error.message}",
                hint="A cursor is never ahead of its log unless the log has lost records. "
                "`ister topic describe` shows where it ends; it goes on by itself if these come back.",
            ) from error
        self._look_again()
        if not data:
            selected.is_at_end = True
            return None
        self._frames.keep(topic.name, data)
        found = self._frames.find(offset)
        if found is None:
            raise CorruptSegment(f"what was read of {topic.name} does not have offset {offset}")
        return found


def _end_within(run: Run, place: int, max_bytes: int) -> int:
    """How far so many bytes of frames go, from the one at `place`; that one is always among them."""
    frames: list[ReadFrame] = run.frames
    end, size = frames[place].end, len(frames[place].data)
    for frame in frames[place + 1 :]:
        size += len(frame.data)
        if size > max_bytes:
            break
        end = frame.end
    return end
