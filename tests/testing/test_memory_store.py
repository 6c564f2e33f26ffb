"""The simulated object store: the seam's contract, and its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ister.errors import ObjectExists, ObjectNotFound, RequestTimeout, StorageFailed
from ister.testing import MemoryStore, VirtualLoop, simulate


def in_store(check: Callable[[MemoryStore], Awaitable[None]], seed: int = 1) -> None:
    async def main(loop: VirtualLoop) -> None:
        await check(MemoryStore(loop.fork("store"), trace=loop.trace))

    simulate(main, seed)


def test_an_object_is_written_once_and_read_by_ranges() -> None:
    async def check(store: MemoryStore) -> None:
        await store.put_if_absent("a/b", b"0123456789")
        with pytest.raises(ObjectExists, match="a/b"):
            await store.put_if_absent("a/b", b"other")
        assert await store.get("a/b") == b"0123456789"
        assert await store.get("a/b", 3, 4) == b"3456"
        assert await store.get("a/b", 8, 100) == b"89"
        assert await store.size("a/b") == 10
        await store.put_if_absent("a/a", b"")
        await store.put_if_absent("c", b"")
        assert await store.names("a/") == ["a/a", "a/b"]
        await store.delete("a/b")
        await store.delete("a/b")
        with pytest.raises(ObjectNotFound):
            await store.get("a/b")
        with pytest.raises(ObjectNotFound):
            await store.size("a/b")
        with pytest.raises(ValueError, match="no object name"):
            await store.put_if_absent("../x", b"")

    in_store(check)


def test_one_of_two_racers_creates_the_object_and_either_may_win() -> None:
    winners: set[bytes] = set()

    async def check(store: MemoryStore) -> None:
        outcomes = await asyncio.gather(
            store.put_if_absent("x", b"first"), store.put_if_absent("x", b"second"), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "ObjectExists"]
        winners.add(store.peek("x"))

    for seed in range(20):
        in_store(check, seed)
    assert winners == {b"first", b"second"}


def test_a_put_that_timed_out_may_have_been_applied() -> None:
    async def check(store: MemoryStore) -> None:
        store.faults.add("put", count=1, applied=True)
        with pytest.raises(RequestTimeout):
            await store.put_if_absent("x", b"data")
        assert store.peek("x") == b"data"
        with pytest.raises(ObjectExists):
            await store.put_if_absent("x", b"data")

    in_store(check)


def test_a_put_that_failed_plainly_was_not_applied() -> None:
    async def check(store: MemoryStore) -> None:
        store.faults.add("put", prefix="x", count=1)
        await store.put_if_absent("y", b"other")
        with pytest.raises(StorageFailed):
            await store.put_if_absent("x", b"data")
        assert store.stored() == ["y"]
        await store.put_if_absent("x", b"data")

    in_store(check)


def test_throttling_delays_and_rot_changes_what_is_read() -> None:
    async def check(store: MemoryStore) -> None:
        await store.put_if_absent("x", b"\0\0")
        store.rot("x", 1, bit=7)
        store.faults.add("get", delay=30.0)
        before = asyncio.get_running_loop().time()
        assert await store.get("x") == b"\0\x80"
        assert asyncio.get_running_loop().time() - before > 30

    in_store(check)
