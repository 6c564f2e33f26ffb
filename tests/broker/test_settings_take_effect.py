"""Every setting of a topic does what it says, on a running broker, and deletion leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_helpers import (
    Node,
    RawClient,
    SimNode,
    append_request,
    frame_of,
    on_real_disk,
    refusal,
    request,
    simulated,
)

from ister.errors import InvalidSetting, MessageTooLarge, OffsetOutOfRange, UnknownTopic
from ister.protocol import messages
from ister.protocol.messages import Kind


async def fill(client: RawClient, count: int, size: int = 10) -> None:
    for number in range(count):
        await client.append("t", frame_of(b"%d" % number + bytes(size)))


async def alter(client: RawClient, **settings: int | str) -> None:
    await client.call(Kind.ALTER_TOPIC, messages.AlterTopic("t", settings))


async def bases(client: RawClient) -> list[int]:
    return [segment.base_offset for segment in (await client.describe("t")).segments]


def test_a_segment_is_handed_off_by_records() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=4)
        await fill(client, 10)
        assert await bases(client) == [0, 4, 8]

    simulated(scenario)


def test_a_segment_is_handed_off_by_bytes() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_bytes=4096)
        await fill(client, 6, size=2000)
        assert await bases(client) == [0, 2, 4, 6]

    simulated(scenario)


def test_a_segment_is_handed_off_by_age_once_it_has_records() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_age_ms=60_000)
        await asyncio.sleep(200)
        assert await bases(client) == [0], "an empty segment is left alone"
        await fill(client, 3)
        await asyncio.sleep(20)
        assert await bases(client) == [0, 3]
        await asyncio.sleep(200)
        assert await bases(client) == [0, 3]

    simulated(scenario, monitor_check_ms=5000)


def test_a_changed_limit_holds_for_the_open_segment() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await fill(client, 5)
        await alter(client, segment_records=6)
        await fill(client, 1)
        await asyncio.sleep(1)
        assert await bases(client) == [0, 6]

    simulated(scenario)


def files_of(node: SimNode) -> list[str]:
    found = []
    for directory in node.disk.list("segments"):
        found += [name for name in node.disk.list(f"segments/{directory}") if name.endswith(".log")]
    return sorted(name.partition("-")[0] for name in found)


def test_retention_by_age_drops_whole_sealed_segments_and_their_files() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2, retention_ms=60_000)
        await fill(client, 4)
        await asyncio.sleep(50)
        await fill(client, 3)
        assert await bases(client) == [0, 2, 4, 6]
        await asyncio.sleep(30)
        assert await bases(client) == [4, 6]
        assert files_of(node) == ["00000003", "00000004"]
        error = await refusal(client.fetch("t", 3), OffsetOutOfRange)
        assert "it has 4 to 6" in error.message
        await asyncio.sleep(600)
        assert await bases(client) == [6], "the open segment stays, however old"
        assert (await client.append("t", frame_of(b"x"))).base_offset == 7

    simulated(scenario, monitor_check_ms=5000)


def test_retention_by_size_drops_the_oldest_sealed_segments() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_bytes=10_000, retention_bytes=35_000)
        await fill(client, 10, size=10_000)
        await asyncio.sleep(20)
        description = await client.describe("t")
        assert description.bytes <= 35_000
        assert (description.start_offset, description.end_offset) == (7, 10)
        assert len(files_of(node)) == len(description.segments) == 4

    simulated(scenario, monitor_check_ms=5000)


def test_space_of_a_trimmed_segment_is_freed_though_it_was_read(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        await fill(client, 6)
        assert len(await client.values("t")) == 6
        assert len(node.broker.storage.sealed._files) >= 2
        await alter(client, retention_ms=1)
        for _ in range(200):
            if len(list((tmp_path / "segments").rglob("*.log"))) == 1:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(node.broker.storage.sealed._files) == 0, "an open file keeps its space"

    on_real_disk(tmp_path, scenario, monitor_check_ms=10)


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_overtaken_by_retention_is_told_the_range(seed: int) -> None:
    """D7: deletion under a reader is never a missing file to it, nor a gap."""

    async def scenario(node: SimNode) -> None:
        writer, reader = await node.connect(), await node.connect()
        await writer.create("t", segment_records=2, retention_ms=500)

        async def read() -> None:
            offset = 0
            while offset < 300:
                try:
                    frames = await reader.fetch("t", offset, wait_ms=1000)
                except OffsetOutOfRange:
                    (start,) = await reader.offsets_at("t", messages.EARLIEST)
                    assert start > offset
                    offset = start
                    continue
                for frame in frames:
                    assert frame.header.base_offset == offset
                    offset = frame.header.end_offset
                await asyncio.sleep(node.loop.random.uniform(0, 0.15))

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            for number in range(300):
                await writer.append("t", frame_of(b"%d" % number))
                await asyncio.sleep(0.02)

    simulated(scenario, seed=seed, monitor_check_ms=50, hot_tail_bytes=0)


def test_a_changed_fsync_policy_begins_a_new_segment_and_is_told_to_people() -> None:
    """P6: the topic's description says what a weak policy costs."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await fill(client, 3)
        await alter(client, fsync="none")
        await fill(client, 2)
        description = await client.describe("t")
        assert [segment.base_offset for segment in description.segments] == [0, 3]
        assert any("power cut may lose acknowledged records" in note for note in description.notes)
        assert len(await client.values("t")) == 5

    simulated(scenario)


