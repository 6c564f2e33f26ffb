"""The object store seam: immutable objects by name, in a place outside the brokers.

Fault model, which the simulated store (`ister.testing.object_store`) plays out in full:
- Any call may fail, and a store that is down fails them all: `StoreUnavailable`, `RequestTimeout`.
- A `put_if_absent` that failed in any way, that was cancelled, or whose process died, may be applied all the
  same, at once or later. So a name is for one content only, and who finds it taken verifies what is there
  (E2).
- `ObjectExists` may be told while the other one's upload is still under way, and that one may yet fail: who
  is told so and finds nothing puts again.
- Of an upload that broke off nothing can be read under its name. Its parts may take space in the store until
  `sweep_unfinished`.
- What `put_if_absent` returned from is durable, and everybody reads it from then on.
- Stored bytes may rot; `get` then returns other bytes without an error.

Nothing holds an object in memory: it comes in as pieces and is read by ranges. Names have `/` between their
parts, and no part starts with a dot. Where one object is named `a/b`, none is named `a`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Protocol

PIECE_BYTES = 1 << 20
"""So much is read at once where a whole object is gone through: enough to keep a disk and a line busy."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `objects` is in the order of names; the next page is the one after `next_after`."""

    objects: tuple[ObjectInfo, ...]
    next_after: str | None
    """The last name looked at, or None where the list has ended."""


class ObjectStore(Protocol):
    """One node's way to the store. Uploads that it leaves unfinished bear its name, as owner."""

    @property
    def location(self) -> str:
        """For people: where this store is. Never with a secret in it."""
        ...

    async def put_if_absent(self, name: str, data: bytes | AsyncIterable[bytes]) -> None:
        """Create the object, whole and durable, or raise `ObjectExists` and change nothing.

        Pieces are taken one by one, as the store gets rid of them. An error of the iterator ends the upload
        and is raised.
        """
        ...

    async def get(self, name: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from the position `start`; fewer only at the end. Raises `ObjectNotFound`."""
        ...

    async def head(self, name: str) -> ObjectInfo:
        """What is known of it; raises `ObjectNotFound`."""
        ...

    async def list_page(self, prefix: str, after: str | None, limit: int) -> Page:
        """Up to `limit` objects whose names start with `prefix`, from the first name beyond `after`."""
        ...

    async def delete(self, name: str) -> None:
        """Not an error if it is not there. A put of this name that is still under way is not undone."""
        ...

    async def sweep_unfinished(self, older_than_s: float = 0.0) -> int:
        """Remove what uploads of this owner have left behind, but for those under way here; says how many.

        Where several that live at once bear one owner's name, only `older_than_s` tells theirs from what was
        left behind: what nobody has written to for so long, by the clocks of this machine and of the store.
        Should it be wrong, an upload fails, and is begun anew."""
        ...

    def close(self) -> None:
        """Nothing is asked of it any more."""
        ...


async def read_pieces(
    store: ObjectStore, name: str, start: int, end: int, *, piece_bytes: int = PIECE_BYTES
) -> AsyncIterator[bytes]:
    """An object from one position up to another, in pieces. It ends sooner only where the object does."""
    while start < end:
        piece = await store.get(name, start, min(piece_bytes, end - start))
        if not piece:
            return
        yield piece
        start += len(piece)


async def list_all(store: ObjectStore, prefix: str, *, page: int = 1_000) -> AsyncIterator[ObjectInfo]:
    """All objects whose names start with `prefix`, in order; those made meanwhile may be missed."""
    after: str | None = None
    while True:
        found = await store.list_page(prefix, after, page)
        for entry in found.objects:
            yield entry
        if found.next_after is None:
            return
        after = found.next_after


def check_name(name: str) -> None:
    """Refuse what no store could hold, or what a store keeps for itself (a part that starts with a dot)."""
    if any(not part or part.startswith(".") or "\0" in part for part in name.split("/")):
        raise ValueError(f"{name!r} is no object name")


async def in_pieces(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """What is put, however it came."""
    if isinstance(data, bytes):
        yield data
    else:
        async for piece in data:
            yield piece
