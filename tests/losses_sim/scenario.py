"""One seed, one run, as in `tests.replicas_sim.scenario`, with an operator who gives records up (F6).

    python -m tests.simulation.run losses --seed 17

replays seed 17. Topics with 1, 2 and 3 replicas. What was given up is read off the metadata in the end.
Nothing else may be missing; nobody may be given what was given up, nor its offsets to another record
(invariant 11); every node tells every reader of it; and where no disk was taken, each acknowledged record of
it lies aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from ister import Log
from ister.errors import RecordsLost
from ister.frame import Frame, decode
from ister.metadata.state import TopicState
from ister.testing.checkers import Violation
from ister.testing.history import Lost, Outcome, Read
from tests.cluster import load
from tests.cluster.node import ClusterNode
from tests.cluster.scenario import ClusterSummary
from tests.losses_sim.clients import LossClients
from tests.losses_sim.nemesis import LossNemesis
from tests.losses_sim.watch import LossWatch
from tests.replicas_sim.scenario import ReplicatedRun, ReplicatedSummary
from tests.simulation.seeded import FINISH_SECONDS

TOPICS: dict[str, dict[str, Any]] = {
    "lone": {"segment_records": 8, "replicas": 1},
    "pair": {"segment_records": 30, "replicas": 2},
    "three": {"segment_bytes": 4096, "replicas": 3},
}


@dataclass(kw_only=True)
class LossSummary(ReplicatedSummary):
    """Of a run in which records were given up."""

    given_up: int
    refused: int
    lost: int
    acknowledged_lost: int

    def check_worth(self) -> None:
        ClusterSummary.check_worth(self)  # where majorities are lost there may be no failover
        assert self.given_up >= 1, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        return super().rows(runs) | {
            "losses accepted": f"{sum(run.given_up for run in runs):,}",
            "refused, for there was another way": f"{sum(run.refused for run in runs):,}",
            "offsets given up": f"{sum(run.lost for run in runs):,}",
            "of these acknowledged": f"{sum(run.acknowledged_lost for run in runs):,}",
        }


class LossRun(ReplicatedRun):
    world = "losses"
    about = (
        "Three or five brokers, of whose disks majorities are lost, and an operator who accepts it; the "
        "checkers are in `ister.testing.checkers` and `watch.py`, the faults in `nemesis.py`, of "
        "`tests/losses_sim`."
    )
    clients: LossClients
    nemesis: LossNemesis

    @property
    def takes_disks(self) -> bool:
        return self.loop.seed % 2 == 1

    def _choose_size(self, seed: int) -> int:
        """Of three nodes one may be missing: only what has one replica can be lost."""
        return 3 if seed % 4 == 0 else 5

    def _make_watch(self) -> LossWatch:
        return LossWatch(self.history)

    def _make_clients(self) -> LossClients:
        return LossClients(self.loop, self.network, self.history, [node.number for node in self.nodes])

    def _make_nemesis(self) -> LossNemesis:
        return LossNemesis(
            self.loop,
            self.nodes,
            self.network,
            self.clients,
            self.history,
            self._make_node,
            watch=self.watch,
            takes_disks=self.takes_disks,
        )

    def _topics(self) -> dict[str, dict[str, Any]]:
        return TOPICS

    def _start_workers(self) -> list[asyncio.Task[None]]:
        clients, start = self.clients, self.loop.create_task
        clients.lists_are_whole = False
        workers = [start(load.administer(clients, "client-3.operator", list(TOPICS)), name="operator")]
        for number, topic in enumerate(TOPICS, 1):
            host = load.HOSTS[number % 3]
            workers += [
                start(load.append_batches(clients, f"{host}.a-{topic}", topic), name=f"a-{topic}"),
                start(load.produce(clients, f"{host}.p-{topic}", topic), name=f"p-{topic}"),
                start(load.produce(clients, f"{host}.q-{topic}@{number}", topic), name=f"q-{topic}"),
                start(load.follow(clients, f"{host}.r-{topic}", topic), name=f"reader-{topic}"),
                start(
                    load.follow(clients, f"{host}.s-{topic}@{number}", topic, read_from="any"),
                    name=f"reader-any-{topic}",
                ),
            ]
        return workers

    # The judgement.

    def _states(self) -> dict[str, TopicState]:
        found = self.nemesis.health.view().topics.values()
        return {f"{topic.name.partition('/')[2]}#{topic.uid}": topic for topic in found}

    async def _read_everything(self) -> None:
        async with asyncio.timeout(FINISH_SECONDS):
            for topic in self.clients.lines:
                while not await self.nemesis.is_settled(topic):  # noqa: ASYNC110
                    await asyncio.sleep(1)
        await self._wait_until_equal()
        self.history.lost = {line: _losses(topic) for line, topic in self._states().items()}
        await super()._read_everything()
        for name, line, start, end in self.clients.told_lost:
            offset = start
            while offset < end and (lost := self.history.loss_at(line, offset)) is not None:
                offset = lost.end_offset
            if offset < end:
                raise Violation("F6", f"{name} was told that {start} to {end} of {line} is lost: it is not")

    async def _read_frames(self, log: Log, name: str, read: Read) -> None:
        """Over every loss, of which this node is to tell."""
        start = read.start_offset
        while True:
            try:
                async with aclosing(log.read(name, start=start, max_bytes=1 << 20).frames()) as frames:
                    async for frame in frames:
                        read.frames.append(self.clients.seen(frame))
                return
            except RecordsLost as error:
                at = max(start, read.end_offset)
                start = self.clients.behind_loss(read.session, read.line, at, error)
                read.told_lost.append((at, start))

    async def _read_line(self, node: ClusterNode, name: str, line: str, *, is_first: bool) -> None:
        await super()._read_line(node, name, line, is_first=is_first)
        for lost in self.history.lost[line]:
            offset = self.dice.randrange(lost.start_offset, lost.end_offset)
            async with self.clients.connect(f"client-1.asks@{node.number}") as log:
                try:
                    record = await anext(aiter(log.read(name, start=offset)), None)
                except RecordsLost:
                    continue
            raise Violation("F6", f"{node.name} has {record} at offset {offset} of {line}, which is lost")

    async def _look_at_disks(self) -> None:
        await super()._look_at_disks()
        if self.takes_disks:
            return
        deadline = self.loop.time() + FINISH_SECONDS
        while missing := self._not_aside():
            if self.loop.time() > deadline:
                raise Violation("F6", f"acknowledged, given up, and set aside by nobody: {missing[:3]}")
            await asyncio.sleep(1)

    def _acknowledged_lost(self) -> list[tuple[str, int, bytes]]:
        return [
            (send.line, offset, value)
            for send in self.history.sends
            if send.outcome is Outcome.ACKNOWLEDGED
            for offset, value in zip(send.offsets, send.values, strict=True)
            if self.history.loss_at(send.line, offset)
        ]

    def _not_aside(self) -> list[tuple[str, int, bytes]]:
        aside = {
            (line, offset, value)
            for line, topic in self._states().items()
            for node in self.nodes
            for offset, value in _rows_aside(node, topic)
        }
        return [row for row in self._acknowledged_lost() if row not in aside]

    def _summary(self) -> LossSummary:
        return LossSummary(
            **vars(super()._summary()),
            given_up=self.nemesis.given_up,
            refused=self.nemesis.refused,
            lost=sum(
                lost.end_offset - lost.start_offset for all_ in self.history.lost.values() for lost in all_
            ),
            acknowledged_lost=len(self._acknowledged_lost()),
        )


def _losses(topic: TopicState) -> list[Lost]:
    """By the segments: the list of ranges that people are shown has a bound."""
    gone = [(one.from_offset, one.end_offset) for one in topic.lost if one.was_sealed]
    return [
        Lost(
            one.lost_from,
            one.end_offset,
            any(start <= one.lost_from < end for start, end in gone),
        )
        for one in topic.segments
        if one.lost_from is not None and one.end_offset is not None and one.lost_from < one.end_offset
    ]


def _rows_aside(node: ClusterNode, topic: TopicState) -> list[tuple[int, bytes | None]]:
    """What this node has set aside of a topic, as a power cut would leave it."""
    rows: list[tuple[int, bytes | None]] = []
    directory = f"segments/{topic.uid:016d}"
    if not node.disk.exists(directory):
        return rows
    for name in node.disk.list(directory):
        if ".lost-" not in name or not name.endswith(".log"):
            continue
        data, position = node.disk.durable_bytes(f"{directory}/{name}"), 0
        while isinstance(frame := decode(data, position), Frame):
            values = [record.value for record in frame.records()]
            rows += enumerate(values, frame.header.base_offset)
            position += frame.header.size
    return rows
