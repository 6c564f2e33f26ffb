"""What lay unread in a connection that broke is read after the next one has begun: it must not take over."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from unittest import mock

from ister.protocol.codec import decode_header
from ister.protocol.replication import Replicate
from ister.replication.stream.follower import Follower
from tests.replicas_sim.small import World, play


def test_a_late_message_of_an_old_connection_does_not_turn_the_answers_to_it() -> None:
    """A follower that holds as much as it may stops reading: what was sent lies in its socket. The leader has
    given that connection up, and dials again. When the follower reads on, the last message of the old
    connection makes that one the leader's last; what it syncs then is told to nobody."""

    async def script(world: World) -> tuple[int, list[str]]:
        leader, (follower,) = await world.make_topic()
        callers = world.nodes[follower].running.metadata.peers._callers
        real = callers.on_replicate
        steps: list[str] = []
        late: list[tuple[Any, bytes, bytes]] = []

        def received(caller: Any, header: bytes, payload: bytes) -> None:
            if payload and decode_header(Replicate, header).base_offset == 2 and not steps:
                steps.append("unread")
                late.append((caller, header, payload))
                return
            real(caller, header, payload)
            if payload and late:
                steps.append("sent again")
                real(*late.pop())
                steps.append("read late")

        with mock.patch.object(callers, "on_replicate", received):
            async with world.at(leader) as log, world.at(leader, "client-2.y") as other:
                await world.send(log, "t", b"1")
                world.write_in_a_worker(follower)
                world.nodes[follower].disk.slow(2.0)
                sending = [asyncio.ensure_future(world.send(log, "t", b"2"))]
                await asyncio.sleep(0.2)
                sending.append(asyncio.ensure_future(world.send(other, "t", b"3", session="y")))
                await asyncio.sleep(0.3)
                world.network.reset(world.nodes[leader].name, world.nodes[follower].name)
                await asyncio.sleep(1.0)
                world.nodes[follower].disk.faults.clear()
                segment = world.segment(number=1)
                await world.until(lambda: world.end_on(follower, segment) == 3)
                await asyncio.sleep(20)
                for one in sending:
                    one.cancel()
        return world.topic(leader).reads.end_offset, steps

    end, steps = play(script, replicas=2, quorum_timeout_ms=600_000)
    assert steps == ["unread", "sent again", "read late"]
    assert end == 3, f"20 s after both replicas have synced all three, {end} are committed"


def test_nor_where_the_log_was_opened_again_since() -> None:
    """As above, and the write of what came on the old connection has failed: the log was opened again for
    the new one, and what follows it now has never heard of the old."""

    async def script(world: World) -> tuple[int, list[str]]:
        leader, (follower,) = await world.make_topic()
        copies = world.nodes[follower].running.replication.copies
        callers = world.nodes[follower].running.metadata.peers._callers
        real = callers.on_replicate
        steps: list[str] = []
        unread: list[tuple[Follower, Any, bytes, bytes]] = []

        def received(caller: Any, header: bytes, payload: bytes) -> None:
            message = decode_header(Replicate, header)
            if payload and message.base_offset == 2 and not steps:
                steps.append("unread")
                unread.append((copies.followers.get(message.segment_uid), caller, header, payload))
                return
            real(caller, header, payload)
            follower = copies.followers.get(message.segment_uid)
            if payload and unread and follower is not unread[0][0] and caller is not unread[0][1]:
                steps.append("sent again")
                real(*unread.pop()[1:])
                steps.append("read late")

        with mock.patch.object(callers, "on_replicate", received):
            async with world.at(leader) as log, world.at(leader, "client-2.y") as other:
                await world.send(log, "t", b"1")
                world.write_in_a_worker(follower)
                disk = world.nodes[follower].disk
                disk.slow(2.0)
                disk.faults.add("write", suffix=".log", prefix="segments/", error=errno.EIO, count=1)
                sending = [asyncio.ensure_future(world.send(log, "t", b"2"))]
                await asyncio.sleep(0.2)
                sending.append(asyncio.ensure_future(world.send(other, "t", b"3", session="y")))
                await asyncio.sleep(0.3)
                world.network.reset(world.nodes[leader].name, world.nodes[follower].name)
                segment = world.segment(number=1)
                await world.until(lambda: world.end_on(follower, segment) == 3)
                await asyncio.sleep(10)
                for one in sending:
                    one.cancel()
        return world.topic(leader).reads.end_offset, steps

    end, steps = play(script, replicas=2, quorum_timeout_ms=600_000)
    assert steps == ["unread", "sent again", "read late"]
    assert end == 3, f"10 s after both replicas have synced all three, {end} are committed"
