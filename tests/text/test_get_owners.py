"""Owners of the GET cursor come and go: records may repeat, and none is ever skipped (S1, S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ister.broker.text.get_service import Taken
from ister.errors import IsterError, NotLeader
from ister.metadata.commands import FlushCursors
from tests.text.fakes import FakeCluster, member
from tests.text.playing import drain, numbers, play, settle, stored, took


def test_what_a_node_took_with_it_is_handed_out_again_when_it_is_gone() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        await took(cluster.nodes[3])
        cluster.kill(3)
        await asyncio.sleep(3)
        assert await drain(cluster.nodes[2]) == [b"1", b"2"]

    play(script, records=3)


def test_s5_after_the_owner_s_crash_records_repeat_and_none_is_skipped() -> None:
    async def script(cluster: FakeCluster) -> None:
        owner = cluster.nodes[1]
        assert [await owner.get("t") for _ in range(10)] == numbers(0, 10)
        await settle(cluster)
        assert stored(cluster, 2) == (member(1), 1, 10)
        assert [await owner.get("t") for _ in range(5)] == numbers(10, 15)
        cluster.kill(1)
        after = await drain(cluster.nodes[2])
        first = int(after[0])
        assert 10 <= first <= 15, "only what was not stored repeats"
        assert after == numbers(first, 20)
        await settle(cluster)
        assert stored(cluster, 3) == (member(2), 2, 20)

    play(script, records=20)


def test_s1_an_owner_that_starts_again_claims_anew() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert [await cluster.nodes[1].get("t") for _ in range(3)] == numbers(0, 3)
        await settle(cluster)
        cluster.kill(1)
        await cluster.start(1)
        await settle(cluster)
        assert await cluster.nodes[2].get("t") == b"3", "asked of the owner, which does not know it is one"
        await settle(cluster)
        assert stored(cluster) == (member(1), 2, 4)

    play(script, records=5)


def test_a_clean_stop_stores_the_cursor() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert len(await drain(cluster.nodes[1])) == 7
        await cluster.stop(1)
        assert await drain(cluster.nodes[2]) == []

    play(script, records=7)


def test_s1_an_owner_that_was_cut_off_is_fenced_and_its_late_flush_refused() -> None:
    async def script(cluster: FakeCluster) -> None:
        old = cluster.nodes[1]
        assert await old.get("t") == b"0"
        await settle(cluster)
        cluster.partition(1)
        assert [await old.get("t") for _ in range(3)] == numbers(1, 4), "it can't know yet"
        assert await drain(cluster.nodes[2]) == numbers(1, 10), "the next owner repeats, and skips nothing"
        await asyncio.sleep(6)
        with pytest.raises(NotLeader, match="could not be stored"):
            await old.get("t")
        cluster.heal()
        await settle(cluster, 5)
        flushes = [row for c in cluster.log if isinstance(c, FlushCursors) for row in c.rows]
        assert any(epoch == 1 and offset > 1 for _, epoch, offset in flushes), "the late flush was made"
        assert {stored(cluster, number) for number in cluster.nodes} == {(member(2), 2, 10)}
        assert await old.get("t") is None, "asked of the new owner"

    play(script, records=10)


def test_an_owner_that_learns_of_its_loss_from_a_snapshot_stops_too() -> None:
    async def script(cluster: FakeCluster) -> None:
        old = cluster.nodes[1]
        assert await old.get("t") == b"0"
        await settle(cluster)
        cluster.partition(1)
        old.hold_reads(hold=True)
        reading = asyncio.create_task(old.get("t"))
        assert await cluster.nodes[2].get("t") == b"1"
        old.metadata.install(cluster.nodes[2].metadata.state.to_bytes())
        cluster.heal()
        old.hold_reads(hold=False)
        assert await reading == b"2", "it was about to hand out 1, and asks the new owner instead"

    play(script, records=5)


def test_what_is_said_about_an_older_epoch_s_records_changes_nothing() -> None:
    async def script(cluster: FakeCluster) -> None:
        assert await cluster.nodes[1].get("t") == b"0"
        await settle(cluster)
        old = await took(cluster.nodes[2])
        cluster.kill(1)
        await cluster.start(1)
        await settle(cluster)
        again = await took(cluster.nodes[3])
        assert (old.value, again.value) == (b"1", b"1")
        cluster.nodes[2].gets.returned(old)
        await settle(cluster)
        assert await drain(cluster.nodes[2]) == [b"2"], "the one that is handed out is not given to a third"

    play(script, records=3)


def test_an_owner_that_is_slow_to_see_its_loss_stops_when_it_does() -> None:
    async def script(cluster: FakeCluster) -> None:
        old = cluster.nodes[1]
        held = await took(old)
        cluster.partition(1)
        assert await drain(cluster.nodes[2]) == numbers(0, 5)
        cluster.heal()
        await settle(cluster)
        old.gets.done(held)
        old.gets.returned(held)
        assert await old.get("t") is None
        await settle(cluster)
        assert stored(cluster)[:2] == (member(2), 2)

    play(script, records=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_s5_through_crashes_and_cuts_every_record_is_delivered(seed: int) -> None:
    """Nothing is skipped, whoever dies; what repeats was not stored, or not settled."""

    async def script(cluster: FakeCluster) -> None:
        rng = cluster.random
        delivered: list[int] = []
        stop = asyncio.Event()

        async def client(number: int) -> None:
            while not stop.is_set():
                node = cluster.nodes.get(number)
                await asyncio.sleep(rng.uniform(0, 0.05))
                if node is None or number not in cluster.nodes:
                    continue
                try:
                    taken = await cluster.processes[number].start(node.take("t"))
                except (IsterError, asyncio.CancelledError):
                    continue
                if taken is None or cluster.nodes.get(number) is not node:
                    continue
                if rng.random() < 0.1:
                    cluster.processes[number].start(_call(node.gets.returned, taken))
                elif rng.random() < 0.95:  # else nobody says anything
                    delivered.append(int(taken.value))
                    cluster.processes[number].start(_call(node.gets.done, taken))

        clients = [asyncio.create_task(client(1 + number % 3)) for number in range(6)]
        for _ in range(8):
            await asyncio.sleep(rng.uniform(0.2, 2.5))
            victim = rng.choice((1, 2, 3))
            if rng.random() < 0.5:
                cluster.kill(victim)
                await asyncio.sleep(rng.uniform(0, 3))
                await cluster.start(victim)
            else:
                cluster.partition(victim)
                await asyncio.sleep(rng.uniform(0, 3))
                cluster.heal()
        for _ in range(240):
            if set(delivered) == set(range(200)) and stored(cluster)[2] == 200:
                break
            await asyncio.sleep(0.5)
        stop.set()
        await asyncio.wait(clients)
        assert (set(delivered), stored(cluster)[2]) == (set(range(200)), 200)

    play(script, records=200, seed=seed)


async def _call(settles: Callable[[Taken], None], taken: Taken) -> None:
    settles(taken)
