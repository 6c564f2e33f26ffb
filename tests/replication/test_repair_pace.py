"""Many sealed segments that lost a replica: the next repair begins when one is done."""

from __future__ import annotations

from unittest import mock

import pytest

from ister.replication import repair
from ister.replication.places import Place
from tests.cluster_world import World, run_story
from tests.replication.repair_helpers import come_back_wiped, fill, is_healed, sealed, until


@pytest.mark.slow
def test_one_look_is_enough_for_many_segments() -> None:
    async def story(world: World) -> None:
        await fill(world, 60)
        assert len(sealed(world)) > 5 * repair.MAX_REPAIRS
        lost = world.nodes[3]
        # The second look is late: whatever has not begun by then was waiting for it.
        await come_back_wiped(world, lost)
        await until(lambda: is_healed(world), seconds=180)

    with mock.patch.object(repair, "CHECK_SECONDS", 100.0):
        run_story(story, replicas=3, segment_records=2)


def test_a_node_that_was_just_started_is_asked_again_soon() -> None:
    """It does not know yet what it has. Taken for a failure, that cost the segment a long rest."""

    async def story(world: World) -> None:
        await fill(world, 5)
        await come_back_wiped(world, world.nodes[3])
        guests = world.nodes[3].broker.replication.guests
        is_ready, not_yet = guests._is_ready, iter(range(3))
        guests._is_ready = lambda: next(not_yet, None) is None and is_ready()
        await until(lambda: is_healed(world), seconds=180)
        assert next(not_yet, None) is None, "it was asked before it was ready"

    with mock.patch.object(repair, "REST_SECONDS", 10_000.0):
        run_story(story, replicas=3, segment_records=2)


def test_a_repair_whose_reason_changed_is_looked_at_again_soon() -> None:
    """Its node came back, or another one went, while it was copied: no failure, and nothing to rest for."""

    async def story(world: World) -> None:
        await fill(world, 5)
        still_holds, others = repair.Repairs._still_holds, iter(range(8))

        def changed_at_first(repairs: repair.Repairs, place: Place, change: repair.Change) -> bool:
            return next(others, None) is None and still_holds(repairs, place, change)

        with mock.patch.object(repair.Repairs, "_still_holds", changed_at_first):
            await come_back_wiped(world, world.nodes[3])
            await until(lambda: is_healed(world), seconds=180)
        assert next(others, None) is None, "no repair was looked at before it was done"

    with mock.patch.object(repair, "REST_SECONDS", 10_000.0):
        run_story(story, replicas=3, segment_records=2)
