"""What moves and a history must survive that Danube did not, and its mistakes that make each scenario fail.

As in `cluster_plants`: a scenario holds without a plant, and with its plant it fails. Here a scenario is run
by whoever calls it: each has a cluster of its own, with a history in a simulated store.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any
from unittest import mock

from ister.broker.topic import log_opening
from ister.broker.topic.handing_off import HandingOff
from ister.broker.topic.location import Here, Remote
from ister.broker.topic.places import Places
from ister.errors import IsterError
from ister.failpoints import Step
from ister.frame import frames_in
from ister.history import exporting
from ister.history.exporting import Exporting
from ister.history.format import read_footer
from ister.metadata.copies import listed
from ister.metadata.moves import MoveReason, Moves, MoveState
from ister.metadata.state import SegmentState, TopicState
from ister.testing import Loss
from ister.testing.cluster import World, read_all, run_story
from ister.wal.group_commit import FlushJob
from ister.wal.opening import create
from ister.wal.segment import Segment
from tests.history.test_export import published
from tests.history.test_hybrid_reading import OLD, all_released
from tests.holes import cluster_plants, replica_plants
from tests.holes.cluster_plants import fill
from tests.moves.moving_helpers import a_node_other_than, arrived, ended, moved
from tests.replication import repair_helpers
from tests.replication.repair_helpers import durable, newest, path_of, sealed

Plant = Callable[[], AbstractContextManager[Any]]
Story = Callable[[], None]

GARBAGE = b"\x49\x53\x54\x52 half a frame"


async def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Not for long: with the mistake put in, what is waited for never comes."""
    await repair_helpers.until(holds, seconds)


async def the_history_is_the_line(world: World, segments: int, topic: str = "t") -> list[bytes | None]:
    """Nothing of it is on a node but what is open; returns what is read from its first record to its last."""

    def is_there() -> bool:
        gone = (not durable(world, node, one) for node in world.up for one in published(world, topic))
        return all_released(world, segments) and all(gone)

    await until(is_there, seconds=150)
    assert world.store is not None
    async with world.connect() as log:
        line = await read_all(log, topic)
    next_offset = 0
    for segment in published(world, topic):
        assert segment.history is not None
        data = world.store.peek(segment.history.name)
        footer = read_footer(data, segment.history.size, segment.history.name)
        for frame in frames_in(data[: footer.frames_size]):
            for record in frame.records():
                assert (record.offset, record.value) == (next_offset, line[next_offset])
                next_offset += 1
        assert next_offset == segment.data_end
    return line


def store_is_down(world: World) -> Callable[[], None]:
    """Nothing can be uploaded until what is returned is called."""
    assert world.store is not None
    faults = world.store.faults
    rules = [faults.add(operation, error=errno.EIO) for operation in ("put", "piece")]

    def again() -> None:
        for rule in rules:
            faults.remove(rule)

    return again


async def end_all(world: World) -> None:
    for node in world.up:
        node.kill(power=True, loss=Loss.ALL)


async def start_all(world: World) -> None:
    for node in world.nodes.values():
        if not node.is_up:
            await node.start(bootstrap_cluster=False)
    await world.settle()


