"""A cluster that is upgraded a node at a time: topics go on, and what is new waits for the last node."""

from __future__ import annotations

import pytest

import ister
from ister.errors import BuildTooOld
from ister.metadata.applying import TO_ALL, TO_TOPICS
from ister.metadata.codec import COMMANDS, CommandSet
from ister.metadata.commands import DrainNode, ReportCopies, RequestMove, SetPins
from ister.testing.cluster import World, read_all, run_story

NEW = (RequestMove, SetPins, ReportCopies, DrainNode)
"""What the build before this one did not have, as if."""
OLD = CommandSet(kind for kind in (*TO_ALL, *TO_TOPICS) if kind not in NEW)


def test_topics_go_on_while_a_cluster_is_upgraded_a_node_at_a_time() -> None:
    async def story(world: World) -> None:
        sent = 0

        async def write(log: ister.Log) -> None:
            nonlocal sent
            for _ in range(25):  # some rollovers each time, over all nodes
                await log.append("t", [b"%d" % sent])
                sent += 1

        async with world.connect() as log:
            await write(log)
            for node_id in (1, 2, 3):
                with pytest.raises(BuildTooOld, match="does not know RequestMove"):
                    await log.move_topic("t", 2)
                await write(log)
                assert not any(node.fatal for node in world.nodes.values())
                node = world.nodes[node_id]
                await node.stop()
                await write(log)
                node.build = COMMANDS
                await node.start()
                await world.settle()
            assert (await log.move_topic("t", 2)).target == 2
            await write(log)
            assert await read_all(log, "t") == [b"%d" % number for number in range(sent)]
        assert len({node.broker.metadata.state.to_bytes() for node in world.up}) == 1

    run_story(story, replicas=3, segment_records=10, build=OLD)
