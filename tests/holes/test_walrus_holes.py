"""Walrus's holes (W..): what it did is in each docstring, that Ister does not do it is the test."""

from __future__ import annotations

import asyncio
import errno

import pytest

import ister
from ister.errors import CorruptFrame, CorruptSegment, InvalidTopicName, StorageFailed
from ister.frame import encode, stamp
from ister.protocol.codec import (
    PREFIX,
    PREFIX_SIZE,
    encode_header,
    encode_message,
    encode_preamble,
)
from ister.protocol.messages import Append, Hello, Kind
from ister.testing import Loss, SimClock, SimDisk
from tests.simulation.node import HOST, PORT, SimNode
from tests.simulation.small import World, play


async def values_of(log: ister.Log, topic: str) -> list[bytes | None]:
    return [record.value async for record in log.read(topic)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_w5_a_seal_after_a_restart_counts_what_was_there_before_it() -> None:
    """W5: entry counts lived in memory only; after a restart the next seal left the older entries out."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=10)
            for value in numbers(6):
                await world.send(log, "t", value)
        world.node.die(Loss.NONE, power=False)
        await world.restart()
        async with world.connect() as log:
            for value in numbers(14)[6:]:
                await world.send(log, "t", value)
            described = await log.describe_topic("t")
            assert (described.segments[0].base_offset, described.segments[0].end_offset) == (0, 10)
            assert await values_of(log, "t") == numbers(14)

    play(script)


@pytest.mark.parametrize("position", [0, 33, 62, 70, 200, 500])
def test_w7_corruption_in_a_sealed_segment_is_an_error_and_never_an_end(position: int) -> None:
    """W7: a damaged entry read as empty, and on a sealed segment the cursor jumped on to the next one."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t", segment_records=10)
            for value in numbers(25):
                await world.send(log, "t", value)
        first = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        world.disk.rot(first, position, 3)
        await world.restart()
        seen: list[bytes | None] = []
        async with world.connect() as log:
            with pytest.raises((CorruptSegment, CorruptFrame)):
                async for record in log.read("t"):
                    seen.append(record.value)  # noqa: PERF401 (what was seen before the error counts)
        assert seen == numbers(25)[: len(seen)]
        assert len(seen) < 10

    play(script)


def test_w12_a_zeroed_block_in_the_middle_is_damage_and_not_the_end() -> None:
    """W12: recovery stopped a file at its first zeroed block, and dropped the rest in silence."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            for number in range(20):
                await world.send(log, "t", b"%d" % number * 100)
        path = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        file = world.disk.open(path)
        file.write([bytes(512)], 512)
        file.sync()
        file.close()
        await world.restart()
        async with world.connect() as log:
            with pytest.raises(CorruptSegment, match="damaged at byte"):
                await values_of(log, "t")

    play(script)


def test_w12_a_name_that_is_too_long_is_refused_and_the_longest_survives_a_restart() -> None:
    """W12: a name of 220 characters zeroed a block's header, and the file was lost at the next start."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            with pytest.raises(InvalidTopicName):
                await log.append("x" * 220, [b"lost"])
            await log.append("x" * 200, [b"kept"])
            await log.append("other", [b"kept too"])
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        async with world.connect() as log:
            assert await values_of(log, "x" * 200) == [b"kept"]
            assert await values_of(log, "other") == [b"kept too"]

    play(script)


def _frame_that_lies(uid: int, offset: int) -> bytes:
    """An intact frame of the very segment, at a later offset: to be put into a record's value."""
    frame = bytearray(encode([b"I was never sent"]))
    stamp(frame, offset, uid, 1)
    return bytes(frame)


@pytest.mark.parametrize("torn", [False, True])
def test_w13_a_frame_inside_a_value_is_never_taken_for_a_frame_of_the_log(torn: bool) -> None:
    """W13: large blocks were scanned again at fixed strides, and payload was decoded as headers."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            await log.append("t", [b"first"])
            uid = (await log.describe_topic("t")).segments[0].uid
            lies = b"".join(_frame_that_lies(uid, offset) for offset in range(1, 60))
            await log.append("t", [lies * 3])
        path = world.segment_files("t")[0]
        world.node.die(Loss.NONE, power=False)
        if torn:
            end = sum(frame.header.size for frame in world.durable_frames(path))
            world.disk.tear(path, end - end // 4)
        await world.restart()
        async with world.connect() as log:
            expected = [b"first"] if torn else [b"first", lies * 3]
            assert await values_of(log, "t") == expected
            assert (await log.append("t", [b"next"])).base_offset == len(expected)

    play(script)


def test_w14_a_batch_whose_write_failed_leaves_nothing_behind() -> None:
    """W14: a failed batch gave back its offset but not its block, which readers could see before its data."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            await world.send(log, "t", b"a")
            for _ in range(4):
                world.disk.faults.add("write", prefix="segments/", suffix=".log", count=1, error=errno.EIO)
                await world.send(log, "t", b"b" * 700, b"c" * 700)
                assert (await log.describe_topic("t")).end_offset == len(await values_of(log, "t"))
        assert all(send.outcome.value == "acknowledged" for send in world.history.sends)
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        world.history.sends = world.history.sends[:2]
        async with world.connect() as log:
            found = await values_of(log, "t")
        assert found == [b"a"] + [b"b" * 700, b"c" * 700] * 4

    play(script)


