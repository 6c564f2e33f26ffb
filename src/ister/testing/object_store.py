"""The simulated object store: in memory, shared by all nodes, untouched by their crashes.

`client(owner)` is what a node is given: it implements `ister.io.object_store.ObjectStore` and dies with its
node (`kill`). `MemoryStore` itself is the place, and has what a harness and its checkers use.

Each call is a request that travels: it reaches the store a little later, takes effect there at one moment,
and its answer travels back. Who was killed or cancelled meanwhile has sent it all the same: it may take
effect, later than anybody thinks, or be lost on its way. So a put of a dead node can land after its successor
has looked.

Rules in `faults`, by object name (`list`: by prefix), for `put`, `piece`, `get`, `head`, `list`, `delete`,
`sweep`:
- `error=EIO` (plain): an answer like 5xx; nothing was done. `error=EBUSY`: throttled.
- `error=ETIMEDOUT`: lost on its way, and the caller gave up waiting. With `applied=True` it took effect.
- `error=EEXIST`, of a put: it lost a race to somebody whose upload then failed: `ObjectExists`, and nothing
  is there.
- `delay`: that much later. Time for somebody else.
- of a `piece`: a partial upload. What came so far stays, as an unfinished one.
A put of bytes is one request. A put of an iterator is one for each piece, and one that makes the object of
them.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from bisect import bisect_right
from collections.abc import AsyncIterable, Callable
from random import Random
from typing import Any, TypeVar

from ister.errors import IsterError, ObjectExists, ObjectNotFound, RequestTimeout, StoreUnavailable
from ister.io.clock import monotonic
from ister.io.object_store import ObjectInfo, Page, check_name
from ister.testing.faults import DeadProcess, Faults, Rule, Trace

T = TypeVar("T")

THROTTLED, LOST_RACE, TIMED_OUT = errno.EBUSY, errno.EEXIST, errno.ETIMEDOUT


class _Upload:
    """Pieces that came, and are no object yet."""

    def __init__(self, owner: str, name: str) -> None:
        self.owner = owner
        self.name = name
        self.pieces: list[bytes] = []
        self.written_at = monotonic()


class MemoryStore:
    """The objects, and the uploads that are none yet."""

    def __init__(
        self, random: Random, *, latency: tuple[float, float] = (0.002, 0.03), trace: Trace | None = None
    ) -> None:
        self.latency = latency
        self.faults = Faults(random)
        self.overwrites = False
        """Whether this is a store that must not be used: what is there does not stop a put."""
        self._random = random
        self._trace = trace
        self._objects: dict[str, bytes] = {}
        self._uploads: list[_Upload] = []

    def client(self, owner: str) -> MemoryClient:
        """One node's way here, until the node dies. Of one owner only one lives at a time."""
        return MemoryClient(self, owner)

    # For a harness and its checkers, from outside: no delay, no fault.

    def peek(self, name: str) -> bytes:
        """The object as it is stored; raises `ObjectNotFound`."""
        try:
            return self._objects[name]
        except KeyError:
            raise ObjectNotFound(f"object {name} is not in the simulated store") from None

    def stored(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._objects)

    def unfinished(self) -> list[tuple[str, str]]:
        """Owner and name of each upload that is no object: under way, or left behind."""
        return [(upload.owner, upload.name) for upload in self._uploads]

    def rot(self, name: str, position: int, bit: int = 0) -> None:
        """Flip a stored bit."""
        flipped = bytearray(self.peek(name))
        flipped[position] ^= 1 << bit
        self._objects[name] = bytes(flipped)
        self._note(f"rot {name} {position} {bit}")

    def lose(self, name: str) -> None:
        """Somebody else deleted it: a person, a rule of the bucket."""
        self._objects.pop(name, None)
        self._note(f"lose {name}")

    # What happens in the store, at one moment each.

    def put(self, name: str, data: bytes) -> None:
        if name in self._objects and not self.overwrites:
            raise ObjectExists(f"object {name} is already in the simulated store")
        self._objects[name] = data
        self._note(f"put {name} {len(data)}")

    def begin(self, upload: _Upload) -> None:
        self._uploads.append(upload)

    def forget(self, upload: _Upload) -> None:
        if upload in self._uploads:
            self._uploads.remove(upload)

    def add_piece(self, upload: _Upload, piece: bytes) -> None:
        if upload not in self._uploads:
            raise StoreUnavailable(f"the upload of {upload.name} was swept away")
        upload.pieces.append(piece)
        upload.written_at = monotonic()
        self._note(f"piece {upload.name} {len(piece)}")

    def complete(self, upload: _Upload) -> None:
        if upload not in self._uploads:
            raise StoreUnavailable(f"the upload of {upload.name} was swept away")
        self.forget(upload)
        self.put(upload.name, b"".join(upload.pieces))

    def delete(self, name: str) -> None:
        if self._objects.pop(name, None) is not None:
            self._note(f"delete {name}")

    def list_page(self, prefix: str, after: str | None, limit: int) -> Page:
        names = sorted(name for name in self._objects if name.startswith(prefix))
        rest = names[0 if after is None else bisect_right(names, after) :]
        found = tuple(ObjectInfo(name, len(self._objects[name])) for name in rest[:limit])
        return Page(found, found[-1].name if len(rest) > limit else None)

    def sweep(self, owner: str, spared: list[_Upload], older_than_s: float) -> int:
        left = [
            upload
            for upload in self._uploads
            if upload.owner == owner
            and upload not in spared
            and monotonic() - upload.written_at >= older_than_s
        ]
        for upload in left:
            self.forget(upload)
        self._note(f"sweep {owner} {len(left)}")
        return len(left)

    def send(
        self, client: MemoryClient, operation: str, name: str, work: Callable[[], T]
    ) -> asyncio.Future[T]:
        """One request, there and back. The world carries it: it goes on when its sender is dead."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        delay = self._random.uniform(*self.latency) + self.faults.delay(operation, name)
        loop.call_later(
            delay, self._arrive, client, operation, name, work, answer, context=contextvars.Context()
        )
        return answer

    def _arrive(
        self,
        client: MemoryClient,
        operation: str,
        name: str,
        work: Callable[[], T],
        answer: asyncio.Future[T],
    ) -> None:
        if (answer.cancelled() or not client.alive) and self._random.random() < 0.5:
            _answer(answer, None, DeadProcess(f"{operation} of {name}"))
            return  # lost with its sender
        rule = self.faults.strike(operation, name)
        result: Any = None
        failure: Exception | None = None
        if rule is None or rule.applied:
            try:
                result = work()
            except IsterError as error:
                failure = error
        if rule is not None:
            failure = _failure(rule, operation, name)
            self._note(f"fault {operation} {name} {rule.error} {'applied' if rule.applied else 'refused'}")
        delay = self._random.uniform(*self.latency) / 4
        asyncio.get_running_loop().call_later(
            delay, _answer, answer, result, failure, context=contextvars.Context()
        )

    def _note(self, what: str) -> None:
        if self._trace is not None:
            self._trace.note(f"store {what}")


class MemoryClient:
    """Implements `ister.io.object_store.ObjectStore` on a `MemoryStore`."""

    def __init__(self, store: MemoryStore, owner: str) -> None:
        check_name(owner)
        self.alive = True
        self._store = store
        self._owner = owner
        self._under_way: list[_Upload] = []

    def kill(self) -> None:
        """Its node died. What was sent may take effect; whatever it still tries is refused."""
        self.alive = False

    @property
    def location(self) -> str:
        return "memory://simulated"

    async def put_if_absent(self, name: str, data: bytes | AsyncIterable[bytes]) -> None:
        check_name(name)
        if isinstance(data, bytes):
            await self._ask("put", name, lambda: self._store.put(name, data))
        else:
            await self._put_pieces(name, data)

    async def _put_pieces(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        upload = _Upload(self._owner, name)
        self._check_alive("put", name)
        self._store.begin(upload)
        self._under_way.append(upload)
        try:
            async for piece in pieces:
                await self._ask(
                    "piece",
                    name,
                    lambda piece=piece: self._store.add_piece(upload, piece),  # type: ignore[misc]
                )
            await self._ask("put", name, lambda: self._store.complete(upload))
        finally:
            self._under_way.remove(upload)

    async def get(self, name: str, start: int, length: int) -> bytes:
        check_name(name)
        return await self._ask("get", name, lambda: self._store.peek(name)[start : start + length])

    async def head(self, name: str) -> ObjectInfo:
        check_name(name)
        return await self._ask("head", name, lambda: ObjectInfo(name, len(self._store.peek(name))))

    async def list_page(self, prefix: str, after: str | None, limit: int) -> Page:
        return await self._ask("list", prefix, lambda: self._store.list_page(prefix, after, limit))

    async def delete(self, name: str) -> None:
        check_name(name)
        await self._ask("delete", name, lambda: self._store.delete(name))

    async def sweep_unfinished(self, older_than_s: float = 0.0) -> int:
        return await self._ask(
            "sweep", self._owner, lambda: self._store.sweep(self._owner, self._under_way, older_than_s)
        )

    def close(self) -> None:
        """Nothing is kept open."""

    async def _ask(self, operation: str, name: str, work: Callable[[], T]) -> T:
        self._check_alive(operation, name)
        result = await self._store.send(self, operation, name, work)
        self._check_alive(operation, name)
        return result

    def _check_alive(self, operation: str, name: str) -> None:
        if not self.alive:
            raise DeadProcess(f"{operation} of {name}")


def _failure(rule: Rule, operation: str, name: str) -> Exception:
    what = f"{operation} of {name} in the simulated store"
    if rule.applied or rule.error == TIMED_OUT:
        return RequestTimeout(f"{what} timed out")
    if rule.error == LOST_RACE and operation == "put":
        return ObjectExists(f"{what} lost to another one that is under way")
    if rule.error == THROTTLED:
        return StoreUnavailable(f"{what} was refused: too many requests, slow down (503)")
    return StoreUnavailable(f"{what} failed: internal error (500)")


def _answer(answer: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if answer.done():
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(result)
