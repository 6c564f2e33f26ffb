"""Sealed segments get into the history by themselves, whole, once, whatever the store and the nodes do."""

from __future__ import annotations

import errno

from ister.errors import BadRequest, ConfigError, StoreUnavailable
from ister.failpoints import Step
from ister.frame import frames_in
from ister.history.exporting import LOOK_SECONDS, TURN_SECONDS
from ister.history.format import read_footer
from ister.history.names import parse_name
from ister.io.clock import monotonic
from ister.metadata.state import SegmentState
from ister.testing.cluster import World, WorldNode, run_story
from tests.replication.repair_helpers import fill, newest, path_of, sealed, until


def published(world: World, topic: str = "t") -> list[SegmentState]:
    return [one for one in sealed(world, topic) if one.history is not None]


def all_exported(world: World, segments: int, topic: str = "t") -> bool:
    found = sealed(world, topic)
    return len(found) >= segments and all(one.history is not None or one.is_empty for one in found)


def check_objects(world: World, topic: str = "t") -> None:
    """What the descriptors say is what is in the store, and it is the topic's line."""
    assert world.store is not None
    next_offset = 0
    for segment in published(world, topic):
        found = segment.history
        assert found is not None
        data = world.store.peek(found.name)
        footer = read_footer(data, found.size, found.name)
        records = [one for frame in frames_in(data[: footer.frames_size]) for one in frame.records()]
        assert [one.offset for one in records] == list(range(next_offset, footer.end_offset))
        assert [one.value for one in records] == [b"%d" % one.offset for one in records]
        next_offset = footer.end_offset


def probes_are_gone(world: World) -> bool:
    assert world.store is not None
    return all(parse_name(name) is not None for name in world.store.stored())


def test_sealed_segments_are_exported_by_themselves_and_can_be_listed_and_verified() -> None:
    async def story(world: World) -> None:
        await fill(world, 10)
        await until(lambda: all_exported(world, 2))
        check_objects(world)
        assert probes_are_gone(world)
        async with world.connect() as log:
            found = await log.history("t")
            assert [entry.state for entry in found.entries] == ["published", "published", "open"]
            starts = [0, *(entry.end_offset for entry in found.entries[:2])]
            assert [entry.start_offset for entry in found.entries] == starts
            assert starts[1] >= 4 and starts[2] >= 8, "what is on its way at the limit still goes in"
            for entry in found.entries[:2]:
                assert not (await log.verify_object("t", found.topic_uid, entry.uid)).problem
            assert world.store is not None
            world.store.rot(found.entries[1].name, 30)
            world.store.lose(found.entries[0].name)
            problems = [
                (await log.verify_object("t", found.topic_uid, entry.uid)).problem
                for entry in found.entries[:2]
            ]
            assert "is not in" in problems[0]
            assert f"damaged at byte 0, offset {starts[1]}" in problems[1]

    run_story(story, has_store=True, segment_records=4, replicas=3)


def test_without_a_store_nothing_is_exported_and_the_list_says_so() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        async with world.connect() as log:
            found = await log.history("t")
            assert [entry.state for entry in found.entries] == ["local", "open"]
            assert found.location == ""
            try:
                await log.verify_object("t", found.topic_uid, found.entries[0].uid)
            except BadRequest as error:
                assert "storage_mode is local" in error.message
            else:
                raise AssertionError("there is nothing to verify")

    run_story(story, segment_records=4)


def test_a_store_that_is_down_stops_no_append_and_is_caught_up_with() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        down = [world.store.faults.add(operation, error=errno.EIO) for operation in ("put", "piece")]
        await fill(world, 10)
        assert not published(world)
        for rule in down:
            world.store.faults.remove(rule)
        await until(lambda: all_exported(world, 2))
        check_objects(world)

    run_story(story, has_store=True, segment_records=4)


def test_an_open_segment_that_is_old_is_handed_off_for_its_export() -> None:
    async def story(world: World) -> None:
        await fill(world, 2)
        await until(lambda: all_exported(world, 1))
        check_objects(world)

    run_story(story, has_store=True, export_after_ms=60_000)


def test_a_store_that_overwrites_is_refused() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        world.store.overwrites = True
        node: WorldNode = world.make(4)
        await node.start(join="node-1:6001")
        await until(lambda: bool(node.fatal))
        assert isinstance(node.fatal[0], ConfigError)
        assert "does not keep what is there" in node.fatal[0].message

    run_story(story, has_store=True)


