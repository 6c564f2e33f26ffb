"""`python -m tests.chaos.moves --seconds 600 [--seed S] [--report FILE]`: topics moved at random under load.

Three real broker processes; producers and readers go through every node, as in `tests.chaos.cluster`.
Topics are moved at random, 500 times or until the time is over; during each fourth move the old leader, the
target or the metadata leader is killed. In the middle a node is drained, removed, and comes back with an
empty disk. In the end, through every node: all that was acknowledged is there, at its offset, once; offsets
are continuous from 0; readers that followed saw that same line. Then all nodes are killed at once, and it
is so again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from bench.cluster.copies import wait_replicated
from bench.cluster.nodes import SERVE, ClusterProcesses, NodeProcess

import ister
from ister.protocol.moves import DrainDescription
from ister.testing.checkers import Violation
from tests.chaos.cluster import COPIES, TOPICS, ClusterChaos, Result, run_cluster
from tests.chaos.cluster_faults import Faults, Say, quiet
from tests.chaos.cluster_load import RETRY_SECONDS
from tests.chaos.command import Chaos

MOVES = 500
SEGMENT_RECORDS = 5000
PATIENCE_S = 90.0


class MoveFaults(Faults):
    """Moves, and what goes wrong in them; the drain comes half-way."""

    moves = MOVES

    async def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        async with ister.connect(self._cluster.bootstrap, retry_deadline_s=PATIENCE_S) as log:
            for number in range(self.moves):
                if time.monotonic() > deadline:
                    break
                if number == self.moves // 2:
                    await self._drain(log)
                await self._move(log, is_broken=number % 4 == 3)
                for node in self._nodes:
                    node.check_running()
        await self.heal()

    async def _move(self, log: ister.Log, *, is_broken: bool) -> None:
        topic, target = self._random.choice(TOPICS), self._random.choice(list(self._cluster.nodes))
        self._say(f"{topic} to node {target}{', broken' if is_broken else ''}")
        await self._cluster.wait_whole()  # nothing is moved to a node that is not known to be back
        killed: NodeProcess | None = None
        source = (await log.describe_topic(topic)).segments[-1].leader
        if is_broken:
            leader = (await log.cluster()).leader
            killed = self._cluster.nodes[self._random.choice([source, target, leader])]
        moving = asyncio.create_task(log.move_topic(topic, target))
        if killed is not None:
            await asyncio.sleep(0.03 * self._random.random())
            await asyncio.to_thread(killed.kill)
        found = None
        try:
            if killed is not None:
                await asyncio.sleep(self._random.random())
                await self._start(killed)
            try:
                found = await moving
            except ister.IsterError as error:
                if killed is None:
                    raise Violation("moves_end", f"{topic} to node {target}: {error}") from error
                self.done["moves refused while a node was down"] += 1
                return
            bound = time.monotonic() + PATIENCE_S
            while not found.is_over:
                if time.monotonic() > bound:
                    raise Violation("moves_end", f"{topic} to node {target} is {found.stage}: {found.detail}")
                await asyncio.sleep(0.01)
                (found,) = await log.moves(move=found.move)
        finally:
            moving.cancel()
        self.done[f"moves {found.stage}{' with a kill' if killed is not None else ''}"] += 1
        if killed is None and found.stage != "done":
            raise Violation("moves_end", f"{topic} to node {target} {found.stage}: {found.detail}")

    async def _drain(self, log: ister.Log) -> None:
        node_id = self._random.choice(list(self._cluster.nodes))
        self._say(f"node {node_id} is drained and removed")
        bound = time.monotonic() + 2 * PATIENCE_S
        while not _is_empty(found := await log.drain_node(node_id)):
            if time.monotonic() > bound:
                raise Violation("drains_end", f"node {node_id} still has {found}")
            await asyncio.sleep(0.2)
        rest = ",".join(node.address for other, node in self._cluster.nodes.items() if other != node_id)
        async with ister.connect(rest, retry_deadline_s=PATIENCE_S) as other:
            await other.remove_node(node_id)
        node = self._cluster.nodes[node_id]
        await asyncio.to_thread(node.kill)
        self._cluster.wipe(node_id)
        await self._start(node)
        while not await _votes(log, node_id):  # noqa: ASYNC110 (what is waited for is another process)
            await asyncio.sleep(0.1)
        self.done["drained, removed, and back with an empty disk"] += 1


async def _votes(log: ister.Log, node_id: int) -> bool:
    nodes = (await log.cluster()).nodes
    return any(node.node_id == node_id and node.role == "voter" and node.client_port for node in nodes)


def _is_empty(found: DrainDescription) -> bool:
    return not (found.leads or found.follows or found.copies)


class TwentyMoves(MoveFaults):
    moves = 20


class MoveChaos(ClusterChaos):
    segment_records = SEGMENT_RECORDS
    faults: type[MoveFaults] = MoveFaults

    def __init__(
        self, cluster: ClusterProcesses, seed: int, say: Say = quiet, patience_s: float = RETRY_SECONDS
    ) -> None:
        super().__init__(cluster, seed, say, patience_s)
        self._faults = self.faults(cluster, TOPICS, Random(f"faults {seed}"), say)

    async def _judge_lines(self, when: str) -> dict[str, ister.testing.history.Read]:
        await wait_replicated(self._cluster.bootstrap, TOPICS, COPIES)
        return await super()._judge_lines(when)


class TwentyMovesChaos(MoveChaos):
    faults = TwentyMoves


def run_moves(
    seconds: float,
    seed: int,
    *,
    command: Sequence[str] = SERVE,
    directory: Path | None = None,
    say: Say = quiet,
    patience_s: float = RETRY_SECONDS,
    chaos: type[MoveChaos] = MoveChaos,
) -> Result:
    return run_cluster(
        seconds, seed, command=command, directory=directory, say=say, patience_s=patience_s, chaos=chaos
    )


def summary(result: Result) -> str:
    done = ", ".join(f"{count} {name}" for name, count in sorted(result.faults.items()))
    return f"clean in {result.seconds:.0f} s: {done}; {result.acknowledged} sends acknowledged"


def report(result: Result) -> str:
    lines = [
        "# Chaos of moves: the last full run",
        "",
        "Written by `python -m tests.chaos.moves --report`: three real broker processes under load, topics",
        "moved at random. Afterwards every acknowledged record was read through every node at its offset,",
        "once, and again after a kill of all.",
        "",
        "| | |",
        "|---|---|",
        f"| seed | {result.seed} |",
        *(f"| {name} | {count} |" for name, count in sorted(result.faults.items())),
        f"| sends acknowledged | {result.acknowledged:,} |",
        f"| sends whose outcome nobody was told | {result.unknown:,} |",
        f"| records in the log at the end | {result.records:,} |",
        f"| wall time | {result.seconds:.0f} s |",
        "| result | nothing lost, nothing twice, no gap |",
        "",
    ]
    return "\n".join(lines)


CHAOS = Chaos("tests.chaos.moves", __doc__, "chaos of moves", 600.0, run_moves, summary, report)

if __name__ == "__main__":
    sys.exit(CHAOS.main())
