"""What a key-shared subscription may hand out to whom, so that the records of each key stay in order.

Of a key's records that are with nobody only the lowest may go out, and only

- to the consumer that has the key (`key_ranges`),
- while nobody else has records of that key: what the one before had is acknowledged, refused, late, or its
  consumer is gone,
- when it does not wait to be tried again, and has not failed: then the later ones wait behind it.

A record without a key goes to whoever asks first.

Keys are known of every record before `scanned`; the dispatcher says what becomes of each.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ister.broker.subscriptions.key_ranges import KeyRanges
from ister.broker.subscriptions.range_map import RangeMap
from ister.errors import invariant
from ister.offset_ranges import Range

if TYPE_CHECKING:
    from ister.broker.subscriptions.dispatch import Past


class _Holder:
    def __init__(self, consumer: int) -> None:
        self.consumer = consumer
        self.count = 0


class KeyOrder:
    def __init__(self, start: int, returned: RangeMap[Past]) -> None:
        self.scanned = start
        """The keys of everything before it are known."""
        self._returned = returned
        """The dispatcher's: what may be handed out at all."""
        self._ranges = KeyRanges()
        self._keys: dict[int, int] = {}
        """The hash of the key of each offset that has one and is not acknowledged."""
        self._queues: dict[int, list[int]] = {}
        """By key: a heap of the offsets that are with nobody; those acknowledged since are passed over."""
        self._holders: dict[int, _Holder] = {}
        """By key: who has how many of its records."""
        self._ready: dict[int, list[tuple[int, int]]] = {}
        """By consumer: a heap of offsets that it may have, with their key; looked at again when taken."""
        self._listed: dict[int, int] = {}
        """By key: which of its offsets is in such a heap."""
        self._free: list[Range] = []
        """A heap of ranges without keys; parts of them may be handed out or acknowledged by now."""

    def __len__(self) -> int:
        """How many records are remembered one by one."""
        return len(self._keys)

    # Consumers.

    def join(self, consumer: int) -> None:
        self._ranges.join(consumer)
        self._share_out()

    def leave(self, consumer: int) -> None:
        if consumer in self._ranges:
            self._ranges.leave(consumer)
            self._share_out()

    def _share_out(self) -> None:
        self._ready, self._listed = {}, {}
        for key in list(self._queues):
            self._look_at(key)

    # What the dispatcher tells.

    def learn(self, start: int, keys: Sequence[int | None], open_ranges: Iterable[Range]) -> None:
        """The keys of the offsets from `scanned`, and which of them are not acknowledged."""
        for low, high in open_ranges:
            free_from = low
            for offset in range(low, high):
                key = keys[offset - start]
                if key is None:
                    continue
                self._give_free(free_from, offset)
                free_from = offset + 1
                self._keys[offset] = key
                heapq.heappush(self._queues.setdefault(key, []), offset)
                self._look_at(key)
            self._give_free(free_from, high)
        self.scanned = start + len(keys)

    def let_go(self, start: int, end: int) -> None:
        """These are with their consumer no more."""
        for offset in range(start, end):
            key = self._keys.get(offset)
            if key is not None:
                holder = self._holders[key]
                holder.count -= 1
                if not holder.count:
                    del self._holders[key]
                heapq.heappush(self._queues.setdefault(key, []), offset)
                self._look_at(key)

    def came_back(self, start: int, end: int) -> None:
        """These may be handed out again."""
        free_from = start
        for offset in range(start, min(end, self.scanned)):
            key = self._keys.get(offset)
            if key is not None:
                self._give_free(free_from, offset)
                free_from = offset + 1
                self._look_at(key)
        self._give_free(free_from, min(end, self.scanned))

    def done(self, start: int, end: int) -> None:
        """These are acknowledged, or not in the log any more: then there may be millions of them."""
        offsets: Iterable[int] = range(start, min(end, self.scanned))
        if end - start > len(self._keys):
            offsets = [offset for offset in self._keys if start <= offset < end]
        for key in {self._keys.pop(offset) for offset in offsets if offset in self._keys}:
            self._look_at(key)

    # What comes next.

    def next_for(self, consumer: int) -> int | None:
        keyed, free = self._next_keyed(consumer), self._next_free()
        if keyed is None or free is None:
            return free if keyed is None else keyed
        return min(keyed, free)

    def take(self, consumer: int, limit: int, count: int) -> Range:
        """Offsets that follow each other for a consumer, from `next_for` on: they are with it now. All of
        them have come back with the same past, or are new."""
        start = self.next_for(consumer)
        piece = self._returned.at(start) if start is not None else None
        assert start is not None and piece is not None
        end, limit = start, min(limit, start + count, piece[1])
        while end < limit:
            if self._next_keyed(consumer) == end:
                _, key = heapq.heappop(self._ready[consumer])
                self._listed.pop(key, None)
                heapq.heappop(self._queues[key])
                self._holders.setdefault(key, _Holder(consumer)).count += 1
                end += 1
                self._look_at(key)
            elif self._next_free() == end:
                _, free_end = heapq.heappop(self._free)
                stop = min(limit, free_end)
                self._give_free(stop, free_end)
                end = stop
            else:
                break
        return start, end

    def _next_keyed(self, consumer: int) -> int | None:
        ready = self._ready.get(consumer, [])
        while ready:
            offset, key = ready[0]
            if self._head(key) == offset and self._is_fit(offset, key, consumer):
                return offset
            heapq.heappop(ready)
            self._listed.pop(key, None)
        return None

    def _next_free(self) -> int | None:
        while self._free:
            start, end = self._free[0]
            piece = self._returned.first_from(start)
            if piece is not None and piece[0] < end:
                if piece[0] > start:
                    heapq.heapreplace(self._free, (piece[0], end))
                return self._free[0][0]
            heapq.heappop(self._free)
        return None

    def _is_fit(self, offset: int, key: int, consumer: int) -> bool:
        holder = self._holders.get(key)
        return (holder is None or holder.consumer == consumer) and self._returned.at(offset) is not None

    def _head(self, key: int) -> int | None:
        """The lowest of a key's offsets that are with nobody."""
        queue = self._queues.get(key)
        while queue and queue[0] not in self._keys:
            heapq.heappop(queue)
        if queue:
            return queue[0]
        self._queues.pop(key, None)
        return None

    def _look_at(self, key: int) -> None:
        """Something has changed of a key: its next record may be fit to be handed out now."""
        head, consumer = self._head(key), self._ranges.owner(key)
        if head is None or not consumer or self._listed.get(key) == head:
            return
        if self._is_fit(head, key, consumer):
            heapq.heappush(self._ready.setdefault(consumer, []), (head, key))
            self._listed[key] = head

    def _give_free(self, start: int, end: int) -> None:
        if start < end:
            heapq.heappush(self._free, (start, end))

    def validate(self, handed: Iterable[tuple[int, int, int]]) -> None:
        """Raises unless each key is with one consumer, by what was handed out to whom."""
        counts: dict[tuple[int, int], int] = {}
        for start, end, consumer in handed:
            for offset in range(start, end):
                key = self._keys.get(offset)
                if key is not None:
                    counts[key, consumer] = counts.get((key, consumer), 0) + 1
        known = {(key, holder.consumer): holder.count for key, holder in self._holders.items()}
        invariant(counts == known, f"by key and consumer {counts} are out, and {known} is counted")