def test_another_replica_steps_in_for_an_exporter_that_died() -> None:
    async def story(world: World) -> None:
        assert world.store is not None
        slow = world.store.faults.add("piece", delay=50.0)
        await fill(world, 5)
        first = newest(world).topic("t").state.segments[0]
        await until(lambda: bool(world.store is not None and world.store.unfinished()))
        owner, _ = world.store.unfinished()[0]
        dead = next(node for node in world.up if node.host == owner)
        dead.kill()
        world.store.faults.remove(slow)
        await until(lambda: all_exported(world, 1), seconds=900)
        found = next(one for one in sealed(world) if one.uid == first.uid).history
        assert found is not None and found.exported_by != dead.member
        check_objects(world)

    run_story(story, has_store=True, segment_records=4, replicas=3)


def test_what_a_failover_has_sealed_is_exported_as_soon_as_a_copy_is_known_to_be_whole() -> None:
    async def story(world: World) -> None:
        await fill(world, 5)
        world.leader_of("t").kill()
        await until(lambda: bool(sealed(world)))
        await until(lambda: all_exported(world, 1), seconds=LOOK_SECONDS * 5)
        check_objects(world)

    run_story(story, has_store=True, replicas=3)


async def first_in_turn(world: World) -> WorldNode:
    """Of a segment that was just sealed, and that nobody can upload yet."""
    assert world.store is not None
    rules = [world.store.faults.add(operation, error=errno.EIO) for operation in ("put", "piece")]
    await fill(world, 5)
    await until(lambda: bool(sealed(world)))
    (segment,) = sealed(world)
    first = next(node for node in world.up if node.member == segment.whole[0])
    first.broker.failpoint = _cannot
    for rule in rules:
        world.store.faults.remove(rule)
    assert not published(world)
    return first


def _cannot(step: Step) -> None:
    if step is Step.EXPORTING:
        raise StoreUnavailable("the store does not answer this node")


def test_who_is_first_in_turn_and_dies_is_waited_for_no_longer_than_it_seems_alive() -> None:
    async def story(world: World) -> None:
        first = await first_in_turn(world)
        first.kill()
        await until(lambda: all_exported(world, 1), seconds=TURN_SECONDS / 2)
        check_objects(world)

    run_story(story, has_store=True, segment_records=4, replicas=3)


def test_who_is_first_in_turn_and_does_not_get_it_done_is_waited_for_one_turn() -> None:
    async def story(world: World) -> None:
        first = await first_in_turn(world)
        await until(lambda: all_exported(world, 1), seconds=TURN_SECONDS + LOOK_SECONDS * 5)
        (segment,) = published(world)
        assert segment.history is not None and segment.history.exported_by == segment.whole[1]
        assert first.member == segment.whole[0]
        check_objects(world)

    run_story(story, has_store=True, segment_records=4, replicas=3)


def test_nobody_exports_what_one_who_comes_before_is_on_its_way_to() -> None:
    async def story(world: World) -> None:
        first = world.nodes[1]
        async with world.connect() as log:
            await log.create_topic("t")
            await log.move_topic("t", 1)
        began = monotonic()
        await fill(world, 40)
        await until(lambda: all_exported(world, 9), seconds=600)
        assert monotonic() - began > 4 * TURN_SECONDS, "each took long enough to be somebody else's turn"
        assert {one.history.exported_by for one in published(world) if one.history} == {first.member}
        for node in world.up:
            assert node.broker.history is not None
            assert (node.broker.history.exporting.bytes.value > 0) == (node is first)
        check_objects(world)

    run_story(story, has_store=True, segment_records=4, replicas=3, export_bytes_per_second=50)


def test_a_segment_that_cannot_be_exported_from_here_holds_up_no_other() -> None:
    async def story(world: World) -> None:
        await fill(world, 1)
        node = world.nodes[1]
        unreadable = path_of(world, node.topic("t").state.open_segment) + ".log"
        broken = node.disk.faults.add("read", error=errno.EIO, suffix=unreadable)
        await fill(world, 13, first=1)
        await until(lambda: len(published(world)) == 2 and broken.struck > 0, seconds=TURN_SECONDS / 2)
        assert sealed(world)[0].history is None
        node.disk.faults.remove(broken)
        await until(lambda: all_exported(world, 3))
        check_objects(world)

    run_story(story, nodes=1, has_store=True, segment_records=4)
