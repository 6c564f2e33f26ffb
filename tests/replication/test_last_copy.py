"""A node that a repair has replaced comes back with what nobody else has any more."""

from __future__ import annotations

import asyncio

from tests.cluster_world import PEER_PORT, World, run_story
from tests.replication.repair_helpers import fill, is_healed, is_whole, sealed, until


def test_a_copy_that_is_the_last_one_is_not_removed_by_the_node_that_brings_it_back() -> None:
    async def story(world: World) -> None:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        nodes = {node.member: node for node in world.up}
        first, away = (nodes[member] for member in segment.replicas)
        away.kill()
        await until(lambda: is_healed(world, copies=2))  # repair: another has it in its place
        now = next(one for one in sealed(world) if one.uid == segment.uid)
        second = nodes[next(member for member in now.replicas if member != first.member)]
        assert away.member not in now.replicas and is_whole(world, away, segment)
        for node in (first, second):  # both disks are lost, and the operator says so
            node.kill(power=True)
            node.wipe()
        rest = world.up[0]
        for node in (first, second):
            await node.start(join=f"{rest.host}:{PEER_PORT}", join_timeout_ms=60_000, replace_disk=True)
        await away.start()
        await asyncio.sleep(30)
        assert is_whole(world, away, segment), "the last copy there is was removed"

    run_story(story, nodes=7, replicas=2, segment_records=2, repair_after_ms=10_000)