def test_the_default_policy_syncs_before_it_acknowledges_and_the_weak_ones_do_not() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for name, policy in [("a", "fsync"), ("b", "none"), ("c", "interval")]:
            await client.create(name, fsync=policy)
            await client.append(name, frame_of(b"record"))
            uid = (await node.broker.find(name)).state.uid
            path = f"segments/{uid:016d}/00000001-{uid:016d}.log"
            assert (b"record" in node.disk.durable_bytes(path)) == (policy == "fsync")
            await asyncio.sleep(1)
            assert (b"record" in node.disk.durable_bytes(path)) == (policy != "none")

    simulated(scenario)


def test_the_largest_message_of_a_topic_can_be_changed() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await fill(client, 1, size=3000)
        await alter(client, max_message_bytes=2000)
        await refusal(client.append("t", frame_of(bytes(3000))), MessageTooLarge)
        await alter(client, max_message_bytes=4000)
        assert (await client.append("t", frame_of(bytes(3000)))).base_offset == 1

    simulated(scenario)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"segment_recods": 5}, "did you mean segment_records?"),
        ({"segment_records": 0}, "segment_records = 0"),
        ({"fsync": "sometimes"}, "fsync = 'sometimes'"),
        ({"retention_ms": -1}, "retention_ms = -1"),
        ({"max_message_bytes": "lots"}, "max_message_bytes = 'lots'"),
    ],
)
def test_a_bad_setting_is_named_and_changes_nothing(
    settings: dict[str, int | str], reason: str, tmp_path: Path
) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        assert reason in (await refusal(client.create("t", **settings), InvalidSetting)).message
        assert node.broker.topics == {}
        before = (await client.create("t")).settings
        await refusal(alter(client, **settings), InvalidSetting)
        assert (await client.describe("t")).settings == before

    on_real_disk(tmp_path, scenario)


# Deletion.


def test_a_topic_made_again_starts_at_0_under_a_new_uid_and_the_old_files_go(tmp_path: Path) -> None:
    """I3: nothing of the predecessor is met again."""

    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", segment_records=2)
        await fill(client, 5)
        assert len(await client.values("t")) == 5
        old = await client.describe("t")
        await client.call(Kind.DELETE_TOPIC, messages.DeleteTopic("t"))
        await refusal(client.fetch("t", 0), UnknownTopic)
        assert (await client.append("t", frame_of(b"new"))).base_offset == 0
        new = await client.describe("t")
        assert new.uid > old.uid
        assert await client.values("t") == [b"new"]
        error = await refusal(client.fetch("t", 4), OffsetOutOfRange)
        assert "it has 0 to 0" in error.message
        for _ in range(200):
            if [path.name for path in (tmp_path / "segments").iterdir()] == [f"{new.uid:016d}"]:
                break
            await asyncio.sleep(0.01)
        assert [path.name for path in (tmp_path / "segments").iterdir()] == [f"{new.uid:016d}"]

    on_real_disk(tmp_path, scenario)

    async def after_a_restart(node: Node) -> None:
        assert await (await node.connect()).values("t") == [b"new"]

    on_real_disk(tmp_path, after_a_restart)


def test_a_producers_sequence_does_not_outlive_its_topic(tmp_path: Path) -> None:
    """I3, A5."""

    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"a", producer=5, sequence=0))
        await client.call(Kind.DELETE_TOPIC, messages.DeleteTopic("t"))
        await client.append("t", frame_of(b"b", producer=5, sequence=0))
        assert await client.values("t") == [b"b"]

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(30))
def test_a_topic_deleted_under_load_answers_every_append_and_leaves_no_task_behind(seed: int) -> None:
    async def scenario(node: SimNode) -> None:
        client, other = await node.connect(), await node.connect()
        await client.create("t", segment_records=3)
        for number in range(60):
            client.send(append_request(number, "t", frame_of(b"%d" % number)))
            if number == 10 + seed:
                other.send(request(1, Kind.DELETE_TOPIC, messages.DeleteTopic("t")))
            await asyncio.sleep(0.0003 * (seed % 4))
        answers = await client.answers(60)
        assert {answer.kind for answer in answers.values()} <= {0, UnknownTopic.wire}
        assert (await other.answer()).kind == 0
        await asyncio.sleep(30)
        assert node.server.in_flight_bytes == 0
        uids = {f"{topic.uid:016d}" for topic in node.broker.metadata.state.topics.values()}
        assert set(node.disk.list("segments")) <= uids

    simulated(scenario, seed=seed)


def test_retention_counts_a_segment_once_in_the_moment_of_its_seal() -> None:
    async def scenario(node: SimNode) -> list[tuple[int, int]]:
        client = await node.connect()
        await client.create("t", segment_records=2)
        topic = node.broker.topics["default/t"]
        seen: list[tuple[int, int]] = []

        def look(command: object, outcome: object) -> None:
            if type(command).__name__ == "SealSegment":
                seen.append((topic.facts.bytes, sum(s.end_position for s in topic.state.segments)))

        node.broker.metadata.watch(look)
        for _ in range(4):
            await client.append("t", frame_of(b"x"))
        return seen

    for counted, there in simulated(scenario):
        assert counted == there
