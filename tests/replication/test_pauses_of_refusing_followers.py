"""A follower that refuses is asked again after pauses that grow, as long as it takes nothing."""

from __future__ import annotations

import asyncio
import errno
from typing import Any
from unittest import mock

from ister.replication.stream.leader import Leading
from tests.replicas_sim.small import World, play


def test_the_pauses_grow_while_the_disk_of_a_follower_is_full() -> None:
    """Asked where it ends, it says so; that was counted as having taken something. What it lacks, up to a
    window, is sent each second, its log opened anew each second, for as long as its disk is full."""

    async def script(world: World) -> int:
        leader, (follower, _) = await world.make_topic()
        refused: list[float] = []
        real = Leading._refused

        def count(self: Leading, *args: object) -> None:
            refused.append(world.loop.time())
            real(self, *args)  # type: ignore[arg-type]

        async with world.at(leader) as log:
            await world.send(log, "t", b"1")
            disk = world.nodes[follower].disk
            path = world.path(world.segment()) + ".log"
            full_at, write = world.topic(leader).facts.least_open_bytes, disk.write

            def no_room(name: str, image: Any, data: bytes, position: int) -> None:
                if name == path and position + len(data) > full_at:  # what has its place is written
                    raise OSError(errno.ENOSPC, "no space left")
                write(name, image, data, position)

            with mock.patch.object(Leading, "_refused", count), mock.patch.object(disk, "write", no_room):
                await world.send(log, "t", b"2")
                await asyncio.sleep(120)
        return len(refused)

    times = play(script, replica_lost_ms=600_000)
    # After 1, 2, 4, 8, 16, and then each 30 s.
    assert times < 12, f"it was sent what it has no room for {times} times in 120 s"
