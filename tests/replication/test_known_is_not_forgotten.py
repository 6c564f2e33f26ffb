"""A follower whose write failed knows what it has synced; it must not forget that while it lives."""

from __future__ import annotations

import asyncio
import errno
from unittest import mock

from ister.protocol.replication import Fence, FenceAnswer
from ister.replication.copies.copies import Copies
from tests.replicas_sim.small import World, play


def test_a_follower_that_could_not_be_opened_again_still_knows_what_it_has_synced() -> None:
    """Its disk is away for two seconds: the write is torn, and the log cannot be opened again either. The
    object that knew what was synced was dropped with the attempt; the torn tail then counts as a doubt, and
    with the leader's disk lost the topic is never writable again, though its follower has all."""

    async def script(world: World) -> int:
        leader, (follower,) = await world.make_topic()
        async with world.at(follower) as log:
            await world.send(log, "t", b"1")
            disk = world.nodes[follower].disk
            disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO)
            disk.faults.add("open", suffix=".log", prefix="segments/", error=errno.EIO)
            with mock.patch.object(disk._random, "randrange", lambda count: count // 2):  # of its bytes
                sending = asyncio.ensure_future(world.send(log, "t", b"2"))
                await asyncio.sleep(2.0)
            disk.faults.clear()
            world.lose_disk(leader)
            await world.nodes[leader].start()
            try:
                async with asyncio.timeout(120):
                    await world.until(lambda: world.segment(seen_by=follower).segment > 1)
            except TimeoutError:
                pass
            sending.cancel()
            return world.segment(seen_by=follower).segment

    assert play(script, replicas=2) > 1, "120 s later the topic is still not writable"


def test_a_follower_that_is_sent_something_after_a_recovery_began_is_not_in_doubt() -> None:
    """As above, without a second fault: the leader's last message comes when the recovery is known."""

    async def script(world: World) -> tuple[int, bool]:
        leader, (a, b) = await world.make_topic()
        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            disk = world.nodes[a].disk
            disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO)
            with mock.patch.object(disk._random, "randrange", lambda count: count // 2):
                await world.send(log, "t", b"2")
                await asyncio.sleep(0.1)
            disk.faults.clear()
        # The leader hears of nothing but what `a` says to its frames: it is cut off from the other.
        topic = world.topic(leader)
        assert topic.led.leading is not None
        ask = topic.led.leading
        copies = world.nodes[a].running.replication.copies
        uid = world.segment(seen_by=a).uid
        follower = copies.followers.get(uid)
        assert follower is not None and follower.may_begin_again
        began: list[int] = []
        real = Copies.fence

        async def fence(self: Copies, request: Fence) -> FenceAnswer:
            if self is copies and not began:
                began.append(1)
                ask._ask(copies._member, 77)  # a reader at the leader asks for the end
                await asyncio.sleep(0.2)
                world.nodes[leader].kill()
            return await real(self, request)

        with mock.patch.object(Copies, "fence", fence):
            world.cut(leader, b)
            broker = world.nodes[b].running
            broker.replication.recoveries.begin(world.topic(b).state)  # it does not hear the leader any more
            try:
                async with asyncio.timeout(120):
                    await world.until(lambda: world.segment(seen_by=b).segment > 1)
            except TimeoutError:
                pass
        return world.segment(seen_by=b).segment, bool(began)

    segment, began = play(script, replicas=3)
    assert began
    assert segment > 1, "120 s later the topic is still not writable, and two of three replicas are there"
