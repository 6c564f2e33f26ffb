"""The simulation is worth what it finds: bugs that were put in on purpose are found, each by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ister.errors import CorruptFrame, CorruptSegment
from ister.frame import encode, stamp
from ister.testing import Loss
from ister.wal.group_commit import GroupCommit
from ister.wal.marks import marked
from ister.wal.segment import Segment
from tests.planting import is_found, shows
from tests.simulation import planted, test_found_bugs
from tests.simulation.planted import FOUND_BY_SCHEDULE, FOUND_BY_SEEDS, Plant
from tests.simulation.scenario import BrokerRun
from tests.simulation.small import World, play


@pytest.mark.slow
@pytest.mark.parametrize("plant", FOUND_BY_SEEDS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_within_the_stated_number_of_seeds(plant: Plant) -> None:
    assert is_found(plant, BrokerRun, FOUND_BY_SEEDS[plant])


def recovered_bytes_meet_a_power_cut() -> None:
    """A frame is written and not synced; kill -9; it is found and served; the power fails; what then?"""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            await world.send(log, "t", b"first")
        path = world.segment_files("t")[0]
        frames = world.durable_frames(path)
        world.node.die(Loss.NONE, power=False)
        frame = bytearray(encode([b"second"]))
        stamp(frame, 1, marked(frames[0].header.segment, 0), frames[0].header.append_time_us)
        world.disk.open(path).write([frame], frames[0].header.size)
        await world.restart()
        async with world.connect() as log:
            read = world.history.reading("reader", "t", 0)
            async for found in log.read("t").frames():
                read.frames.append(world.clients.seen(found))
        assert read.end_offset == 2
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        async with world.connect() as log:
            await world.send(log, "t", b"third")
        await world.judge("t")

    play(script)


def the_middle_of_the_open_segment_rots() -> None:
    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            for number in range(10):
                await world.send(log, "t", b"%d" % number)
        path = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        world.disk.rot(path, 300, 1)
        await world.restart()
        try:
            await world.judge("t")
        except (CorruptSegment, CorruptFrame):
            return  # told, with a name: that is right
        raise AssertionError("a rotten segment was read to an end")

    play(script)


def the_lease_goes_between_the_append_and_the_write() -> None:
    async def script(world: World) -> None:
        assert world.node.broker is not None
        leases, submit = world.node.broker.leases, GroupCommit.submit
        async with world.connect() as log:
            await log.create_topic("t")
            topic = world.node.broker.topics["default/t"]
            held = leases.held

            def revoke_first(segment: Segment) -> None:
                if segment.identity.key == "default/t:1":
                    leases.replace(frozenset())
                submit(world.node.broker.commits, segment)  # type: ignore[union-attr]

            world.node.broker.commits.submit = revoke_first  # type: ignore[method-assign]
            sending = asyncio.ensure_future(log.append("t", [b"x"]))
            await asyncio.sleep(1)
            assert topic.reads.end_offset == 0, "written without a lease (A4)"
            del world.node.broker.commits.submit  # type: ignore[method-assign]
            leases.replace(held)
            assert (await sending).base_offset == 0

    play(script)


def a_sync_fails() -> None:
    async def script(world: World) -> None:
        world.node.watch.strong.add("default/t")
        async with world.connect() as log:
            await log.create_topic("t")
            for number in range(6):
                world.disk.faults.add("sync", prefix="segments/", suffix=".log", count=1)
                await world.send(log, "t", b"%d" % number)
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        await world.judge("t")

    play(script)


SCHEDULES: dict[Plant, Callable[[], None]] = {
    planted.recovery_serves_what_it_did_not_sync: recovered_bytes_meet_a_power_cut,
    planted.any_damage_is_a_torn_tail: the_middle_of_the_open_segment_rots,
    planted.recovery_stops_at_the_first_bad_frame: the_middle_of_the_open_segment_rots,
    planted.a_lease_is_asked_for_only_once: the_lease_goes_between_the_append_and_the_write,
    planted.a_second_sync_is_believed: a_sync_fails,
    planted.two_cycles_at_once: test_found_bugs.test_an_interval_topic_never_lets_a_cycle_overtake_another,
}


def with_its_mark(plant: Plant) -> Plant | Any:
    """Of one many rounds are played."""
    return pytest.param(plant, marks=pytest.mark.slow) if plant is planted.two_cycles_at_once else plant


@pytest.mark.parametrize(
    "plant", list(map(with_its_mark, FOUND_BY_SCHEDULE)), ids=lambda plant: plant.__name__
)
def test_a_planted_bug_is_found_by_its_schedule(plant: Plant) -> None:
    SCHEDULES[plant]()  # without the bug it is clean
    with plant():
        assert shows(SCHEDULES[plant])
