"""A copy that is alone in its list is called whole, to whoever removes another by that, when it was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

import pytest

from ister.frame import HEADER_SIZE
from ister.metadata.state import SegmentState
from ister.replication.copies import only_copies
from ister.replication.copies.only_copies import OnlyCopies
from ister.replication.places import Place
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.repair_helpers import (
    fill,
    has_files,
    is_healed,
    is_whole,
    path_of,
    replicas_of,
    sealed,
    until,
)

SETTINGS = {"nodes": 4, "replicas": 2, "segment_records": 4, "repair_after_ms": 600_000}


async def left_alone(world: World) -> tuple[WorldNode, WorldNode, SegmentState]:
    """A segment that one node is to have, and another, which is down, has too."""
    await fill(world, 12)
    await until(lambda: is_healed(world, copies=2))
    nodes = {node.member: node for node in world.nodes.values()}
    segment = sealed(world)[0]
    alone, away = (nodes[member] for member in segment.replicas)
    away.kill()
    other = next(node for node in world.up if node is not alone)
    async with world.connect(other.node_id) as log:
        await log.alter_topic("t", replicas=1)
    await until(lambda: replicas_of(world, segment.uid) == [alone.member])
    assert is_whole(world, alone, segment) and is_whole(world, away, segment)
    return alone, away, segment


@pytest.mark.slow
def test_a_copy_that_has_disappeared_is_not_called_whole_after_a_start() -> None:
    async def story(world: World) -> bool:
        alone, away, segment = await left_alone(world)
        async with world.connect(alone.node_id) as log:
            for number in range(12):  # a snapshot: no journal tells that there ever was another replica
                await log.create_topic(f"other-{number}")
        await asyncio.sleep(5)
        path = path_of(world, segment)
        alone.kill()
        for suffix in (".log", ".side"):
            alone.disk.remove(path + suffix)
        alone.disk.sync_directory(path.rpartition("/")[0])
        await alone.start()
        await asyncio.sleep(10)
        await away.start()
        await asyncio.sleep(60)
        return any(is_whole(world, node, segment) for node in (alone, away))

    assert run_story(story, **SETTINGS, snapshot_entries=10)


@pytest.mark.slow
@pytest.mark.parametrize("is_found", [True, False], ids=["found before", "found by the last look"])
def test_rot_costs_no_other_copy_after_a_start_and_is_mended_from_it(is_found: bool) -> None:
    async def story(world: World) -> tuple[bool, bool, bool]:
        alone, away, segment = await left_alone(world)
        path = path_of(world, segment)
        alone.disk.rot(path + ".log", HEADER_SIZE + 5)
        alone.broker.storage.sealed.forget(path)
        completions = alone.broker.replication.completions
        if is_found:
            await until(lambda: completions.is_damaged(segment.uid))  # by the scrub
            await asyncio.sleep(1)
        alone.kill()
        await asyncio.sleep(1)
        await alone.start()
        await asyncio.sleep(10)
        assert alone.broker.replication.completions.is_damaged(segment.uid) == is_found
        await away.start()
        nodes = {node.member: node for node in world.nodes.values()}

        def is_mended() -> bool:
            now = replicas_of(world, segment.uid)
            return len(now) == 1 and is_whole(world, nodes[now[0]], segment)

        await until(is_mended, 1200)
        now = nodes[replicas_of(world, segment.uid)[0]]
        other = away if now is alone else alone
        await until(lambda: not has_files(world, other, segment))
        is_called_damaged = any(
            node.broker.replication.completions.is_damaged(segment.uid) for node in (alone, away)
        )
        return is_mended(), is_whole(world, now, segment), is_called_damaged

    rate = 10_000_000 if is_found else 0
    assert run_story(story, **SETTINGS, scrub_bytes_per_second=rate) == (True, True, False)


class _Reads:
    """A scrub that takes its time."""

    def __init__(self, seconds: float, *, finds: bool = False) -> None:
        self._seconds = seconds
        self._finds = finds
        self.read: list[int] = []

    async def check(self, topic_uid: int, uid: int, bytes_per_second: int) -> bool:
        self.read.append(uid)
        await asyncio.sleep(self._seconds)
        return not self._finds


def _place(uid: int) -> Place:
    return mock.Mock(topic=mock.Mock(uid=1), segment=mock.Mock(uid=uid))


def test_each_question_is_answered_by_a_reading_of_its_own() -> None:
    async def main() -> list[int]:
        reads = _Reads(0)
        copies = OnlyCopies(reads, 1)
        assert await copies.is_good(_place(5)) and await copies.is_good(_place(5))
        return reads.read

    assert asyncio.run(main()) == [5, 5]


def test_a_long_reading_is_waited_for_by_several_questions() -> None:
    async def main() -> tuple[list[bool], list[int]]:
        reads = _Reads(0.05)
        copies = OnlyCopies(reads, 1)
        answers = [await copies.is_good(_place(5))]
        await asyncio.sleep(0.1)
        return [*answers, await copies.is_good(_place(5))], reads.read

    with mock.patch.object(only_copies, "WAIT_SECONDS", 0.01):
        assert asyncio.run(main()) == ([False, True], [5])


def test_several_who_ask_at_once_have_theirs_read_one_after_the_other() -> None:
    async def main() -> tuple[list[bool], list[int]]:
        reads = _Reads(0.01)
        copies = OnlyCopies(reads, 1)
        return await asyncio.gather(*(copies.is_good(_place(uid)) for uid in (5, 6, 7))), reads.read

    answers, read = asyncio.run(main())
    assert (answers, sorted(read)) == ([True, True, True], [5, 6, 7])


def test_a_copy_in_which_something_is_found_is_read_once_and_not_called_good() -> None:
    async def main() -> tuple[bool, list[int]]:
        reads = _Reads(0, finds=True)
        return await OnlyCopies(reads, 1).is_good(_place(5)), reads.read

    assert asyncio.run(main()) == (False, [5])


def _readings(between: Callable[[OnlyCopies], None]) -> list[int]:
    """What is read for a question that could not wait, and for the next one."""

    async def main() -> list[int]:
        reads = _Reads(0.02)
        copies = OnlyCopies(reads, 1)
        with mock.patch.object(only_copies, "WAIT_SECONDS", 0.001):
            assert not await copies.is_good(_place(5))
        await asyncio.sleep(0.1)
        between(copies)
        assert await copies.is_good(_place(5))
        return reads.read

    return asyncio.run(main())


def test_a_reading_of_long_ago_answers_nothing() -> None:
    with mock.patch.object(only_copies, "FRESH_SECONDS", 0.01):
        assert _readings(lambda copies: None) == [5, 5]
    assert _readings(lambda copies: None) == [5]


def test_a_reading_for_another_list_answers_nothing() -> None:
    assert _readings(lambda copies: copies.forget(5)) == [5, 5]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_no_reading_outlives_its_node(turns: int) -> None:
    async def main() -> tuple[list[bool], int]:
        copies = OnlyCopies(_Reads(100), 1)
        asked = [asyncio.ensure_future(copies.is_good(_place(uid))) for uid in (5, 6)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await copies.close()
        answers = [*await asyncio.gather(*asked), await copies.is_good(_place(7))]
        return answers, len(asyncio.all_tasks())

    assert asyncio.run(main()) == ([False, False, False], 1)
