"""Followers of the metadata resume where they were, and are told when they cannot (D19)."""

from __future__ import annotations

import asyncio

from ister.metadata.changes import Change, Changes, StateAt
from ister.metadata.commands import Outcome, Result
from ister.testing import VirtualLoop, simulate
from ister.testing.cluster import World, run_story


def change(index: int) -> Change:
    return Change(index, None, Outcome(Result.APPLIED, index))


def take(changes: Changes, after: int, count: int) -> list[Change | StateAt]:
    async def main(loop: VirtualLoop) -> list[Change | StateAt]:
        found: list[Change | StateAt] = []
        async for item in changes.follow(after):
            found.append(item)
            if len(found) == count:
                return found
        raise AssertionError("a follower never ends by itself")

    return simulate(main, seed=1)


def test_a_follower_gets_what_came_since_and_nothing_twice() -> None:
    changes = Changes()
    for index in (1, 2, 4, 7):
        changes.note(change(index))
    assert [item.index for item in take(changes, 2, 2)] == [4, 7]
    assert [item.index for item in take(changes, 0, 4)] == [1, 2, 4, 7]


def test_what_is_no_longer_at_hand_is_told_once_and_then_goes_on() -> None:
    changes = Changes(kept=3)
    for index in range(1, 10):
        changes.note(change(index))
    assert take(changes, 2, 4) == [StateAt(6), change(7), change(8), change(9)]
    changes.restored(20)
    changes.note(change(21))
    assert take(changes, 9, 2) == [StateAt(20), change(21)]


def test_what_is_kept_is_bounded_in_bytes_and_the_newest_is_always_there() -> None:
    changes = Changes(kept_bytes=100)
    for index in range(1, 6):
        changes.note(change(index), 40)
    assert take(changes, 0, 3) == [StateAt(3), change(4), change(5)]
    changes.note(change(6), 1000)
    assert take(changes, 5, 1) == [change(6)]


def test_a_follower_that_waits_is_woken_by_the_next_change() -> None:
    async def main(loop: VirtualLoop) -> None:
        changes = Changes()
        seen: list[int] = []

        async def follow() -> None:
            async for item in changes.follow(0):
                seen.append(item.index)  # noqa: PERF401 (it never ends)

        task = loop.create_task(follow())
        for index in range(1, 6):
            await asyncio.sleep(1)
            changes.note(change(index))
        await asyncio.sleep(1)
        task.cancel()
        assert seen == [1, 2, 3, 4, 5]

    simulate(main, seed=2)


def test_every_node_tells_the_same_changes_in_the_same_order() -> None:
    """Also one that was down and resumes from the last index that it told."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            for number in range(60):
                await log.append("t", [b"%d" % number])
            await world.settle()
            told: dict[int, list[int]] = {}
            for node_id, node in world.nodes.items():
                last = node.broker.metadata.state.applied_index
                told[node_id] = []
                async for item in node.broker.metadata.changes.follow(0):
                    if isinstance(item, Change):
                        told[node_id].append(item.index)
                    if item.index >= last:
                        break
            common = set(told[1]) & set(told[2]) & set(told[3])
            assert len(common) > 10
            for indexes in told.values():
                assert indexes == sorted(set(indexes))
                assert [index for index in indexes if index in common] == sorted(common)

    run_story(story, segment_records=10)
