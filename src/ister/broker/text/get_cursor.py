"""One topic's shared GET cursor, as bookkeeping without I/O: what was handed out, given back, done.

Every offset below `next_offset` is exactly one of: handed out, given back (to be handed out again first,
lowest offset first), done, or gone from the log. `acknowledged` is the lowest that is neither done nor gone:
what is stored of the cursor (S4), so that a crash repeats records and never skips one (S5).

An offset may be handed out several times. That it is done may be said by any of those attempts, however late:
its record has reached a client then. Only the latest attempt can give it back.
"""

from __future__ import annotations

import heapq

from ister.errors import invariant


class GetCursor:
    def __init__(self, epoch: int, offset: int) -> None:
        self.epoch = epoch
        self.acknowledged = offset
        self.next_offset = offset
        self._handed: dict[int, int] = {}
        """Attempt by offset."""
        self._returned: dict[int, int] = {}
        self._lowest: list[int] = []
        """A heap of what was given back; those done since are passed over."""
        self._done: set[int] = set()
        self._gaps: dict[int, int] = {}

    @property
    def window(self) -> int:
        """How many offsets lie between the first that is not done and the next to hand out."""
        return self.next_offset - self.acknowledged

    @property
    def remembered(self) -> int:
        """How many of these have to be remembered: one by one, but for those that are gone."""
        return self.window - sum(end - start for start, end in self._gaps.items())

    @property
    def candidate(self) -> int:
        """The offset to hand out next."""
        while self._lowest and self._lowest[0] not in self._returned:
            heapq.heappop(self._lowest)
        return self._lowest[0] if self._lowest else self.next_offset

    @property
    def is_repeat(self) -> bool:
        """Whether the candidate was handed out before."""
        return self.candidate != self.next_offset

    def hand_out(self) -> tuple[int, int]:
        """Give the candidate away; returns its offset and which attempt this is, from 1."""
        offset = self.candidate
        attempt = self._returned.pop(offset, 0) + 1
        if offset == self.next_offset:
            self.next_offset += 1
        invariant(offset not in self._handed, f"offset {offset} is handed out already")
        self._handed[offset] = attempt
        return offset, attempt

    def attempt_of(self, offset: int) -> int:
        """The attempt in which it is handed out; 0 if it is not."""
        return self._handed.get(offset, 0)

    def done(self, offset: int) -> bool:
        """Its record has reached a client. False if that changes nothing."""
        if self._handed.pop(offset, 0) or self._returned.pop(offset, 0):
            self._done.add(offset)
            self._advance()
            return True
        return False

    def give_back(self, offset: int, attempt: int) -> bool:
        if self._handed.get(offset) != attempt:
            return False
        del self._handed[offset]
        self._returned[offset] = attempt
        heapq.heappush(self._lowest, offset)
        return True

    def pass_over(self, found: int) -> int:
        """The candidate is not in the log, `found` is the next that is. Returns how many offsets are gone."""
        offset = self.candidate
        invariant(found > offset, f"offset {found} is not behind {offset}")
        if offset != self.next_offset:
            self.done(offset)
            return 1
        self._gaps[offset] = found
        self.next_offset = found
        self._advance()
        return found - offset

    def lose(self, start: int, end: int) -> int:
        """Offsets from `start` to before `end` were given up (F6). Returns how many of them nobody is to get
        any more; those that are handed out now are settled as any other."""
        given_back = [offset for offset in self._returned if start <= offset < end]
        for offset in given_back:
            self.done(offset)
        if not start <= self.next_offset < end:
            return len(given_back)
        passed = end - self.next_offset
        self._gaps[self.next_offset] = end
        self.next_offset = end
        self._advance()
        return passed + len(given_back)

    def trim(self, start: int) -> int:
        """Offsets below `start` are gone. Returns how many of them nobody had been given."""
        if start <= self.acknowledged:
            return 0
        given_back = [offset for offset in self._returned if offset < start]
        lost = max(0, start - self.next_offset) + len(given_back)
        self._handed = {offset: attempt for offset, attempt in self._handed.items() if offset >= start}
        self._returned = {offset: attempt for offset, attempt in self._returned.items() if offset >= start}
        self._done = {offset for offset in self._done if offset >= start}
        self._gaps = {offset: end for offset, end in self._gaps.items() if end > start}
        # A gap that the new start lies in is gone up to its end.
        inside = [offset for offset in self._gaps if offset < start]
        for offset in inside:
            start = max(start, self._gaps.pop(offset))
        self.acknowledged = start
        self.next_offset = max(self.next_offset, start)
        self._advance()
        return lost

    def _advance(self) -> None:
        while True:
            if self.acknowledged in self._done:
                self._done.remove(self.acknowledged)
                self.acknowledged += 1
            elif self.acknowledged in self._gaps:
                self.acknowledged = self._gaps.pop(self.acknowledged)
            else:
                return
