"""Every bug that the simulation found, as the shortest schedule that shows it. See docs/track-record.md."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import CorruptSegment, MessageTooLarge, OffsetOutOfRange
from ister.metadata.commands import TrimTopic
from ister.testing import Loss
from ister.testing.mount import OpenFile
from tests.simulation.small import World, play


def test_a_failed_directory_sync_after_the_snapshot_stops_the_node_and_loses_no_command() -> None:
    """The snapshot's rename took effect and its sync failed: the old journal must not go on (P1)."""

    async def script(world: World) -> None:
        world.node.snapshot_every = 10
        world.node.die(Loss.NONE, power=False)
        await world.restart()
        rule = world.disk.faults.add("sync_directory", prefix="raft", after=1)
        made: list[str] = []
        async with world.connect() as log:
            for number in range(20):
                try:
                    async with asyncio.timeout(5):
                        await log.create_topic(f"t{number}", if_absent=True)
                except TimeoutError:
                    break  # the node has stopped: that is right
                made.append(f"t{number}")
        assert rule.struck
        world.disk.faults.clear()
        world.node.die(Loss.NONE, power=False)
        await world.restart()
        async with world.connect() as log:
            assert {topic.topic for topic in await log.list_topics()} >= {f"default/{name}" for name in made}

    play(script)


def test_an_interval_topic_survives_its_own_rollovers() -> None:
    """The timer synced a file that the handoff had closed, and the failure sealed the next segment empty."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("loose", fsync="interval", segment_records=4)
            for number in range(40):
                await world.send(log, "loose", b"%d" % number)
                await asyncio.sleep(0.07)
        await world.judge("loose")
        assert all(send.outcome.value == "acknowledged" for send in world.history.sends)

    play(script)


def test_an_interval_topic_never_lets_a_cycle_overtake_another() -> None:
    """The interval timer started a second cycle beside one that was about to start."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        world.node.watch.strong.add("default/strong")
        commits = world.node.broker.commits
        commits._may_run_inline = lambda jobs: False  # type: ignore[method-assign]
        running = []
        run_cycle = commits._run_cycle

        async def counted(jobs: list[object]) -> None:
            running.append(1)
            assert len(running) == 1, "two cycles at once"
            try:
                await run_cycle(jobs)  # type: ignore[arg-type]
            finally:
                running.pop()

        commits._run_cycle = counted  # type: ignore[method-assign, assignment]
        async with world.connect() as log:
            await log.create_topic("strong")
            await log.create_topic("loose", fsync="interval")
            segment = await world.node.broker.topics["default/loose"].led.ensure_open()
            for number in range(30):
                await world.send(log, "loose", b"l%d" % number)
                commits.submit(segment)
                commits._sync_unsynced()
                await world.send(log, "strong", b"s%d" % number)
        await world.judge("strong", "loose")

    play(script)


def test_a_topic_deleted_in_the_middle_of_a_handoff_ends_quietly() -> None:
    async def script(world: World) -> None:
        world.disk.latency = (0.01, 0.05)
        async with world.connect() as log:
            for number in range(25):
                await log.create_topic("t", segment_records=1)
                await log.append("t", [b"%d" % number])
                await asyncio.sleep(number * 0.004)
                await log.delete_topic("t")

    play(script)


def test_a_failed_sync_right_after_a_rollover_still_fences_the_segment() -> None:
    """The appends held for a new segment failed while the handoff that opened it was not over yet (P1)."""

    async def script(world: World) -> None:
        world.node.watch.strong.add("default/t")
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t", segment_records=2)
            directory = world.segment_files("t")[0].rpartition("/")[0]
            # The first sync of segment 2 is of its head, the next the held append's.
            where = {"prefix": f"{directory}/00000002", "suffix": ".log"}
            rule = world.disk.faults.add("sync", **where, after=1, count=1)
            await asyncio.gather(*(world.send(log, "t", b"%d" % number) for number in range(3)))
        assert rule.struck == 1
        second = world.node.broker.topics["default/t"].state.segments[1]
        assert second.end_offset == second.base_offset == 2
        await world.judge("t")

    play(script)


