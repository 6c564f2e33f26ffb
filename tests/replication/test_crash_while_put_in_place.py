"""Two copies of a sealed segment, damaged at different places: together they have all, at any crash."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from unittest import mock

import pytest

from ister.errors import IsterError
from ister.io.disk import Disk
from ister.protocol.peer import node_of
from ister.replication.copies import copying
from tests.replicas_sim.small import World, play

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_other_down", [False, True])
@pytest.mark.parametrize("steps", range(4))
def test_a_crash_while_a_mended_copy_is_put_in_place_costs_nothing(steps: int, is_other_down: bool) -> None:
    """The copy that is replaced has lost its checkpoints by then: after the restart it cannot be opened at
    all, and what it alone has is read by nobody any more."""

    async def script(world: World) -> list[bytes | None]:
        leader, (_other,) = await world.make_topic(segment_records=10)
        values = [b"%d" % number * 50 for number in range(10)]
        async with world.at(leader) as log:
            for value in values:
                await log.append("t", [value])
        await world.until(lambda: world.segment(number=1).is_sealed)
        await world.agree()
        await asyncio.sleep(10)
        segment = world.segment(number=1)
        assert segment.end_offset == 10
        path, size = world.path(segment), segment.end_position // 10
        y, x = [node_of(member) for member in segment.replicas]  # the leader is y
        real = copying._put_in_place
        good = world.nodes[x].disk.cached_bytes(path + ".log")[8 * size : 9 * size]

        def cut_short(disk: Disk, aside: str, into: str) -> None:
            if disk.location.endswith(world.nodes[y].name):
                raise OSError(errno.ENOSPC, "no room there for now")
            done = 0

            def powered(work: Callable[..., None]) -> Callable[..., None]:
                def one(*what: str) -> None:
                    nonlocal done
                    if done == steps:
                        world.loop.call_soon(world.nodes[x].lose_power)
                        raise OSError(errno.EIO, "the power is gone")
                    done += 1
                    work(*what)

                return one

            with (
                mock.patch.object(disk, "remove", powered(disk.remove)),
                mock.patch.object(disk, "rename", powered(disk.rename)),
                mock.patch.object(disk, "sync_directory", powered(disk.sync_directory)),
            ):
                real(disk, aside, into)

        world.nodes[x].disk.rot(path + ".log", 4 * size + size - 3)
        world.nodes[y].disk.rot(path + ".log", 8 * size + size - 3)
        with mock.patch.object(copying, "_put_in_place", cut_short):
            broker = world.nodes[x].running
            place = broker.replication.copies.place(world.topic(x).state.uid, segment.uid)
            assert place is not None
            broker.replication.completions.suspect(place, "the scrub found it")
            await world.until(lambda: not world.nodes[x].is_up)
        assert copying._put_in_place is real
        if is_other_down:
            world.nodes[y].kill()
        await world.nodes[x].start()
        await asyncio.sleep(20)
        if is_other_down:
            await world.nodes[y].start()
        await world.agree()
        await asyncio.sleep(60)
        data = world.nodes[x].disk.cached_bytes(path + ".log")[8 * size : 9 * size]
        assert data == good, "the only good copy of offset 8 was cut away"
        found: list[bytes | None] = []
        async with world.at(x) as log:
            for offset in range(10):
                try:
                    found += [record.value async for record in log.read("t", start=offset, end=offset + 1)]
                except IsterError as error:
                    found.append(f"{type(error).__name__}: {error.message}".encode())
        return [None if one == value else one for one, value in zip(found, values, strict=True)]

    wrong = play(script, replicas=2)
    assert wrong == [None] * 10, wrong


def test_and_without_the_crash_all_of_it_is_mended() -> None:
    async def script(world: World) -> int:
        leader, (_other,) = await world.make_topic(segment_records=10)
        async with world.at(leader) as log:
            for number in range(10):
                await log.append("t", [b"%d" % number * 50])
        await world.until(lambda: world.segment(number=1).is_sealed)
        await asyncio.sleep(10)
        segment = world.segment(number=1)
        path, size = world.path(segment), segment.end_position // 10
        y, x = [node_of(member) for member in segment.replicas]  # the leader is y
        world.nodes[x].disk.rot(path + ".log", 4 * size + size - 3)
        world.nodes[y].disk.rot(path + ".log", 8 * size + size - 3)
        broker = world.nodes[x].running
        place = broker.replication.copies.place(world.topic(x).state.uid, segment.uid)
        assert place is not None
        broker.replication.completions.suspect(place, "the scrub found it")
        await asyncio.sleep(60)
        async with world.at(x) as log:
            return len([record async for record in log.read("t", end=10)])

    assert play(script, replicas=2) == 10