def test_w15_a_full_disk_is_never_acknowledged() -> None:
    """W15: write errors were ignored, so an append to a full disk was acknowledged and lost."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.create_topic("t")
            await log.append("t", [b"before"])
        world.disk.capacity -= world.disk.free_bytes()
        async with world.connect() as log:
            with pytest.raises(StorageFailed, match="full"):
                await log.append("t", [b"x" * 100_000])
            assert await values_of(log, "t") == [b"before"]
        world.disk.capacity = 1 << 40
        async with world.connect() as log:
            await log.append("t", [b"after"])
        world.node.die(Loss.ALL, power=True)
        await world.restart()
        async with world.connect() as log:
            assert await values_of(log, "t") == [b"before", b"after"]

    play(script)


def test_w17_two_brokers_in_one_process_share_nothing() -> None:
    """W17: a process-global map of blocks mixed up the files of two instances."""

    async def script(world: World) -> None:
        network = type(world.network)(world.loop.fork("other-network"), trace=world.loop.trace)
        disk = SimDisk(world.loop.fork("other-disk"), name="other", trace=world.loop.trace)
        other = SimNode(world.loop, network, disk, world.node.config, world.history)
        await other.start()
        clock = SimClock(world.loop, world.loop.fork("other-clock"))
        async with (
            world.connect() as one,
            ister.connect(f"{HOST}:{PORT}", network=network.host("c"), clock=clock) as two,
        ):
            for number in range(30):
                await asyncio.gather(
                    one.append("t", [b"one %d" % number]), two.append("t", [b"two %d" % number])
                )
            assert await values_of(one, "t") == [b"one %d" % number for number in range(30)]
            assert await values_of(two, "t") == [b"two %d" % number for number in range(30)]

    play(script)


def test_w20_appends_that_arrive_together_share_one_sync() -> None:
    """W20: one fsync for each PUT."""

    async def script(world: World) -> None:
        assert world.node.broker is not None
        async with world.connect() as log:
            await log.create_topic("t")
            await log.append("t", [b"warm"])
            syncs = 0
            sync = world.disk.sync

            def counted(path: str, image: object) -> None:
                nonlocal syncs
                syncs += path.endswith(".log")
                sync(path, image)  # type: ignore[arg-type]

            world.disk.sync = counted  # type: ignore[method-assign, assignment]
            producers = [log.producer("t", linger_ms=0, batch_records=1) for _ in range(50)]
            await asyncio.gather(*(producer.send(b"x") for producer in producers))
            for producer in producers:
                await producer.close()
            assert (await log.describe_topic("t")).end_offset == 51
        assert 1 <= syncs <= 5

    play(script)


class _Raw(asyncio.BufferedProtocol):
    """A client that sends exactly the bytes it is told to."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost = False
        self._buffer = bytearray(65_536)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def answers(self) -> list[tuple[int, int]]:
        """Correlation and kind of each answer."""
        found: list[tuple[int, int]] = []
        position = 0
        while len(self.received) - position >= PREFIX_SIZE:
            size, correlation, kind, _ = PREFIX.unpack_from(self.received, position)
            found.append((correlation, kind))
            position += 4 + size
        return found


def test_w21_an_oversize_request_is_read_to_its_end_and_the_connection_lives_on() -> None:
    """W21: an oversize frame was answered but not drained: its bytes were then taken for requests."""

    async def script(world: World) -> None:
        raw = await world.network.host("client-1").connect(_Raw, HOST, PORT)
        assert isinstance(raw, _Raw)
        header = encode_header(Append("t"))
        small, large = encode([b"small"]), encode([b"x" * 200_000])
        raw.transport.write(encode_preamble() + encode_message(1, Kind.HELLO, encode_header(Hello("raw"))))
        await asyncio.sleep(1)
        raw.transport.write(encode_message(2, Kind.APPEND, header, len(large)) + large)
        raw.transport.write(encode_message(3, Kind.APPEND, header, len(small)) + small)
        await asyncio.sleep(5)
        assert not raw.lost
        answers = dict(raw.answers())
        assert answers[1] == 0
        assert answers[2] == 5, "MessageTooLarge"
        assert answers[3] == 0
        async with world.connect() as log:
            assert await values_of(log, "t") == [b"small"]

    play(script, max_message_bytes=65_536)


@pytest.mark.parametrize("value", [b"  spaces  ", b"\n", b"", b"\xff\x00\xfe", bytes(range(256)) * 3])
def test_w21_a_value_comes_back_byte_for_byte(value: bytes) -> None:
    """W21: payloads were trimmed, and what was not UTF-8 was rejected."""

    async def script(world: World) -> None:
        async with world.connect() as log:
            await log.append("t", [value, value], keys=[value, None])
            records = [record async for record in log.read("t")]
        assert [record.value for record in records] == [value, value]
        assert [record.key for record in records] == [value, None]

    play(script)
