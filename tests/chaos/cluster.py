"""`python -m tests.chaos.cluster --seconds 60 [--seed S] [--report FILE]`: three nodes, killed and paused.

Producers and readers go through every node of a cluster of real processes, while nodes are killed and
stopped at random. In the end, through every node: all that was acknowledged is there, at its offset, once;
offsets are continuous from 0; every reader that followed saw that same line; the chain of segments has no
gap; the nodes agree. Then all are killed at once, and it is so again, from the files alone.

The seed decides what is sent and what goes wrong when; the machine decides the rest, so a seed makes a
failure likely to show again, and not certain to.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from bench.cluster.copies import wait_replicated
from bench.cluster.nodes import SERVE, ClusterProcesses, running_cluster

import ister
from ister.protocol.messages import TopicDescription
from ister.testing.checkers import Violation, check_history
from ister.testing.history import History, Outcome, Read
from tests.chaos.cluster_faults import Faults, Say, quiet
from tests.chaos.cluster_load import RETRY_SECONDS, Load, connect, read_all
from tests.chaos.command import Chaos

TOPICS = ("orders", "events", "audit")
SEGMENT_RECORDS = 200
COPIES = 3
HEALED_SECONDS = 90.0
REQUEST_TIMEOUTS = (2.0, 4.0, 10.0)
SETTINGS = {"monitor_check_ms": 200, "snapshot_entries": 200, "log_level": "info"}


@dataclass
class Result:
    """What a run was worth."""

    seed: int
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    sends: int = 0
    acknowledged: int = 0
    unknown: int = 0
    records: int = 0
    rollovers: int = 0
    moves: int = 0
    """Rollovers to another node."""
    reads: int = 0
    waits: list[float] = field(default_factory=list)
    """Seconds until every segment had its copies again, each time that this was waited for."""

    @property
    def kills(self) -> int:
        return sum(count for kind, count in self.faults.items() if kind.startswith("kill"))

    @property
    def pauses(self) -> int:
        return sum(count for kind, count in self.faults.items() if "SIGSTOP" in kind or "stopped" in kind)


class ClusterChaos:
    segment_records = SEGMENT_RECORDS

    def __init__(
        self, cluster: ClusterProcesses, seed: int, say: Say = quiet, patience_s: float = RETRY_SECONDS
    ) -> None:
        self.result = Result(seed)
        self._say = say
        self._patience_s = patience_s
        self.history = History()
        self._cluster = cluster
        self._random = Random(seed)
        # Each has chance of its own: how often the load asks for it depends on the machine.
        self._load = Load(self.history, Random(f"load {seed}"))
        self._faults = Faults(cluster, TOPICS, Random(f"faults {seed}"), say)

    async def run(self, seconds: float) -> Result:
        await self._cluster.wait_whole()
        async with AsyncExitStack() as stack:
            await self._make_topics()
            producers = await self._start_producers(stack)
            readers = await self._start_readers(stack)
            try:
                await self._unless_one_fails(self._faults.run(seconds), [*producers, *readers], seconds)
                self._say("healed: producers finish")
                self._load.finish()
                await self._unless_one_fails(_all_done(producers), readers)
                self._say("producers are done: reading through every node")
                lines = await self._judge_lines("healed")
                self._say("readers catch up")
                await self._unless_one_fails(self._caught_up(lines), readers)
            finally:
                for task in (*producers, *readers):
                    task.cancel()
                await asyncio.gather(*producers, *readers, return_exceptions=True)
        self._say("everything again, after a kill of all")
        await self._judge_again(lines)
        self._say("checking")
        check_history(self.history)
        self._count()
        return self.result

    async def _unless_one_fails(
        self, work: Coroutine[Any, Any, None], tasks: Sequence[asyncio.Task[None]], seconds: float = 0.0
    ) -> None:
        """Await the work, but not for ever, and not while a client has already met what must not be."""
        working = asyncio.create_task(work)
        waited = {working, *(task for task in tasks if not task.done())}
        bound = asyncio.get_running_loop().time() + seconds + 2 * HEALED_SECONDS
        try:
            while not working.done():
                done, waited = await asyncio.wait(
                    waited, timeout=bound - asyncio.get_running_loop().time(), return_when="FIRST_COMPLETED"
                )
                if not done:
                    raise Violation("liveness", f"{len(waited)} tasks go on and on")
                for task in done:
                    task.result()
        finally:
            working.cancel()

    # The clients.

    async def _make_topics(self) -> None:
        async with ister.connect(self._cluster.bootstrap) as log:
            for topic in TOPICS:
                await log.create_topic(topic, segment_records=self.segment_records)

    async def _start_producers(self, stack: AsyncExitStack) -> list[asyncio.Task[None]]:
        tasks = []
        for place, node in enumerate(self._cluster.nodes.values()):
            for is_kept in (False, True):
                topic = TOPICS[(place + is_kept) % len(TOPICS)]
                timeout_s = self._random.choice(REQUEST_TIMEOUTS)
                log = connect(
                    node.port, is_kept=is_kept, request_timeout_s=timeout_s, patience_s=self._patience_s
                )
                await stack.enter_async_context(log)
                work = self._load.append if (place + is_kept) % 2 else self._load.produce
                session = f"p{place + 1}{'k' if is_kept else 'f'}"
                tasks.append(asyncio.create_task(work(log, session, topic)))
        return tasks

    async def _start_readers(self, stack: AsyncExitStack) -> list[asyncio.Task[None]]:
        """Every topic through every node; and each topic once by a reader that finds its own way."""
        tasks = []
        for place, node in enumerate(self._cluster.nodes.values()):
            kept = await stack.enter_async_context(connect(node.port, is_kept=True))
            free = await stack.enter_async_context(connect(node.port, is_kept=False))
            for topic in TOPICS:
                session = f"tail of {topic} through node {place + 1}"
                tasks.append(asyncio.create_task(self._load.tail(kept, session, topic)))
            topic = TOPICS[place % len(TOPICS)]
            tasks.append(asyncio.create_task(self._load.tail(free, f"tail of {topic}", topic)))
        return tasks

    # Judgement.

    async def _judge_lines(self, when: str) -> dict[str, Read]:
        """Through every node: the same whole line of each topic, and a chain that fits it."""
        await self._cluster.wait_whole()
        # Until then leaders that were lost are replaced, and segments handed on to more replicas.
        await wait_replicated(self._cluster.bootstrap, TOPICS, COPIES, only_open=True)
        lines: dict[str, Read] = {}
        chains: dict[str, list[tuple[object, ...]]] = {}
        for node_id, node in self._cluster.nodes.items():
            async with connect(node.port, is_kept=True) as log:
                for topic in TOPICS:
                    read = await read_all(log, f"node {node_id}, {when}", topic)
                    self.history.reads.append(read)
                    if read.frames != lines.setdefault(topic, read).frames:
                        raise Violation("nodes_agree", _difference(lines[topic], read))
                    described = await log.describe_topic(topic)
                    chain = check_chain(described, read.end_offset)
                    if chain != chains.setdefault(topic, chain):
                        raise Violation(
                            "nodes_agree", f"node {node_id} has another chain of {topic} than the others"
                        )
        self.result.rollovers = sum(len(chain) - 1 for chain in chains.values())
        self.result.moves = sum(
            before[-1] != after[-1] for chain in chains.values() for before, after in pairwise(chain)
        )
        return lines

    async def _caught_up(self, lines: dict[str, Read]) -> None:
        """Every reader that followed reaches the end that is known now."""
        deadline = time.monotonic() + HEALED_SECONDS
        tails = [read for read in self.history.reads if read.session.startswith("tail")]
        while behind := [read for read in tails if read.end_offset < lines[read.line].end_offset]:
            if time.monotonic() > deadline:
                raise Violation(
                    "liveness",
                    f"{behind[0].session} is at {behind[0].end_offset} of {lines[behind[0].line].end_offset}",
                )
            await asyncio.sleep(0.02)

    async def _judge_again(self, lines: dict[str, Read]) -> None:
        """Once more, everything, from the files alone."""
        nodes = self._cluster.nodes.values()
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in nodes))
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
        again = await self._judge_lines("restarted")
        for topic, line in again.items():
            if line.frames != lines[topic].frames:
                raise Violation("one_offset_one_value", _difference(lines[topic], line))
            line.is_final = True
            self.history.finals[topic] = line

    def _count(self) -> None:
        outcomes = Counter(send.outcome for send in self.history.sends)
        if outcomes[Outcome.PENDING]:
            raise Violation("liveness", f"{outcomes[Outcome.PENDING]} sends were never told of their outcome")
        result = self.result
        result.faults = self._faults.done
        result.starts = sum(node.starts for node in self._cluster.nodes.values())
        result.acknowledged, result.unknown = outcomes[Outcome.ACKNOWLEDGED], outcomes[Outcome.UNKNOWN]
        result.records = sum(line.end_offset for line in self.history.finals.values())
        result.reads = len(self.history.reads)


async def _all_done(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*(asyncio.shield(task) for task in tasks))


def check_chain(described: TopicDescription, end_offset: int) -> list[tuple[object, ...]]:
    """Segments follow each other from offset 0 to the end, and only the last is open; returns them."""
    expected = 0
    for number, segment in enumerate(described.segments, 1):
        if segment.base_offset != expected or segment.segment != number:
            raise Violation(
                "chain_is_contiguous",
                f"{described.topic} has segment {segment.segment} at {segment.base_offset}, where segment "
                f"{number} at {expected} must be",
            )
        if segment.sealed == (number == len(described.segments)):
            raise Violation(
                "chain_is_contiguous",
                f"{described.topic}:{number} of {len(described.segments)} is not sealed",
            )
        expected = segment.end_offset
    if expected != end_offset:
        raise Violation("chain_is_contiguous", f"{described.topic} ends at {expected}, read to {end_offset}")
    return [
        (found.segment, found.uid, found.base_offset, found.end_offset, found.leader)
        for found in described.segments
    ]


def _difference(one: Read, other: Read) -> str:
    for left, right in zip(one.frames, other.frames, strict=False):
        if left != right:
            return (
                f"{one.line} has {left.values[0]!r} at {left.base_offset} for {one.session}, "
                f"{right.values[0]!r} at {right.base_offset} for {other.session}"
            )
    ends = f"{one.end_offset} for {one.session}, at {other.end_offset} for {other.session}"
    return f"{one.line} ends at {ends}"


def run_cluster(
    seconds: float,
    seed: int,
    *,
    command: Sequence[str] = SERVE,
    directory: Path | None = None,
    say: Say = quiet,
    patience_s: float = RETRY_SECONDS,
    chaos: type[ClusterChaos] = ClusterChaos,
) -> Result:
    """All of it, in a directory of its own unless one is given; raises `Violation` if a promise is broken."""
    started = time.monotonic()
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ister-cluster-chaos-")))
        cluster = stack.enter_context(running_cluster(directory, SETTINGS, command))
        result = asyncio.run(chaos(cluster, seed, say, patience_s).run(seconds))
    result.seconds = time.monotonic() - started
    return result


def report(result: Result) -> str:
    lines = [
        "# Chaos in a cluster: the last full run",
        "",
        "Written by `python -m tests.chaos.cluster --report`: three real broker processes, six producers and",
        "twelve tailing readers through all of them, nodes killed and stopped at random. Afterwards every",
        "acknowledged record was read through every node at its offset, once, and again after a kill of all;",
        "all of it was judged by `ister.testing.checkers`.",
        "",
        "| | |",
        "|---|---|",
        f"| seed | {result.seed} |",
        *(f"| {name} | {count} |" for name, count in sorted(result.faults.items())),
        f"| starts of a node | {result.starts} |",
        f"| rollovers | {result.rollovers:,} |",
        f"| of those to another node | {result.moves:,} |",
        f"| sends acknowledged | {result.acknowledged:,} |",
        f"| sends whose outcome nobody was told | {result.unknown:,} |",
        f"| records in the log at the end | {result.records:,} |",
        f"| wall time | {result.seconds:.0f} s |",
        "| result | nothing lost, nothing twice, no gap |",
        "",
    ]
    return "\n".join(lines)


def summary(result: Result) -> str:
    return (
        f"clean in {result.seconds:.0f} s: {result.kills} kills, {result.pauses} pauses, "
        f"{result.rollovers} rollovers ({result.moves} to another node), {result.acknowledged} sends "
        f"acknowledged, {result.unknown} unknown, {result.records} records"
    )


CHAOS = Chaos("tests.chaos.cluster", __doc__, "cluster chaos", 60.0, run_cluster, summary, report)

if __name__ == "__main__":
    sys.exit(CHAOS.main())
