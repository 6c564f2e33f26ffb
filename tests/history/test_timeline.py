"""The timeline of the document on reliable topic moves, on real brokers, disks and sockets, in each mode.

T1  22 records are written to broker A: offsets 0 to 21
T2  they are durable outside of it (not in local mode, where they stay)
T3  a reader has come to 13
T4  A seals the topic at 21, and T5 B goes on at 22
T6  6 more: 22 to 27
T8  the reader comes back at 14: 14 to 21 from the history, and T9 22 to 27 from B's log, without a gap
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import ister
from ister.broker.node.process import RunningBroker, start
from ister.config import BrokerConfig
from tests.io.weed import BUCKET, s3_server

SEGMENT = 22


async def broker(root: Path, node_id: int, mode: str, join: str = "") -> RunningBroker:
    return await start(
        BrokerConfig(
            data_dir=str(root / f"node-{node_id}"),
            node_id=node_id,
            client_port=0,
            peer_port=0,
            admin_port=-1,
            bootstrap_cluster=not join,
            join=join,
            storage_mode=mode,
            storage_url={
                "local": "",
                "shared_fs": f"file://{root}/history",
                "object_store": f"s3://{BUCKET}/timeline",
            }[mode],
            export_after_ms=0,
            replicas=1,
            log_level="warning",
        )
    )


async def value(log: ister.Log, path: str) -> object:
    found = await log.look_up(path)
    return json.loads(found.value) if found.is_there else None


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """What is waited for is told by brokers, when they are asked."""
    async with asyncio.timeout(60):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def timeline(root: Path, mode: str) -> None:
    a = await broker(root, 1, mode)
    b = await broker(root, 2, mode, join=f"127.0.0.1:{a.info.peer_port}")
    base = "/storage/topics/default/reliable_topic"
    try:
        async with ister.connect(f"127.0.0.1:{a.info.client_port}") as log:

            async def are_two() -> bool:
                return len(a.broker.metadata.state.active_members) == 2

            async def is_durable() -> bool:
                return await value(log, f"{base}/segments/cur") == "0" * 20

            async def is_released() -> bool:
                return (await log.explain("reliable_topic", 14)).tier == "history"

            await until(are_two)
            # T1: the segment is full with these, so that the next record is another broker's.
            await log.create_topic("reliable_topic", segment_records=SEGMENT)
            appended = await log.append("reliable_topic", [b"%d" % n for n in range(SEGMENT)])
            assert (appended.base_offset, appended.count) == (0, 22)
            first = (await log.explain("reliable_topic", 0)).leader
            # T3
            read = [one.offset async for one in log.read("reliable_topic", end=14)]
            assert read == list(range(14))
            await log.pin("reliable_topic", "subs_reliable", 14)
            # T4, T5, T6
            appended = await log.append("reliable_topic", [b"%d" % n for n in range(22, 28)])
            assert (appended.base_offset, appended.count) == (22, 6), "22 follows on 21"
            state = await value(log, f"{base}/state")
            assert isinstance(state, dict)
            assert (state["sealed"], state["last_committed_offset"], state["broker_id"]) == (True, 21, first)
            assert (await log.explain("reliable_topic", 22)).leader != first
            # T2, and A's copy goes
            await until(is_durable)
            if mode != "local":
                await log.alter_topic("reliable_topic", local_retention_ms=1)
                await until(is_released)
                assert (await log.explain("reliable_topic", 14)).hot_start_offset == 22
            described = await value(log, f"{base}/segments/{0:020d}")
            assert isinstance(described, dict)
            assert (described["start_offset"], described["end_offset"]) == (0, 21)
            assert (described["object"] is None, described["nodes"]) == (
                (True, [first]) if mode == "local" else (False, [])
            )
            # T8, T9
            async with ister.connect(f"127.0.0.1:{b.info.client_port}") as back:
                assert (await back.pins("default/reliable_topic"))[0].offset == 14
                records = [(one.offset, one.value) async for one in back.read("reliable_topic", start=14)]
                assert records == [(n, b"%d" % n) for n in range(14, 28)]
    finally:
        await b.stop()
        await a.stop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "shared_fs"])
def test_the_timeline_of_the_document(mode: str, tmp_path: Path) -> None:
    asyncio.run(timeline(tmp_path, mode))


@pytest.mark.slow
def test_the_timeline_of_the_document_with_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path / "s3") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        asyncio.run(timeline(tmp_path, "object_store"))
