"""A script against a small cluster that has the topic `t`, and the words that such scripts use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ister.broker.text.get_service import Taken
from ister.testing import VirtualLoop, simulate
from tests.text.fakes import FakeCluster, FakeNode

Script = Callable[[FakeCluster], Coroutine[Any, Any, None]]
T = "default/t"


def play(script: Script, *, nodes: int = 3, seed: int = 1, records: int = 0, seconds: float = 600) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop.fork("cluster"))
        for number in range(1, nodes + 1):
            await cluster.start(number)
        await cluster.nodes[1].text.register("t")
        await settle(cluster)
        for number in range(records):
            await cluster.nodes[1].text.put("t", b"%d" % number)
        await script(cluster)

    simulate(main, seed, limit_seconds=seconds)


async def settle(cluster: FakeCluster, seconds: float = 1.0) -> None:
    """Time for every node to apply what is committed, and for cursors to be stored."""
    await asyncio.sleep(seconds)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def drain(node: FakeNode, topic: str = "t") -> list[bytes]:
    found: list[bytes] = []
    while (value := await node.get(topic)) is not None:
        found.append(value)
    return found


async def took(node: FakeNode) -> Taken:
    taken = await node.take("t")
    assert taken is not None
    return taken


def stored(cluster: FakeCluster, number: int = 1) -> tuple[int, int, int]:
    topic = cluster.nodes[number].metadata.state.topics[T]
    return topic.get_owner, topic.get_epoch, topic.get_offset
