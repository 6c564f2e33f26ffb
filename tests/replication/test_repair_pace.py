"""Many sealed segments that lost a replica: the next repair begins when one is done."""

from __future__ import annotations

from unittest import mock

from ister.replication import repair
from tests.cluster_world import World, run_story
from tests.replication.repair_helpers import come_back_wiped, fill, is_healed, sealed, until


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