def test_a_full_disk_and_an_operator_do_not_both_decide_where_a_segment_ends() -> None:
    """A segment that was being opened again after ENOSPC was sealed at the same time, and stayed unusable."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t")
            await world.send(log, "t", b"a")
            topic = world.node.broker.topics["default/t"]
            world.disk.capacity -= world.disk.free_bytes()
            sending = asyncio.ensure_future(world.send(log, "t", b"y" * 70_000))
            while topic.led.opening is None:  # noqa: ASYNC110 (the moment in question is no event)
                await asyncio.sleep(0.00001)
            world.disk.capacity = 1 << 40
            topic.handing_off.start()
            await sending
            await world.send(log, "t", b"z")
        assert [send.outcome.value for send in world.history.sends] == ["acknowledged"] * 3
        await world.judge("t")

    play(script)


def test_a_reader_overtaken_by_retention_is_told_that_the_offset_is_gone() -> None:
    """D7: the file of a trimmed segment vanished under a reader, who was told of corruption."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t", segment_records=2)
            for number in range(6):
                await world.send(log, "t", b"%d" % number)
        topic = world.node.broker.topics["default/t"]
        slow = world.disk.slow(1, count=1)
        reading = asyncio.ensure_future(topic.reads.read(0, 1000))
        await asyncio.sleep(0.01)
        assert slow.struck == 1
        await world.node.broker.metadata.propose(TrimTopic(topic.state.uid, 4))
        with pytest.raises(OffsetOutOfRange):
            await reading

    play(script)


def test_records_behind_a_batch_that_failed_for_good_are_sent() -> None:
    """A record that lingered while the failed batch still stood in the queue was never sent at all."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", max_message_bytes=1024)
            async with log.producer("t", linger_ms=0, batch_records=5, max_in_flight=1) as producer:
                for number in range(20):
                    large = await producer.submit(b"x" * 5000)
                    await asyncio.sleep(0.0005 * number)
                    small = await producer.submit(b"%d" % number)
                    with pytest.raises(MessageTooLarge):
                        await large
                    async with asyncio.timeout(30):
                        await small

    play(script)


def test_a_power_cut_that_keeps_a_later_frame_and_loses_an_earlier_one_is_no_damage() -> None:
    """P3: nothing of that cycle was acknowledged; the topic was refused as damaged for ever."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t")
            await world.send(log, "t", b"kept")
            path = world.segment_files("t")[0]
            end = world.node.broker.topics["default/t"].facts.least_open_bytes
        world.node.die(Loss.ALL, power=True)
        _put_unsynced_cycle(world, path, end)
        await world.restart()
        async with world.connect() as log:
            assert [record.value async for record in log.read("t")] == [b"kept"]
            assert (await log.append("t", [b"next"])).base_offset == 1
            described = await log.describe_topic("t")
            assert any("recovery cut" in note for note in described.notes)

    play(script)


def _put_unsynced_cycle(world: World, path: str, end: int) -> None:
    """Put three frames of one cycle behind the end, the first of them lost: as the platter would have it."""
    from ister.frame import decode, encode, stamp
    from ister.wal.marks import marked

    first = decode(world.disk.durable_bytes(path))
    uid = first.header.segment  # type: ignore[union-attr]
    file = world.disk.open(path)
    position, offset = end, 1
    for number in range(3):
        frame = bytearray(encode([b"%d" % number * 600]))
        stamp(frame, offset, marked(uid, offset - 1), 1)
        if number > 0:
            file.write([frame], position)
        position, offset = position + len(frame), offset + 1
    file.sync()
    file.close()


def test_a_command_whose_client_went_away_is_applied_all_the_same() -> None:
    """The proposal was forgotten with its task, and the metadata could never be changed again."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        world.node.broker.commits._may_run_inline = lambda jobs: False  # type: ignore[method-assign]
        async with world.connect() as log:
            await log.create_topic("first")
            world.disk.slow(0.5, count=1)
            asking = asyncio.ensure_future(world.node.broker.create_topic("second", {}, if_absent=False))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.sleep(1)
            await log.create_topic("third", segment_records=1)
            await log.append("third", [b"x"])
            assert [topic.topic for topic in await log.list_topics()] == [
                "default/first",
                "default/second",
                "default/third",
            ]

    play(script)


def test_a_damaged_segment_that_is_asked_for_again_and_again_uses_up_no_files() -> None:
    """Each failed opening left two open files behind."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=2)
            for number in range(5):
                await log.append("t", [b"%d" % number])
        path = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        world.disk.tear(path, 10)
        await world.restart()
        opened: list[OpenFile] = []
        open_file = world.disk.open

        def remembered(path: str, *, create: bool = False) -> OpenFile:
            opened.append(open_file(path, create=create))  # type: ignore[arg-type]
            return opened[-1]

        world.disk.open = remembered  # type: ignore[method-assign, assignment]
        async with world.connect() as log:
            for _ in range(5):
                with pytest.raises(CorruptSegment):
                    await anext(aiter(log.read("t")))
        tried = [file for file in opened if file._path == path]
        assert len(tried) == 5
        assert not any(file._open for file in tried)

    play(script)
