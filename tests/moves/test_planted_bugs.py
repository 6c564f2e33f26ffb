"""What the tests of moves look for is found when it is put in on purpose."""

from __future__ import annotations

from unittest import mock

from ister.errors import BadRequest, IsterError
from ister.metadata.moves import Moves
from ister.testing.cluster import World, read_all, run_story
from tests.moves.test_a_topic_moves import test_a_move_cancelled_before_the_seal_leaves_the_topic_where_it_is
from tests.planting import shows


def test_a_cancelled_move_that_seals_is_found() -> None:
    """E7."""
    with mock.patch.object(Moves, "why_no_seal", lambda moves, topic, move, next_leader: ""):
        assert shows(test_a_move_cancelled_before_the_seal_leaves_the_topic_where_it_is)


def a_node_is_removed_as_soon_as_that_is_let_happen() -> None:
    """Its sealed segments are nowhere else: nothing of them may be lost (R2, C3)."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            for number in range(30):
                await log.append("t", [b"%d" % number])
            leaving = next(
                node
                for node in world.nodes.values()
                if node is not world.leader_of("t")
                and any(node.member in one.replicas for one in node.topic("t").state.segments)
            )
            try:
                await log.remove_node(leaving.node_id)
            except BadRequest as refused:
                assert "`ister node drain" in refused.hint
                return
            leaving.kill()
            rest = [node.node_id for node in world.up]
            async with world.connect(*rest, retry_deadline_s=10) as other:
                try:
                    values = await read_all(other, "t")
                except IsterError as error:
                    raise AssertionError("records left with the node") from error
            assert len(values) == 30

    run_story(story, replicas=1, segment_records=5)


def test_a_removal_of_a_node_with_the_last_whole_copy_is_found() -> None:
    a_node_is_removed_as_soon_as_that_is_let_happen()
    with mock.patch("ister.metadata.announcing.only_copy", lambda state, member, **rules: ""):
        assert shows(a_node_is_removed_as_soon_as_that_is_let_happen)
