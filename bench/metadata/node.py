"""One process with one node's metadata, for the bench: `python -m bench.metadata.node --help`.

It reads one JSON object a line from its standard input, does what that says, and answers with one object a
line. `monotonic` times are the machine's: two processes on it can compare theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from ister.bench.raw import now
from ister.bench.target import peak_rss_bytes
from ister.errors import IsterError
from ister.io.clock import SystemClock
from ister.io.disk import LocalDisk
from ister.io.network import TcpNetwork
from ister.metadata.commands import CreateTopic, Outcome
from ister.metadata.replicated import ReplicatedMetadata
from ister.protocol.codec import encode_header
from ister.protocol.messages import ClusterAnswer, ClusterNode, TopicSettings
from ister.protocol.peer import NodeAddress, node_of

CLUSTER_ID: Final = "bench"
HOST: Final = "127.0.0.1"
_LOOK_SECONDS: Final = 0.002

Fields = dict[str, Any]


def disk_id_of(node_id: int) -> str:
    return f"{node_id:016x}"


def address_of(node_id: int, port: int) -> NodeAddress:
    return NodeAddress(node_id, disk_id_of(node_id), HOST, port, HOST, port)


class Watch:
    """Looks every 2 ms, and so sees how long the event loop did nothing else (what a heartbeat would have had
    to wait), and how long a snapshot took from when it was due to when it was durable."""

    def __init__(self, store: ReplicatedMetadata, snapshot_every: int) -> None:
        self.longest_pause = 0.0
        self.snapshots: list[float] = []
        self._store = store
        self._snapshot_every = snapshot_every

    async def run(self) -> None:
        last, due, snapshot = now(), 0.0, self._store.status().snapshot_index
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            moment = now()
            self.longest_pause = max(self.longest_pause, moment - last - _LOOK_SECONDS)
            status = self._store.status()
            if due and status.snapshot_index > snapshot:
                self.snapshots.append(moment - due)
                due = 0.0
            elif not due and status.applied - status.snapshot_index >= self._snapshot_every:
                due, snapshot = last, status.snapshot_index
            last = moment


class Node:
    def __init__(self, store: ReplicatedMetadata, watch: Watch) -> None:
        self.store = store
        self.watch = watch

    async def do(self, asked: Fields) -> Fields:
        acts: dict[str, Callable[[Fields], Awaitable[Fields]]] = {
            "look": self.look,
            "lone": self.propose_in_turn,
            "pipelined": self.propose_many,
            "status": self.answer_status,
        }
        return await acts[asked["do"]](asked)

    async def look(self, asked: Fields) -> Fields:
        """How things stand here. `forget` begins anew with what was watched."""
        status, watch = self.store.status(), self.watch
        pause, snapshots = watch.longest_pause, watch.snapshots
        if asked.get("forget"):
            watch.longest_pause, watch.snapshots = 0.0, []
        return {
            "leader": node_of(status.leader),
            "voters": sorted(node_of(member) for member in status.membership.voters),
            "applied": status.applied,
            "commit": status.commit,
            "snapshot": status.snapshot_index,
            "topics": len(self.store.state.topics),
            "nodes": len(self.store.state.nodes),
            "longest_pause": pause,
            "snapshots": snapshots,
            "peak_rss_bytes": peak_rss_bytes(os.getpid()),
            "rss_bytes": rss_bytes(),
        }

    def create(self, name: str) -> CreateTopic:
        me = self.store.myself.member
        return CreateTopic(f"default/{name}", TopicSettings(), me, [me], SystemClock().now_us())

    async def propose_in_turn(self, asked: Fields) -> Fields:
        seconds = []
        for number in range(asked["count"]):
            began = now()
            check(await self.store.propose(self.create(f"{asked['name']}-{number}"), timeout=30))
            seconds.append(now() - began)
        return {"seconds": seconds, "ended": now()}

    async def propose_many(self, asked: Fields) -> Fields:
        """`outstanding` proposals wait at any time; each has a name of its own."""
        seconds: list[float] = []
        numbers = iter(range(asked["count"]))

        async def keep_one_waiting() -> None:
            for number in numbers:
                began = now()
                check(await self.store.propose(self.create(f"{asked['name']}-{number}"), timeout=30))
                seconds.append(now() - began)

        began = now()
        async with asyncio.TaskGroup() as group:
            for _ in range(asked["outstanding"]):
                group.create_task(keep_one_waiting())
        return {"seconds": seconds, "total": now() - began}

    async def answer_status(self, asked: Fields) -> Fields:
        """What `ister cluster status` has to be told, made from the state and encoded."""
        began = now()
        size = len(encode_header(cluster_answer(self.store)))
        return {"seconds": now() - began, "bytes": size}


def cluster_answer(store: ReplicatedMetadata) -> ClusterAnswer:
    state, status = store.state, store.status()
    copies: dict[int, int] = {}
    segments = 0
    for topic in state.topics.values():
        segments += len(topic.segments)
        for segment in topic.segments:
            for member in segment.replicas:
                copies[member] = copies.get(member, 0) + 1
    nodes = [
        ClusterNode(
            node.node_id,
            node.client_host,
            node.client_port,
            open_segments=len(state.led_by(node.member)),
            segments=copies.get(node.member, 0),
        )
        for node in state.nodes.values()
    ]
    return ClusterAnswer(
        state.cluster_id,
        nodes,
        leader=node_of(status.leader),
        term=status.term,
        commit_index=status.commit,
        applied_index=status.applied,
        snapshot_index=status.snapshot_index,
        topics=len(state.topics),
        segments=segments,
    )


def check(outcome: Outcome) -> None:
    if not outcome.ok:
        raise RuntimeError(f"a proposal of the bench was {outcome.result}: {outcome.detail}")


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def fatal(error: IsterError) -> None:
    print(f"the node stopped: {error}", file=sys.stderr, flush=True)


async def main(asked: argparse.Namespace) -> None:
    began = now()
    store = ReplicatedMetadata(
        LocalDisk(asked.directory),
        TcpNetwork(),
        Random(SystemClock().token()),
        myself=NodeAddress(asked.node_id, disk_id_of(asked.node_id), "", 0, "", 0),
        starts=asked.starts,
        cluster_id=CLUSTER_ID,
        on_fatal=fatal,
        snapshot_every=asked.snapshot_every,
    )
    await store.listen(HOST, asked.port)
    known = (await store.members.join([(HOST, asked.join)], timeout=10)).nodes if asked.join else None
    await store.open(found=asked.found, known=known)
    store.announce(HOST, asked.port)
    await store.wait_applied(asked.applied, timeout=60)
    # As in a broker's process: what exists now stays.
    gc.collect()
    gc.freeze()
    watch = Watch(store, asked.snapshot_every)
    watching = asyncio.create_task(watch.run())
    node = Node(store, watch)
    loop = asyncio.get_running_loop()
    answer({"ready": now() - began})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer(await node.do(json.loads(line)))
    watching.cancel()
    await store.stop()


def answer(fields: Fields) -> None:
    print(json.dumps(fields), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.metadata.node", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--port", type=int, required=True, help="for the other nodes")
    parser.add_argument("--starts", type=int, default=1, help="which start of this directory it is")
    parser.add_argument("--found", action="store_true", help="make a new cluster of this node")
    parser.add_argument("--join", type=int, help="the port of a node of the cluster to join")
    parser.add_argument("--snapshot-every", type=int, default=10_000)
    parser.add_argument("--applied", type=int, default=0, help="be ready once this index is applied")
    return parser.parse_args()


def run() -> None:
    """On the loop that a broker would have."""
    from ister.broker.node.process import _loop_factory

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main(parse()))


if __name__ == "__main__":
    run()