def numbers(count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


# D2: restarts.


def restarts_before_the_export() -> None:
    """What an earlier start wrote is exported by the next one, and what that writes follows on it."""

    async def story(world: World) -> None:
        again = store_is_down(world)
        for life in range(3):
            await fill(world, "t", 6, start=6 * life)
            await end_all(world)
            await start_all(world)
        again()
        assert await the_history_is_the_line(world, 3) == numbers(18)

    run_story(story, has_store=True, **OLD)


def an_export_skips_what_it_did_not_see_sealed() -> AbstractContextManager[Any]:
    run, waits = Exporting.run, Exporting._is_to_be_exported
    began: dict[Exporting, int] = {}

    async def begin(self: Exporting) -> None:
        began[self] = self._node.metadata.state.applied_index
        await run(self)

    def is_of_this_start(self: Exporting, segment: SegmentState) -> bool:
        return waits(self, segment) and segment.uid > began[self]

    return mock.patch.multiple(Exporting, run=begin, _is_to_be_exported=is_of_this_start)


# D3: a torn tail.


def a_torn_tail_behind_a_sealed_end() -> None:
    """What lies behind the end of a sealed log was never acknowledged, and is not exported."""

    async def story(world: World) -> None:
        again = store_is_down(world)
        await fill(world, "t", 9)
        node = world.nodes[1]
        ends = {path_of(world, segment): segment.end_position for segment in sealed(world)}
        await end_all(world)
        for path, end in ends.items():
            file = node.disk.mount().open(path + ".log")
            file.write([GARBAGE], end)
            file.sync()
            file.close()
        node.disk.kill()
        await start_all(world)
        again()
        assert await the_history_is_the_line(world, 2) == numbers(9)

    run_story(story, nodes=1, has_store=True, **OLD)


def a_log_is_exported_to_its_last_byte() -> AbstractContextManager[Any]:
    original = exporting.exported

    def longer(cluster_id: str, topic: TopicState, segment: SegmentState) -> Any:
        found = original(cluster_id, topic, segment)
        return found._replace(frames_size=found.frames_size + len(GARBAGE))

    return mock.patch.object(exporting, "exported", longer)


# D4, D6, D9: producers race rollovers and moves.


def producers_race_rollovers() -> None:
    async def story(world: World) -> None:
        await cluster_plants.producers_race_the_seals(world)
        assert len(await the_history_is_the_line(world, 5)) == 240

    run_story(story, has_store=True, **{**OLD, "segment_records": 7}, seed=9)


def frames_of_one_write_change_places() -> AbstractContextManager[Any]:
    """D6: offsets are taken in one order, and written in another."""
    take = Segment.take

    def shuffled(self: Segment, *, sync: bool = False) -> FlushJob | None:
        job = take(self, sync=sync)
        if job is not None and len(job.buffers) > 1:
            job.buffers = list(reversed(job.buffers))
        return job

    return mock.patch.object(Segment, "take", shuffled)


def producers_race_moves() -> None:
    """Slow disks: at every move there are appends that were admitted, and are not durable yet."""

    async def story(world: World) -> None:
        given = replica_plants.Given()
        options: dict[str, Any] = {"linger_ms": 0, "batch_records": 1, "idempotent": False}
        for node in world.up:
            cluster_plants.write_in_the_worker(node)
            node.disk.slow(0.005)
        is_over = asyncio.Event()

        async def produce(who: int) -> None:
            async with world.connect(1 + who % 3) as log, log.producer("t", **options) as producer:
                turn = 0
                while not is_over.is_set():
                    values = [b"%d-%d" % (who, turn + more) for more in range(5)]
                    offsets = await asyncio.gather(*(producer.send(value) for value in values))
                    for offset, value in zip(offsets, values, strict=True):
                        taken = given.records.setdefault(offset, value)
                        assert taken == value, f"offset {offset} was given to two records"
                    turn += 5

        async with world.connect() as log:
            await log.create_topic("t")
            producing = [asyncio.ensure_future(produce(who)) for who in range(6)]
            for _ in range(8):
                await asyncio.sleep(0.1)
                await moved(log, "t", a_node_other_than(world, "t"))
            is_over.set()
            await asyncio.gather(*producing)
            for node in world.up:
                node.disk.faults.clear()
            assert sorted(given.records) == list(range(len(given.records)))
            await log.alter_topic("t", local_retention_ms=1000)
        line = await the_history_is_the_line(world, 8)
        assert line == [given.records[offset] for offset in range(len(line))]

    run_story(story, has_store=True, seed=9)


def an_empty_topic_moves_about() -> None:
    """Each segment is empty, none of them becomes an object, and the first record is at 0."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            for _ in range(3):
                found = await moved(log, "t", a_node_other_than(world, "t"))
                assert found.end_offset == 0
            assert await log.offsets_at("t", "latest") == 0
            assert (await log.append("t", [b"0"])).base_offset == 0
            assert await read_all(log, "t") == numbers(1)
        await asyncio.sleep(60)
        assert len(sealed(world)) == 3
        assert world.store is not None
        assert not world.store.stored()

    run_story(story, has_store=True)


def an_empty_topic_ends_behind_its_first_offset() -> AbstractContextManager[Any]:
    """D9: the last offset of nothing is said to be 0, and the next one is 1."""
    propose = HandingOff.propose_seal

    async def one_more(self: HandingOff, segment: Segment, end: int) -> Any:
        return await propose(self, segment, max(end, 1))

    return mock.patch.object(HandingOff, "propose_seal", one_more)


# D5: writes that fail.


def writes_fail_now_and_then() -> None:
    """What was acknowledged is exported once, and nothing of what was not whole."""

    async def story(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=4)
            for number in range(16):
                if number % 3 == 1:
                    leader = world.leader_of("t")
                    leader.disk.faults.add(
                        "write", prefix="segments/", suffix=".log", count=1, error=errno.EIO
                    )
                assert (await log.append("t", [b"%d" % number])).base_offset == number
        assert await the_history_is_the_line(world, 4) == numbers(16)

    run_story(story, has_store=True, **OLD)


def what_could_not_be_written_counts() -> AbstractContextManager[Any]:
    """The end of a segment is where it would be if the write had not failed."""
    propose = HandingOff.propose_seal

    async def hopeful(self: HandingOff, segment: Segment, end: int) -> Any:
        return await propose(self, segment, segment.end_offset if segment.failure is not None else end)

    return mock.patch.object(HandingOff, "propose_seal", hopeful)


# D7: readers while copies go.


def copies_go_while_they_are_read() -> None:
    """A reader that is slow, and one that begins anew all the time, never meet a file that is missing."""

    async def story(world: World) -> None:
        assert world.store is not None
        world.store.faults.add("piece", delay=2.0)
        seen: list[bytes | None] = []
        async with world.connect() as log, world.connect() as reading:
            await log.create_topic("t", segment_records=4, local_retention_ms=1000)

            async def follow() -> None:
                async for record in reading.read("t", follow=True, max_bytes=100):
                    assert record.offset == len(seen)
                    seen.append(record.value)
                    await asyncio.sleep(0.5)

            following = asyncio.ensure_future(follow())
            for number in range(60):
                await log.append("t", [b"%d" % number])
                if number % 5 == 4:
                    assert await read_all(log, "t") == numbers(number + 1)
                await asyncio.sleep(0.7)
            await until(lambda: len(seen) == 60 or following.done())
            following.cancel()
            assert seen == numbers(60)
        assert await the_history_is_the_line(world, 12) == numbers(60)

    run_story(story, has_store=True, hot_tail_bytes=0)


# D8: after a move.


def records_that_are_nowhere_but_at_the_old_leader() -> None:
    """Not in the memory of the new one, and not in the history: read from the old one, or not at all yet."""

    async def story(world: World) -> None:
        again = store_is_down(world)
        await fill(world, "t", 22)
        old, new = world.leader_of("t"), world.nodes[a_node_other_than(world, "t")]
        async with world.connect(new.node_id, retry_deadline_s=3) as log:
            await arrived(log, "t", new.node_id)
            for number in range(22, 28):
                assert (await log.append("t", [b"%d" % number])).base_offset == number
            assert await read_all(log, "t") == numbers(28)
            old.kill()
            read: list[int] = []
            with suppress(IsterError):
                read += [record.offset async for record in log.read("t")]
            assert read == [], "nothing is read past what cannot be"
            await old.start(bootstrap_cluster=False)
            again()
            await until(lambda: len(published(world)) == 1)
            old.kill()
            assert await read_all(log, "t") == numbers(28)

    run_story(story, has_store=True, hot_tail_bytes=0)


def who_does_not_have_it_answers_with_what_it_has() -> AbstractContextManager[Any]:
    """The new leader answers for its own log alone, from its first record on."""
    locate = Places.locate

    def own(self: Places, offset: int) -> Any:
        found = locate(self, offset)
        opened = self._topic.state.open_segment
        if isinstance(found, Remote) and opened.leader == self._storage.member:
            return Here(opened)
        return found

    return mock.patch.object(Places, "locate", own)


# D10: what is newer.


def a_start_after_a_move() -> None:
    """The seal says 22, the new leader's log 28; the store is down, and then most of the metadata too."""

    async def story(world: World) -> None:
        await fill(world, "t", 22)
        new = world.nodes[a_node_other_than(world, "t")]
        async with world.connect() as log:
            await moved(log, "t", new.node_id)
        await fill(world, "t", 6, start=22)
        await until(lambda: len(published(world)) == 1)
        again = store_is_down(world)
        await end_all(world)
        await new.start(bootstrap_cluster=False)
        async with world.connect(new.node_id, retry_deadline_s=1) as log:
            with suppress(IsterError):
                end = await log.offsets_at("t", "latest")
                raise AssertionError(f"alone, it said that the topic ends at {end}")
        await start_all(world)
        await fill(world, "t", 6, start=28)
        again()
        async with world.connect() as log:
            assert (await log.describe_topic("t")).resumed == (
                "at offset 28, by local wal: the log of default/t:2 ends there"
            )
            await log.alter_topic("t", local_retention_ms=1000)
            await moved(log, "t", a_node_other_than(world, "t"))
        assert await the_history_is_the_line(world, 2) == numbers(34)

    run_story(story, has_store=True)


def the_seal_before_outranks_the_log() -> AbstractContextManager[Any]:
    """Whoever opens a segment begins where the one before was sealed, whatever its own log has."""

    def anew(disk: Any, identity: Any, carried: Any, time_us: int, **_: Any) -> Any:
        disk.remove(identity.path + ".log")
        return create(disk, identity, carried, time_us)

    return mock.patch.object(log_opening, "recover", anew)


# D14: the reason of a move.


def a_move_for_each_reason() -> None:
    """The store is down all the while: nothing may go but what is somewhere else."""

    async def story(world: World) -> None:
        again = store_is_down(world)
        start = 0
        for reason in MoveReason:
            await fill(world, "t", 5, start=start)
            start += 5
            leader = world.leader_of("t")
            target = world.nodes[a_node_other_than(world, "t")].member
            topic = leader.topic("t")
            begun = await leader.broker.moves.request(topic, target, reason, stays=False)
            async with world.connect() as log:
                await asyncio.sleep(120)
                (found,) = await log.moves(move=begun.index)
                assert (found.stage, found.reason) == ("sealed", reason.name.lower())
                assert "are not in the history yet" in found.detail
                assert await read_all(log, "t") == numbers(start)
        again()
        assert await the_history_is_the_line(world, 3) == numbers(start)

    run_story(story, has_store=True, local_retention_ms=60_000)


def only_an_operators_move_keeps_the_records() -> AbstractContextManager[Any]:
    """D14: any other reason clears what the old leader has."""
    sealed_ = Moves.sealed

    def and_clear(self: Moves, topic: TopicState, **how: Any) -> None:
        before: MoveState | None = self.of(topic.uid)
        sealed_(self, topic, **how)
        if before is not None and before.reason != MoveReason.OPERATOR:
            listed(0, topic.segments[-2], [], [])

    return mock.patch.object(Moves, "sealed", and_clear)


# D15: a leader that is taken for dead.


def a_live_leader_is_taken_for_dead() -> None:
    """It exports nothing that is not in the line, and what it has goes only once that is in the history."""

    async def story(world: World) -> None:
        await replica_plants.a_live_leader_is_taken_for_dead(world)
        async with world.connect() as log:
            line = await read_all(log, "t")
            await log.alter_topic("t", local_retention_ms=1000)
            await moved(log, "t", a_node_other_than(world, "t"))
        assert await the_history_is_the_line(world, 2) == line

    run_story(story, has_store=True, replicas=3)


# D16: the source dies before its seal.


def the_source_of_a_move_is_gone_for_good() -> None:
    """When it knows the end, before it proposes it. The move ends all the same, and so does the export."""

    async def story(world: World) -> None:
        await fill(world, "t", 9)
        old, new = world.leader_of("t"), world.nodes[a_node_other_than(world, "t")]
        others = [node.node_id for node in world.up if node is not old]

        def reach(step: Step) -> None:
            if step is Step.DRAINED and old.is_up:
                world.loop.call_soon(replica_plants.gone_for_good, old)

        async with world.connect(*others) as log:
            begun = await log.move_topic("t", new.node_id)
            old.broker.failpoint = reach
            async with asyncio.timeout(40):
                found = await ended(log, begun.move)
            assert found.stage == "done", found
            for number in range(9, 20):
                assert (await log.append("t", [b"%d" % number])).base_offset == number
            await until(lambda: newest(world).topic("t").state.segments[0].history is not None)
            assert await read_all(log, "t") == numbers(20)

    run_story(story, has_store=True, replicas=3)


def nobody_goes_on_with_a_move() -> AbstractContextManager[Any]:
    return mock.patch.object(Moves, "sealed", lambda moves, topic, **how: None)


# D20: what only a dead broker could have exported.


def a_leader_is_gone_before_its_export() -> None:
    """With its disk, and with nothing in the history: the others have it, export it, and go on behind it."""

    async def story(world: World) -> None:
        again = store_is_down(world)
        await fill(world, "t", 9)
        led_first = world.nodes[1].topic("t").state.segments[0].leader
        gone = next(node for node in world.up if node.member == led_first)
        replica_plants.gone_for_good(gone)
        again()
        async with world.connect(*[node.node_id for node in world.up]) as log:
            assert await log.offsets_at("t", "latest") == 9
            for number in range(9, 15):
                assert (await log.append("t", [b"%d" % number])).base_offset == number
            await until(lambda: newest(world).topic("t").state.segments[0].history is not None, seconds=150)
            assert await read_all(log, "t") == numbers(15)

    run_story(story, has_store=True, replicas=3, segment_records=4)


def only_who_led_a_segment_exports_it() -> AbstractContextManager[Any]:
    def own(self: Exporting, segment: SegmentState) -> bool:
        return segment.leader == self._node.member

    return mock.patch.object(Exporting, "_is_turn", own)
