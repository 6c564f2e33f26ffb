"""A broker without others: a cluster of one, whose metadata is its own raft folder and nobody else's.

It must not wait for anybody, and what goes wrong with the folder must not go on in silence.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from broker_helpers import (
    ENOUGH_SECONDS,
    Node,
    RawClient,
    SimNode,
    append_request,
    frame_of,
    real_config,
    refusal,
    request,
    simulated,
)

from ister.broker.node.process import start
from ister.errors import IsterError, NotLeader, StorageFailed
from ister.io.network import TcpNetwork
from ister.protocol.messages import AlterTopic, Append, Empty, Kind

LONG = {"election_min_ms": 300_000, "election_max_ms": 600_000}


def test_it_starts_without_waiting_for_an_election() -> None:
    async def scenario(node: SimNode) -> None:
        assert node.loop.time() < 5
        assert (await (await node.connect()).append("t", frame_of(b"x"))).base_offset == 0
        await node.stop()
        before = node.loop.time()
        again = await node.launch_again(**LONG)
        assert await (await again.connect()).values("t") == [b"x"]
        assert node.loop.time() - before < 5
        await again.stop()

    simulated(scenario, **LONG)


def test_a_stop_leaves_no_task_and_no_open_file(tmp_path: Path) -> None:
    async def main() -> None:
        running = await start(real_config(tmp_path, snapshot_entries=10))
        client = await Node(running.broker, running.server, TcpNetwork()).connect()
        while not running.broker.metadata.status().snapshot_index:
            await client.create(f"t{running.broker.metadata.state.applied_index}")
        client.transport.close()
        await running.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert open_files(tmp_path) == []

    asyncio.run(main())


def open_files(directory: Path) -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found.append(str(Path("/proc/self/fd", number).readlink()))
        except FileNotFoundError:
            pass  # the one that listed them
    return [path for path in found if path.startswith(f"{directory}/")]


@pytest.mark.parametrize("operation", ["sync", "write"])
@pytest.mark.parametrize("after", range(6))
def test_a_journal_that_fails_during_the_start_ends_the_start_with_an_error(
    operation: str, after: int
) -> None:
    """P1. It ended nothing before: the node waited for its own announcement for ever."""

    async def scenario(node: SimNode) -> None:
        await (await node.connect()).append("t", frame_of(b"x"))
        await node.stop()
        node.disk.faults.add(operation, prefix="raft/journal", after=after)
        try:
            async with asyncio.timeout(ENOUGH_SECONDS):
                started = await node.launch_again()
        except IsterError as error:
            assert "metadata" in error.message and "start it again" in error.hint
        except OSError as error:
            assert "raft/journal" in str(error)
        else:
            await started.stop()
            assert after > 1
        node.disk.faults.clear()
        again = await node.launch_again()
        assert await (await again.connect()).values("t") == [b"x"]
        await again.stop()

    simulated(scenario)


def test_a_node_whose_journal_failed_answers_at_once_until_it_is_stopped() -> None:
    """P1: what needs the metadata is refused with the reason, full segments included; reads go on."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=3)
        await client.append("t", frame_of(b"0"))
        node.disk.faults.add("sync", prefix="raft/")
        await refusal(client.create("u"), StorageFailed)
        before = node.loop.time()
        await refusal(client.create("u"), StorageFailed)
        await refusal(client.append("v", frame_of(b"x")), StorageFailed)
        assert node.loop.time() - before < 1
        for number in (1, 2, 3):
            await client.append("t", frame_of(b"%d" % number))
        assert await client.values("t") == [b"0", b"1", b"2", b"3"]
        assert len(node.fatal) == 1

    simulated(scenario)


def test_it_starts_again_and_again_on_a_full_disk_wherever_its_clients_find_it() -> None:
    """P5, I2: the number of a start finds no room in the directory; that makes the directory no copy."""

    async def scenario(node: SimNode) -> None:
        await (await node.connect()).append("t", frame_of(b"x"))
        await node.stop()
        node.disk.capacity = node.disk._used
        for port in (7001, 7002, 7003):
            again = await node.launch_again(client_port=port)
            assert await (await again.connect()).values("t") == [b"x"]
            assert again.fatal == []
            await again.stop()

    simulated(scenario)


def test_a_full_disk_makes_room_by_retention() -> None:
    """P5: the seal, the settings and the trim all fit into what the metadata has in reserve."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=10)
        for number in range(25):
            await client.append("t", frame_of(b"%d" % number + bytes(10_000)))
        node.disk.capacity = node.disk._used
        await refusal(client.append("t", frame_of(bytes(200_000))), StorageFailed)
        await client.call(Kind.ALTER_TOPIC, AlterTopic("t", {"retention_bytes": 1}))
        while (await client.describe("t")).start_offset < 20:  # noqa: ASYNC110 (the monitor's turn is no event)
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert (await client.append("t", frame_of(bytes(50_000)))).base_offset == 25
        assert node.fatal == []

    simulated(scenario)


def test_a_request_that_waits_for_an_index_that_never_comes_is_refused_and_forgotten() -> None:
    """Whoever sends it, and however often: nothing is kept of it."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        never = 1 << 60
        for number in range(50):
            client.send(request(number, Kind.APPEND, Append("t", never), frame_of(b"y")))
        answers = await answers_of(client, 50)
        assert answers == {NotLeader.wire}, "nothing was appended, and they say so"
        assert node.broker.metadata.raft._waiting._indexes == {}
        assert (await client.append("t", frame_of(b"z"))).base_offset == 1
        client.send(append_request(99, "t", frame_of(b"last")), request(100, Kind.STATS, Empty()))
        assert await answers_of(client, 2) == {0}

    simulated(scenario)


async def answers_of(client: RawClient, count: int) -> set[int]:
    return {answer.kind for answer in (await client.answers(count)).values()}
