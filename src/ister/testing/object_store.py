"""The simulated object store: in memory, shared by all nodes, untouched by their crashes.

It implements `ister.io.object_store.ObjectStore`. Rules in `faults`, by object name, for `put`, `get`,
`size`, `names` and `delete`: a plain failure (`StorageFailed`), a timeout that leaves open whether the
call took effect (`applied=True`: it did; raises `RequestTimeout`), or a delay (throttling).
"""

from __future__ import annotations

import asyncio
from random import Random

from ister.errors import ObjectExists, ObjectNotFound, RequestTimeout, StorageFailed
from ister.testing.faults import Faults, Rule, Trace


class MemoryStore:
    """Objects in a dictionary. A call takes effect at one moment, somewhere within its virtual time."""

    def __init__(
        self, random: Random, *, latency: tuple[float, float] = (0.002, 0.03), trace: Trace | None = None
    ) -> None:
        self.latency = latency
        self.faults = Faults(random)
        self._random = random
        self._trace = trace
        self._objects: dict[str, bytes] = {}

    # For checkers, from outside.

    def peek(self, name: str) -> bytes:
        """The object as it is stored, with no delay and no fault; raises `ObjectNotFound`."""
        return self._find(name)

    def stored(self) -> list[str]:
        """All names, with no delay and no fault."""
        return sorted(self._objects)

    def rot(self, name: str, position: int, bit: int = 0) -> None:
        """Flip a stored bit."""
        flipped = bytearray(self._find(name))
        flipped[position] ^= 1 << bit
        self._objects[name] = bytes(flipped)

    # The object store seam.

    async def put_if_absent(self, name: str, data: bytes) -> None:
        _check_name(name)
        rule = await self._arrive("put", name)
        existed = name in self._objects
        if not existed:
            self._objects[name] = bytes(data)
            self._note(f"put {name} {len(data)}")
        await self._leave("put", name, rule)
        if existed:
            raise ObjectExists(f"object {name} is already in the simulated store")

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        _check_name(name)
        rule = await self._arrive("get", name)
        data = self._find(name)[start : None if length is None else start + length]
        await self._leave("get", name, rule)
        return data

    async def size(self, name: str) -> int:
        _check_name(name)
        rule = await self._arrive("size", name)
        size = len(self._find(name))
        await self._leave("size", name, rule)
        return size

    async def names(self, prefix: str) -> list[str]:
        rule = await self._arrive("names", prefix)
        names = sorted(name for name in self._objects if name.startswith(prefix))
        await self._leave("names", prefix, rule)
        return names

    async def delete(self, name: str) -> None:
        _check_name(name)
        rule = await self._arrive("delete", name)
        if self._objects.pop(name, None) is not None:
            self._note(f"delete {name}")
        await self._leave("delete", name, rule)

    async def _arrive(self, operation: str, name: str) -> Rule | None:
        """The way there. A rule that is returned has let the call through, to fail on the way back."""
        await asyncio.sleep(self._random.uniform(*self.latency) + self.faults.delay(operation, name))
        rule = self.faults.strike(operation, name)
        if rule is not None and not rule.applied:
            raise StorageFailed(f"{operation} of {name} failed in the simulated store (error {rule.error})")
        return rule

    async def _leave(self, operation: str, name: str, rule: Rule | None) -> None:
        await asyncio.sleep(self._random.uniform(*self.latency) / 4)
        if rule is not None:
            raise RequestTimeout(f"{operation} of {name} timed out in the simulated store")

    def _find(self, name: str) -> bytes:
        try:
            return self._objects[name]
        except KeyError:
            raise ObjectNotFound(f"object {name} is not in the simulated store") from None

    def _note(self, what: str) -> None:
        if self._trace is not None:
            self._trace.note(f"store {what}")


def _check_name(name: str) -> None:
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no object name")
