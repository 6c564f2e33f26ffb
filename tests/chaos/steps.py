"""`python -m tests.chaos.steps`: real brokers die at each named step of a move and an export, one by one.

A topic is moved while it is written. The process that comes to the step stands still there
(`ister.failpoints`); then it, or the old leader, or the target, or the metadata leader, is killed with
kill -9, the others go on, and the killed one is started again. The move ends or is rolled back. In the end
all that was acknowledged is at its offset, once, and offsets are continuous.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from bench.cluster.nodes import SERVE, ClusterProcesses, NodeProcess, running_cluster

import ister
from ister.failpoints import VARIABLE, Step
from ister.testing.checkers import Violation

VICTIMS: Final = ("who is at it", "the old leader", "the target", "the metadata leader")
PATIENCE_S: Final = 180.0
"""An export whose first node in turn does not get it done waits 30 s for the next, and a look longer."""
TOPICS: Final = {"one": 1, "three": 3}
"""And how many replicas they have."""


class Case(NamedTuple):
    step: Step
    victim: str
    topic: str


ALL: Final = [Case(*case) for case in product(Step, VICTIMS, TOPICS)]
SOME: Final = [
    Case(step, VICTIMS[place % len(VICTIMS)], list(TOPICS)[place // 2 % len(TOPICS)])
    for place, step in enumerate(Step)
]
"""Each step once, victims and topics in turn."""


class StepChaos:
    def __init__(self, cluster: ClusterProcesses, halts: Path, patience_s: float) -> None:
        self._patience_s = patience_s
        self._cluster = cluster
        self._halts = halts
        self.acknowledged: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.ended: Counter[str] = Counter()

    async def run(self, cases: Sequence[Case]) -> None:
        await self._cluster.wait_whole()
        async with ister.connect(self._cluster.bootstrap, retry_deadline_s=self._patience_s) as log:
            for topic, replicas in TOPICS.items():
                await log.create_topic(topic, replicas=replicas)
            writers = [asyncio.create_task(self._write(topic)) for topic in TOPICS]
            try:
                for case in cases:
                    await self._play(log, case)
                    for writer in writers:
                        if writer.done():
                            writer.result()
            finally:
                for writer in writers:
                    writer.cancel()
                await asyncio.gather(*writers, return_exceptions=True)
            for topic in TOPICS:
                await self._judge(log, topic)

    async def _write(self, topic: str) -> None:
        """One record after the other; each says which it is."""
        offsets = self.acknowledged[topic]
        async with ister.connect(self._cluster.bootstrap, retry_deadline_s=self._patience_s) as log:
            while True:
                try:
                    found = await log.append(topic, [b"%d" % len(offsets)])
                except ister.IsterError as error:
                    raise Violation("writers_meet_no_error", f"{topic}: {error!r}") from error
                offsets.append(found.base_offset)
                await asyncio.sleep(0.002)

    async def _play(self, log: ister.Log, case: Case) -> None:
        nodes = self._cluster.nodes
        await self._cluster.wait_whole()  # nothing is moved to a node that is not known to be back
        old = (await log.describe_topic(case.topic)).segments[-1].leader
        target = old % len(nodes) + 1
        for node_id in nodes:
            (self._halts / f"node-{node_id}").write_text(case.step)
        moving = asyncio.create_task(log.move_topic(case.topic, target))
        try:
            own = await self._halted(log, case, moving)
            for node_id in nodes:
                (self._halts / f"node-{node_id}").unlink(missing_ok=True)
            victim = await self._victim(case, own, nodes[old], nodes[target])
            await asyncio.to_thread(victim.kill)
            for node in nodes.values():
                if node.is_running:
                    os.kill(node.process_id, signal.SIGCONT)  # one that got there before it was told not to
            await asyncio.to_thread(victim.start)
            stage = await self._end(log, case, moving)
        finally:
            moving.cancel()
        self.ended[stage] += 1
        before = len(self.acknowledged[case.topic])  # an open segment without a record is not exported
        bound = time.monotonic() + self._patience_s
        while len(self.acknowledged[case.topic]) < before + 5:
            if time.monotonic() > bound:
                raise Violation("liveness", f"{case}: nothing is written any more")
            await asyncio.sleep(0.01)

    async def _halted(self, log: ister.Log, case: Case, moving: asyncio.Task[object]) -> NodeProcess:
        bound = time.monotonic() + self._patience_s
        while time.monotonic() < bound:
            for node in self._cluster.nodes.values():
                if _state_of(node.process_id) == "T":
                    return node
            if moving.done():
                moving.result()  # a move that is refused comes to no step
            await asyncio.sleep(0.005)
        moves, topic = await log.moves(case.topic), await log.describe_topic(case.topic)
        raise Violation("liveness", f"{case}: nobody came to the step: {moves[-1:]}, {topic.segments[-3:]}")

    async def _victim(
        self, case: Case, own: NodeProcess, old: NodeProcess, target: NodeProcess
    ) -> NodeProcess:
        if case.victim != "the metadata leader":
            return {"who is at it": own, "the old leader": old, "the target": target}[case.victim]
        for node in self._cluster.nodes.values():
            if node is not own:
                with suppress(ister.IsterError):
                    leader = (await self._cluster.view_of(node)).leader
                    return self._cluster.nodes.get(leader, own)
        return own

    async def _end(self, log: ister.Log, case: Case, moving: asyncio.Task[object]) -> str:
        """The stage that the topic's last move ended in; `never began` if its request was lost."""
        with suppress(ister.IsterError):
            await moving
        bound = time.monotonic() + self._patience_s
        while time.monotonic() < bound:
            moves = await log.moves(case.topic)
            if not moves:
                return "never began"
            if moves[-1].is_over:
                return moves[-1].stage
            await asyncio.sleep(0.02)
        raise Violation("moves_end", f"{case}: {moves[-1]}")

    async def _judge(self, log: ister.Log, topic: str) -> None:
        values = [record.value async for record in log.read(topic)]
        offsets = self.acknowledged[topic]
        for number, offset in enumerate(offsets):
            if values[offset : offset + 1] != [b"%d" % number]:
                raise Violation("nothing_lost", f"{topic}: record {number} is not at its offset {offset}")
        if offsets != sorted(set(offsets)) or len(set(values)) != len(values):
            raise Violation("nothing_twice", f"{topic}: an offset, or a record, is there twice")


def _state_of(process_id: int) -> str:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


def run_steps(
    directory: Path,
    cases: Sequence[Case],
    command: Sequence[str] = SERVE,
    patience_s: float = PATIENCE_S,
) -> StepChaos:
    halts = directory / "halts"
    halts.mkdir()
    url = f"file://{directory}/history"
    settings = {"storage_mode": "shared_fs", "storage_url": url, "export_after_ms": 0}
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(halts)
    try:
        with running_cluster(directory, settings, command) as cluster:
            chaos = StepChaos(cluster, halts, patience_s)
            asyncio.run(chaos.run(cases))
    finally:
        os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})
    return chaos


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ister-step-chaos-") as directory:
        chaos = run_steps(Path(directory), ALL)
    ended = ", ".join(f"{count} {stage}" for stage, count in sorted(chaos.ended.items()))
    records = sum(map(len, chaos.acknowledged.values()))
    print(f"clean in {time.monotonic() - began:.0f} s: moves {ended}; {records} records acknowledged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
