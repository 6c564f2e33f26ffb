"""Where an offset lives, as each node of a cluster sees it: simulated clusters."""

from __future__ import annotations

from tests.replication.repair_helpers import fill, is_healed, sealed, until

from ister.broker.topic.location import Follower, Here, Location, Remote, Trimmed
from ister.testing.cluster import World, WorldNode, run_story


def test_each_node_finds_an_offset_here_at_another_in_its_copy_or_trimmed() -> None:
    async def story(world: World) -> None:
        await fill(world, 10)
        await until(lambda: is_healed(world, copies=2))
        for node in world.up:
            for segment in sealed(world):
                has_it = node.member in segment.replicas
                assert node.topic("t").places.locate(segment.base_offset) == (Here if has_it else Remote)(
                    segment
                )
            last = node.topic("t").state.open_segment
            await until(lambda node=node: type(located(node, 8)) is _place_of(node))  # type: ignore[misc]
            if isinstance(found := located(node, 8), Follower):
                assert (found.segment, found.copy.identity.uid) == (last, last.uid)
                assert located(node, 1000) == Remote(last), "it knows nothing from its own end on"
        async with world.connect() as log:
            await log.trim_topic("t", 4)
        await world.settle()
        assert [located(node, 3) for node in world.up] == [Trimmed()] * 3

    run_story(story, replicas=2, segment_records=4)


def located(node: WorldNode, offset: int) -> Location:
    return node.topic("t").places.locate(offset)


def _place_of(node: WorldNode) -> type[Location]:
    opened = node.topic("t").state.open_segment
    if opened.leader == node.member:
        return Here
    return Follower if node.member in opened.replicas else Remote
