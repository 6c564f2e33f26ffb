"""The timeline of the documents on reliable topic moves, on real brokers, disks and sockets, in each mode.

T1   22 records are written to broker A: offsets 0 to 21
T3   a consumer of "subs_reliable" has read and acknowledged 0 to 13: its cursor is 13
T4   the topic is moved: A seals it at 21, T5 B goes on at 22
T2   what A sealed is in the history (not in local mode, where it stays at A), and A has let go of it
T6   6 more: 22 to 27, at B
T8   the consumer comes back at 14: 14 to 21 from the history, and T9 22 to 27 from B's log, without a gap
T10  it has acknowledged all: its cursor is 27
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


async def consume(log: ister.Log, first: int, last: int) -> None:
    """The next records of the subscription are these, in order; all are acknowledged."""
    async with asyncio.timeout(60), log.subscribe("reliable_topic", "subs_reliable") as subscription:
        expected = first
        async for message in subscription:
            assert (message.offset, message.value) == (expected, b"%d" % expected)
            await message.ack()
            expected += 1
            if message.offset == last:
                return


async def timeline(root: Path, mode: str) -> None:
    a = await broker(root, 1, mode)
    b = await broker(root, 2, mode, join=f"127.0.0.1:{a.info.peer_port}")
    base = "/storage/topics/default/reliable_topic"
    cursor = "/topics/default/reliable_topic/subscriptions/subs_reliable/cursor"
    try:
        async with ister.connect(f"127.0.0.1:{a.info.client_port}") as log:

            async def are_two() -> bool:
                return len(a.broker.metadata.state.active_members) == 2

            await until(are_two)
            # T1
            await log.create_topic("reliable_topic")
            appended = await log.append("reliable_topic", [b"%d" % n for n in range(22)])
            assert (appended.base_offset, appended.count) == (0, 22)
            source = (await log.explain("reliable_topic", 0)).leader
            target = 3 - source
            # T3
            await log.create_subscription("reliable_topic", "subs_reliable", start="earliest")
            await consume(log, 0, 13)
            assert await value(log, cursor) == 13
            # T4, T5, T2
            found = await log.move_topic("reliable_topic", target)

            async def is_over() -> bool:
                return (await log.moves(move=found.move))[0].is_over

            await until(is_over)
            assert (await log.moves(move=found.move))[0].stage == "done"
            state = await value(log, f"{base}/state")
            assert isinstance(state, dict)
            assert (state["sealed"], state["last_committed_offset"], state["broker_id"]) == (True, 21, source)
            assert await value(log, f"{base}/segments/cur") == "0" * 20
            described = await value(log, f"{base}/segments/{0:020d}")
            assert isinstance(described, dict)
            assert (described["start_offset"], described["end_offset"]) == (0, 21)
            assert (described["object"] is None, described["nodes"]) == (
                (True, [source]) if mode == "local" else (False, [])
            )
            explained = await log.explain("reliable_topic", 14)
            assert (explained.tier == "history") == (mode != "local")
            assert explained.hot_start_offset == (0 if mode == "local" else 22)
            # T6
            appended = await log.append("reliable_topic", [b"%d" % n for n in range(22, 28)])
            assert (appended.base_offset, appended.count) == (22, 6), "22 follows on 21"
            assert (await log.explain("reliable_topic", 22)).leader == target
            # T8, T9, T10
            async with ister.connect(f"127.0.0.1:{b.info.client_port}") as back:
                await consume(back, 14, 27)
                assert await value(back, cursor) == 27
                records = [(one.offset, one.value) async for one in back.read("reliable_topic")]
                assert records == [(n, b"%d" % n) for n in range(28)]
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
