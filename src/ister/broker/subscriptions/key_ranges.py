"""Which consumer of a key-shared subscription has which keys: ranges of their hashes, shared out evenly.

Who comes takes its share from those that have most, and what somebody leaves goes to those that have least:
no other key changes hands. With more consumers than ranges some have none, and wait.
"""

from __future__ import annotations

import zlib
from typing import Final

from ister.errors import invariant

RANGES: Final = 1024
_SHIFT: Final = 32 - RANGES.bit_length() + 1


def hash_of(key: bytes) -> int:
    """32 bits. Keys that have the same are treated as one: that costs speed, and nothing else."""
    return zlib.crc32(key)


class KeyRanges:
    def __init__(self) -> None:
        self._owners: list[int] = [0] * RANGES
        self._had: dict[int, list[int]] = {}

    def __contains__(self, consumer: int) -> bool:
        return consumer in self._had

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._had)

    def owner(self, key_hash: int) -> int:
        """0 while there are no consumers."""
        return self._owners[key_hash >> _SHIFT]

    def share_of(self, consumer: int) -> int:
        return len(self._had.get(consumer, ()))

    def join(self, consumer: int) -> None:
        invariant(consumer not in self._had, f"consumer {consumer} has its share already")
        if not self._had:
            self._had[consumer] = list(range(RANGES))
            self._owners = [consumer] * RANGES
            return
        taken = self._had[consumer] = []
        for _ in range(RANGES // len(self._had)):
            richest = max(self._had.values(), key=len)
            taken.append(richest.pop())
            self._owners[taken[-1]] = consumer

    def leave(self, consumer: int) -> None:
        left = self._had.pop(consumer)
        for one in left:
            self._owners[one] = poorest = min(self._had, key=self.share_of, default=0)
            if poorest:
                self._had[poorest].append(one)
