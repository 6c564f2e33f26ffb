"""Who has which records of a subscription: bookkeeping without I/O or clock.

Every offset from the cursor to before `next_offset` is in exactly one place: acknowledged; handed out to a
consumer; returned, to be handed out again before anything new, lowest first; waiting until it is; or failed,
having been delivered as often as its subscription allows. So nothing is skipped: the cursor moves past what
is acknowledged only, and what is not is somewhere in here (S4).

Of a key-shared subscription (`keys`) what is new counts as returned as soon as its key is known: its records
go out in an order of their own, and some wait for others.

An acknowledgement is taken from whoever sends it in this epoch: the record has been dealt with, whoever has
it now.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ister.broker.subscriptions.key_order import KeyOrder
from ister.broker.subscriptions.range_map import RangeMap
from ister.errors import invariant
from ister.offset_ranges import Acknowledged, Range

NEVER: Final = float("inf")
NOT_ACKNOWLEDGED: Final = "not acknowledged in time"
CONSUMER_GONE: Final = "its consumer went away"


class Past(NamedTuple):
    """What is known of records that are not with a consumer."""

    attempts: int = 0
    """How often they were handed out, of those times that count."""
    may_repeat: bool = False
    """Whether a consumer may have seen them."""
    reason: str = ""
    """Why they came back last."""


class Handed(NamedTuple):
    """To whom a range was handed out, with which of its requests, and for the how-manieth time."""

    consumer: int
    request: int
    attempt: int
    deadline: float
    before: Past


class Candidate(NamedTuple):
    """What to hand out next."""

    start: int
    end: int | None
    """None: whatever the log has from there on."""
    past: Past


class Wait(NamedTuple):
    """What is to happen to a range that came back: it waits for so long, or it has failed."""

    seconds: float
    is_failed: bool = False


Judge = Callable[[int], Wait]
"""By how often it was delivered: what is to happen to a range that was not acknowledged."""


def at_once(attempts: int) -> Wait:
    return Wait(0.0)


class Dispatcher:
    def __init__(
        self,
        cursor: int,
        beyond: Iterable[Range] = (),
        attempts: Iterable[tuple[int, int, int]] = (),
        judge: Judge = at_once,
        *,
        by_key: bool = False,
    ) -> None:
        """As the last owner has left it."""
        self.acknowledged = Acknowledged(cursor, beyond)
        self.handed: RangeMap[Handed] = RangeMap()
        self.returned: RangeMap[Past] = RangeMap()
        self.waiting: RangeMap[Past] = RangeMap()
        self.failed: RangeMap[Past] = RangeMap()
        self._due: list[tuple[float, int, int]] = []
        """A heap: when a range stops waiting. Parts of it may be acknowledged by then."""
        self._judge = judge
        self._counts: dict[int, int] = {}
        """How many each consumer has."""
        known = list(attempts)
        self.next_offset = max([self.acknowledged.end, *(end for _, end, _ in known)])
        """Nothing from here on was handed out."""
        for start, end in self.acknowledged.missing(cursor, self.next_offset):
            self.returned.put(start, end, Past(0, True))
        for start, end, count in known:
            for low, high, _ in self.returned.carve(start, end):
                place = self.failed if judge(count).is_failed else self.returned
                place.put(low, high, Past(count, True, CONSUMER_GONE))
        self.keys = KeyOrder(self.cursor, self.returned) if by_key else None

    @property
    def cursor(self) -> int:
        return self.acknowledged.low

    @property
    def _places(self) -> tuple[RangeMap[Past], RangeMap[Past], RangeMap[Past]]:
        return self.returned, self.waiting, self.failed

    @property
    def unacknowledged(self) -> int:
        return self.handed.count + sum(place.count for place in self._places)

    @property
    def pieces(self) -> int:
        """How much of it has to be remembered."""
        return len(self.handed) + sum(map(len, self._places)) + len(self.acknowledged.beyond)

    def join(self, consumer: int) -> None:
        if self.keys is not None:
            self.keys.join(consumer)

    def leave(self, consumer: int) -> None:
        """It has nothing any more, and asks for nothing."""
        invariant(not self.held_by(consumer), f"consumer {consumer} leaves with what it has")
        if self.keys is not None:
            self.keys.leave(consumer)

    def held_by(self, consumer: int) -> int:
        return self._counts.get(consumer, 0)

    @property
    def candidate(self) -> Candidate:
        first = self.returned.first
        return Candidate(*first) if first is not None else Candidate(self.next_offset, None, Past())

    def hand_out(self, consumer: int, request: int, start: int, end: int, deadline: float = NEVER) -> int:
        """Give a range to a consumer: of the first that were returned, or the next. Returns which attempt it
        is."""
        candidate = self.candidate
        invariant(start == candidate.start, f"{start} is handed out, and {candidate.start} is next")
        if candidate.end is None:
            self.next_offset = end
        else:
            invariant(end <= candidate.end, f"{end} is handed out, and {candidate.end} is the end")
            self.returned.carve(start, end)
        return self._hand(consumer, request, start, end, deadline, candidate.past)

    def hand_out_by_key(
        self, consumer: int, request: int, limit: int, count: int, deadline: float = NEVER
    ) -> tuple[int, int, int, Past]:
        """Give a consumer the next of what is its to have, before `limit`. Returns the range, which attempt
        it is, and what was known of it."""
        assert self.keys is not None
        start, end = self.keys.take(consumer, limit, count)
        ((_, _, past),) = self.returned.carve(start, end)
        return start, end, self._hand(consumer, request, start, end, deadline, past), past

    def _hand(self, consumer: int, request: int, start: int, end: int, deadline: float, past: Past) -> int:
        attempt = past.attempts + 1
        self.handed.put(start, end, Handed(consumer, request, attempt, deadline, past))
        self._counts[consumer] = self.held_by(consumer) + end - start
        return attempt

    def learn(self, start: int, keys: Sequence[int | None]) -> None:
        """The hashes of the keys of the records that follow those that are known."""
        assert self.keys is not None
        end = start + len(keys)
        invariant(start == self.keys.scanned, f"keys of {start} are told, and {self.keys.scanned} is next")
        if end > self.next_offset:
            self.returned.put(max(start, self.next_offset), end, Past())
            self.next_offset = end
        self.keys.learn(start, keys, self.acknowledged.missing(start, end))

    def acknowledge(self, start: int, end: int) -> int:
        """Returns how many of them were not acknowledged before. What was never handed out cannot be."""
        end = min(end, self.next_offset)
        if start >= end:
            return 0
        self._let_go(self.handed.carve(start, end))
        for place in self._places:
            place.carve(start, end)
        added = self.acknowledged.add(start, end)
        if self.keys is not None:
            self.keys.done(start, end)
        return added

    def pass_over(self, start: int, end: int) -> int:
        """These are not in the log any more. Returns how many of them nobody has acknowledged."""
        self.next_offset = max(self.next_offset, end)
        if self.keys is not None and start <= self.keys.scanned:
            self.keys.scanned = max(self.keys.scanned, end)
        return self.acknowledge(start, end)

    # What comes back.

    def refuse(
        self, consumer: int, start: int, end: int, now: float, delay: float | None, reason: str
    ) -> int:
        """A consumer could not deal with what it has: it waits for `delay`, or as it is judged. Returns how
        many it had; what it has no more is not its to refuse."""
        pieces = [piece for piece in self.handed.carve(start, end) if self._is_of(piece, consumer)]
        self._let_go(pieces)
        for low, high, handed in pieces:
            self._put(low, high, Past(handed.attempt, True, reason), now, delay)
        return sum(high - low for low, high, _ in pieces)

    def _is_of(self, piece: tuple[int, int, Handed], consumer: int) -> bool:
        if piece[2].consumer != consumer:
            self.handed.put(*piece)
            return False
        return True

    def expire(self, now: float) -> int:
        """Take back what was not acknowledged in time. Returns how many."""
        return self._take_back(lambda handed: handed.deadline <= now, now, NOT_ACKNOWLEDGED)

    def lose(self, consumer: int, now: float) -> int:
        """A consumer went away without a word. Returns how many it had."""
        return self._take_back(lambda handed: handed.consumer == consumer, now, CONSUMER_GONE, 0.0)

    def give_back(self, consumer: int, requests: range | None = None) -> int:
        """What a consumer has is to be handed out again, and was not tried: it leaves; or of some of its
        requests, whose answers were lost on the way, so that it never had them. Returns how many."""
        pieces = [
            (start, end, handed)
            for start, end, handed in self.handed
            if handed.consumer == consumer and (requests is None or handed.request in requests)
        ]
        for start, end, handed in pieces:
            self._let_go(self.handed.carve(start, end))
            may_repeat = handed.before.may_repeat or requests is None
            self._return(start, end, handed.before._replace(may_repeat=may_repeat))
        return sum(end - start for start, end, _ in pieces)

    def ripen(self, now: float) -> int:
        """What has waited long enough is to be handed out again. Returns how many."""
        count = 0
        while self._due and self._due[0][0] <= now:
            _, start, end = heapq.heappop(self._due)
            for low, high, past in self.waiting.carve(start, end):
                self._return(low, high, past)
                count += high - low
        return count

    @property
    def next_due(self) -> float:
        return self._due[0][0] if self._due else NEVER

    def block(self, start: int, end: int, now: float, delay: float) -> None:
        """What has failed is not given up: it waits, and is delivered again."""
        for low, high, past in self.failed.carve(start, end):
            self.waiting.put(low, high, past)
            heapq.heappush(self._due, (now + delay, low, high))

    def _take_back(
        self, is_meant: Callable[[Handed], bool], now: float, reason: str, delay: float | None = None
    ) -> int:
        pieces = [piece for piece in self.handed if is_meant(piece[2])]
        for start, end, handed in pieces:
            self._let_go(self.handed.carve(start, end))
            self._put(start, end, Past(handed.attempt, True, reason), now, delay)
        return sum(end - start for start, end, _ in pieces)

    def _put(self, start: int, end: int, past: Past, now: float, delay: float | None) -> None:
        wait = self._judge(past.attempts)
        seconds = wait.seconds if delay is None else delay
        if wait.is_failed:
            self.failed.put(start, end, past)
        elif seconds > 0:
            self.waiting.put(start, end, past)
            heapq.heappush(self._due, (now + seconds, start, end))
        else:
            self._return(start, end, past)

    def _return(self, start: int, end: int, past: Past) -> None:
        self.returned.put(start, end, past)
        if self.keys is not None:
            self.keys.came_back(start, end)

    def _let_go(self, pieces: list[tuple[int, int, Handed]]) -> None:
        for start, end, handed in pieces:
            if self.keys is not None:
                self.keys.let_go(start, end)
            left = self._counts[handed.consumer] - (end - start)
            if left:
                self._counts[handed.consumer] = left
            else:
                del self._counts[handed.consumer]

    def attempts(self) -> list[tuple[int, int, int]]:
        """For a flush: how often ranges were handed out that are not acknowledged (S2)."""
        rows = [(start, end, handed.attempt) for start, end, handed in self.handed]
        rows += [(start, end, past.attempts) for place in self._places for start, end, past in place]
        joined: list[tuple[int, int, int]] = []
        for start, end, count in sorted(row for row in rows if row[2]):
            if joined and joined[-1][1] == start and joined[-1][2] == count:
                joined[-1] = (joined[-1][0], end, count)
            else:
                joined.append((start, end, count))
        return joined

    def validate(self) -> None:
        """Raises unless every offset is in exactly one place."""
        pieces = sorted(
            [
                *((start, end) for start, end, _ in self.handed),
                *((start, end) for place in self._places for start, end, _ in place),
                *self.acknowledged.beyond,
            ]
        )
        place = self.cursor
        for start, end in pieces:
            invariant(start == place, f"offsets {place} to {start} are nowhere, or in two places")
            place = end
        invariant(place == self.next_offset, f"offsets {place} to {self.next_offset} are nowhere")
        counts: dict[int, int] = {}
        for start, end, handed in self.handed:
            counts[handed.consumer] = counts.get(handed.consumer, 0) + end - start
        invariant(counts == self._counts, f"consumers have {counts}, and {self._counts} is counted")
        waiting = {offset for start, end, _ in self.waiting for offset in range(start, end)}
        due = {offset for _, start, end in self._due for offset in range(start, end)}
        invariant(waiting <= due, f"offsets {waiting - due} wait for ever")
        if self.keys is not None:
            self.keys.validate((start, end, handed.consumer) for start, end, handed in self.handed)
