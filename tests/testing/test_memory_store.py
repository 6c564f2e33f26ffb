"""What goes wrong in the simulated object store. Its promises: tests/io/test_object_store_contract.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ister.errors import ObjectExists, ObjectNotFound, RequestTimeout, StoreUnavailable
from ister.testing import DeadProcess, MemoryStore, SimProcess, VirtualLoop, simulate
from ister.testing.object_store import LOST_RACE, THROTTLED, TIMED_OUT


def in_store(check: Callable[[MemoryStore], Awaitable[None]], seed: int = 1) -> None:
    async def main(loop: VirtualLoop) -> None:
        await check(MemoryStore(loop.fork("store"), trace=loop.trace))

    simulate(main, seed)


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


def test_either_of_two_racers_may_win() -> None:
    winners: set[bytes] = set()

    async def check(store: MemoryStore) -> None:
        one, two = store.client("one"), store.client("two")
        await asyncio.gather(
            one.put_if_absent("x", b"first"), two.put_if_absent("x", b"second"), return_exceptions=True
        )
        winners.add(store.peek("x"))

    for seed in range(20):
        in_store(check, seed)
    assert winners == {b"first", b"second"}


def test_a_put_that_timed_out_may_have_been_applied() -> None:
    async def check(store: MemoryStore) -> None:
        client = store.client("one")
        store.faults.add("put", count=1, applied=True)
        with pytest.raises(RequestTimeout):
            await client.put_if_absent("x", b"data")
        assert store.peek("x") == b"data"
        with pytest.raises(ObjectExists):
            await client.put_if_absent("x", b"data")
        store.faults.add("put", count=1, error=TIMED_OUT)
        with pytest.raises(RequestTimeout):
            await client.put_if_absent("y", b"data")
        assert store.stored() == ["x"]

    in_store(check)


def test_a_store_that_fails_or_throttles_says_so_and_has_done_nothing() -> None:
    async def check(store: MemoryStore) -> None:
        client = store.client("one")
        store.faults.add("put", prefix="x", count=1)
        await client.put_if_absent("y", b"other")
        with pytest.raises(StoreUnavailable, match="500"):
            await client.put_if_absent("x", b"data")
        store.faults.add("put", prefix="x", count=1, error=THROTTLED)
        with pytest.raises(StoreUnavailable, match="503"):
            await client.put_if_absent("x", b"data")
        assert store.stored() == ["y"]
        await client.put_if_absent("x", b"data")
        for operation, call in (
            ("get", lambda: client.get("x", 0, 1)),
            ("head", lambda: client.head("x")),
            ("list", lambda: client.list_page("", None, 9)),
            ("delete", lambda: client.delete("x")),
            ("sweep", lambda: client.sweep_unfinished()),
        ):
            store.faults.add(operation, count=1)
            with pytest.raises(StoreUnavailable, match=operation):
                await call()
        assert store.stored() == ["x", "y"]

    in_store(check)


def test_a_race_may_be_lost_to_one_that_makes_nothing() -> None:
    async def check(store: MemoryStore) -> None:
        client = store.client("one")
        store.faults.add("put", count=1, error=LOST_RACE)
        with pytest.raises(ObjectExists):
            await client.put_if_absent("x", b"data")
        with pytest.raises(ObjectNotFound):
            await client.head("x")
        await client.put_if_absent("x", b"data")

    in_store(check)


def test_a_partial_upload_stays_until_it_is_swept() -> None:
    async def check(store: MemoryStore) -> None:
        client = store.client("one")
        store.faults.add("piece", after=2, count=1)
        with pytest.raises(StoreUnavailable, match="piece"):
            await client.put_if_absent("x", pieces(b"0", b"1", b"2", b"3"))
        assert store.stored() == []
        assert store.unfinished() == [("one", "x")]
        assert await store.client("two").sweep_unfinished() == 0
        assert await client.sweep_unfinished() == 1
        assert store.unfinished() == []

    in_store(check)


def test_delays_and_rot_reach_the_reader() -> None:
    async def check(store: MemoryStore) -> None:
        client = store.client("one")
        await client.put_if_absent("x", b"\0\0")
        store.rot("x", 1, bit=7)
        store.faults.add("get", delay=30.0)
        before = asyncio.get_running_loop().time()
        assert await client.get("x", 0, 2) == b"\0\x80"
        assert asyncio.get_running_loop().time() - before > 30

    in_store(check)


def test_a_put_of_a_dead_node_may_land_after_somebody_has_looked() -> None:
    """What the sweeper's AbandonObject is for (E3)."""
    landed: list[bool] = []

    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(loop.fork("store"), trace=loop.trace)
        client, process = store.client("one"), SimProcess(loop, "one")
        store.faults.add("put", count=1, delay=10.0)
        process.start(client.put_if_absent("x", b"data"))
        await asyncio.sleep(1)
        client.kill()
        process.kill()
        with pytest.raises(ObjectNotFound):
            await store.client("two").head("x")
        await asyncio.sleep(20)
        landed.append(store.stored() == ["x"])

    for seed in range(20):
        simulate(main, seed)
    assert set(landed) == {True, False}


def test_a_dead_node_asks_nothing_and_leaves_its_upload_behind() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = MemoryStore(loop.fork("store"), trace=loop.trace)
        client = store.client("one")
        store.faults.add("put", delay=10.0)
        upload = loop.create_task(client.put_if_absent("x", pieces(b"0")))
        await asyncio.sleep(1)
        client.kill()
        with pytest.raises(DeadProcess):
            await upload
        with pytest.raises(DeadProcess):
            await client.head("x")
        with pytest.raises(DeadProcess):
            await client.put_if_absent("y", b"")
        left = store.unfinished()
        assert await store.client("one").sweep_unfinished() == len(left)
        assert store.unfinished() == []

    for seed in range(10):
        simulate(main, seed)
