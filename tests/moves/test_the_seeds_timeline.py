"""The timeline of the seed's documents: 0 to 21, a reader at 13, a move, 22 to 27, and the reader goes on.

T1  messages are produced          offsets 0..21 at A
T3  a consumer reads               0..13
T4  the topic is moved, A to B     sealed at 21, shown inclusively
T6  messages are produced          offsets 22..27 at B
T8  the consumer reads on          14..21 from what A sealed, 22..27 from B
"""

from __future__ import annotations

import asyncio

import pytest

import ister
from ister.testing.cluster import World, run_story
from tests.moves.moving_helpers import a_node_other_than, moved


async def read(log: ister.Log, start: int, end: int) -> list[int]:
    """The next records from `start` on, up to before `end`."""
    offsets: list[int] = []
    async for record in log.read("reliable", start=start, follow=True):
        assert record.value == b"msg-%d" % record.offset
        offsets.append(record.offset)
        if record.offset == end - 1:
            return offsets
    raise AssertionError("a reader that follows ends by itself")


@pytest.mark.parametrize("has_store", [False, True])
@pytest.mark.parametrize("a_stops", [False, True])
def test_a_consumer_reads_14_to_27_over_the_move_as_one_line(has_store: bool, a_stops: bool) -> None:
    async def story(world: World) -> None:
        async with world.connect() as producer, world.connect() as consumer, world.connect() as operator:
            for number in range(22):
                appended = await producer.append("reliable", [b"msg-%d" % number])
                assert appended.base_offset == number
            assert await read(consumer, 0, 14) == list(range(14))
            a, b = world.leader_of("reliable"), a_node_other_than(world, "reliable")
            found = await moved(operator, "reliable", b)
            assert found.end_offset - 1 == 21
            for number in range(22, 28):
                appended = await producer.append("reliable", [b"msg-%d" % number])
                assert appended.base_offset == number
            assert world.leader_of("reliable").node_id == b
            if a_stops:
                await asyncio.sleep(5)
                a.kill()
            assert await read(consumer, 14, 28) == list(range(14, 28))

    run_story(story, replicas=2, has_store=has_store)
