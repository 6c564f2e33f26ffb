"""One seed, one run: a broker, its clients, what goes wrong, and the judgement.

    python -m tests.simulation.run broker --seed 17

replays seed 17. A run has a time of faults (a minute of virtual time and more), then the world is healed and
everybody must finish within a bound (checker 14), then every line is read to its end and judged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Self

import ister
from ister.config import BrokerConfig
from ister.errors import CorruptFrame, CorruptSegment
from ister.testing import Loss, SimDisk, SimNetwork, VirtualLoop
from ister.testing.checkers import Violation, check_history
from ister.testing.machine import ProcessDied
from tests.simulation import load
from tests.simulation.load import Clients
from tests.simulation.nemesis import Nemesis
from tests.simulation.node import HOST, SimNode
from tests.simulation.seeded import FAULT_SECONDS, SeededRun, Summary

LEAST_ROLLOVERS = 3

STRONG = ("orders", "events", "aged", "kept")
TOPICS: dict[str, dict[str, int | str]] = {
    "orders": {"segment_records": 12},
    "events": {"segment_bytes": 4096},
    "aged": {"segment_age_ms": 2500, "segment_records": 30},
    "kept": {"segment_records": 8, "retention_bytes": 6000},
    "loose": {"segment_records": 15, "fsync": "interval"},
}


@dataclass(kw_only=True)
class BrokerSummary(Summary):
    """Of a run of one broker."""

    rollovers: int
    rotted: str

    def check_worth(self) -> None:
        super().check_worth()
        assert self.rollovers >= LEAST_ROLLOVERS, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        return super().rows(runs) | {
            "handoffs": f"{sum(run.rollovers for run in runs):,}",
            "rotted segments, all noticed": f"{sum(run.rotted != 'nothing' for run in runs):,}",
        }


class BrokerRun(SeededRun[BrokerSummary]):
    world = "broker"
    about = (
        "One broker and its clients a seed; the checkers are in `ister.testing.checkers`, the faults in "
        "`tests/simulation/nemesis.py`."
    )
    clients: Clients

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop)
        self.dice: Random = loop.fork("run")
        self.disk = SimDisk(loop.fork("disk"), trace=loop.trace)
        self.network = SimNetwork(loop.fork("network"), trace=loop.trace)
        config = BrokerConfig(
            client_host=HOST,
            admin_port=-1,
            monitor_check_ms=self.dice.choice((300, 1000)),
            hot_tail_bytes=self.dice.choice((0, 2000, 1 << 20)),
            max_held_ms=self.dice.choice((500, 5000)),
            max_held_appends=self.dice.choice((5, 10_000)),
        )
        self.node = SimNode(loop, self.network, self.disk, config, self.history)
        self.node.snapshot_every = self.dice.choice((10, 40, 10_000))
        self.clients = Clients(loop, self.network, self.history)
        self.nemesis = Nemesis(loop, self.node, self.disk, self.network, self.clients, self.history)

    async def play(self) -> BrokerSummary:
        await self.node.start()
        await self._create_topics()
        workers = self._start_workers()
        await self.nemesis.run(FAULT_SECONDS)
        self._raise_violations()
        await self.nemesis.heal()
        keeping = self.loop.create_task(self.nemesis.keep_up())
        await self._enough_operations(workers)
        await self._finish(workers)
        keeping.cancel()
        await self._last_death()
        await self._read_everything()
        check_history(self.history)
        rotted = await self._rot()
        return self._summary(rotted)

    async def _create_topics(self) -> None:
        async with self.clients.connect("client-1.setup") as log:
            for name, settings in TOPICS.items():
                made = await log.create_topic(name, max_message_bytes=2048, **settings)
                self.clients.lines[name] = f"{name}#{made.uid}"
        self.node.watch.strong.update(f"default/{name}" for name in STRONG)
        self.clients.strong.update(self.clients.lines[name] for name in STRONG)

    def _start_workers(self) -> list[asyncio.Task[None]]:
        clients, start = self.clients, self.loop.create_task
        return [
            start(load.append_batches(clients, "client-1.a", "orders"), name="a"),
            start(load.append_batches(clients, "client-2.b", "orders"), name="b"),
            start(load.produce(clients, "client-2.c", "orders"), name="c"),
            start(load.produce(clients, "client-3.d", "events"), name="d"),
            start(load.append_batches(clients, "client-3.e", "aged"), name="e"),
            start(load.produce(clients, "client-1.f", "kept"), name="f"),
            start(load.produce(clients, "client-1.g", "loose"), name="g"),
            start(load.churn(clients, "client-2.churn", "churn"), name="churn"),
            start(load.operate(clients, "client-3.operator", ["orders", "events", "kept"]), name="operator"),
            start(load.follow(clients, "client-1.r", "orders"), name="reader-1"),
            start(load.follow(clients, "client-2.s", "kept"), name="reader-2"),
            start(load.follow(clients, "client-3.t", "loose"), name="reader-3"),
        ]

    async def _last_death(self) -> None:
        """What is judged is what a new process finds."""
        way = self.dice.randrange(4)
        if way == 0:
            with contextlib.suppress(ProcessDied):
                await self.node.stop()
        elif way == 1:
            self.node.die(Loss.NONE, power=False)
        elif way == 2:
            self.nemesis._lose_power(Loss.ALL)
        await self.nemesis.bring_up()

    async def _read_everything(self) -> None:
        async with self.clients.connect("client-1.judge") as log:
            for name, line in self.clients.lines.items():
                if line in self.history.excused:
                    continue
                start = await log.offsets_at(name, "earliest")
                end = await log.offsets_at(name, "latest")
                read = self.history.final(line, start)
                async with aclosing(
                    log.read(name, max_bytes=self.dice.choice((4096, 1 << 20))).frames()
                ) as frames:
                    async for frame in frames:
                        read.frames.append(self.clients.seen(frame))
                if read.end_offset != end:
                    raise Violation(
                        "reads_are_gapless", f"{line} ends at {end}, reading at {read.end_offset}"
                    )
                await self._check_times(log, name, line)

    async def _check_times(self, log: ister.Log, name: str, line: str) -> None:
        frames = self.history.finals[line].frames
        for frame in self.dice.sample(frames, min(3, len(frames))):
            expected = next(f.base_offset for f in frames if f.append_time_us >= frame.append_time_us)
            found = await log.offsets_at(name, frame.append_time_us)
            if found != expected:
                raise Violation("offsets_at", f"{line} at {frame.append_time_us}: {found}, not {expected}")

    # Bit rot (checker 13).

    async def _rot(self) -> str:
        """Rot one committed byte of a sealed segment: reading it is a typed error, never other bytes."""
        assert self.node.broker is not None
        candidates = [
            (name, segment)
            for name in STRONG
            for segment in self.node.broker.topics[f"default/{name}"].state.segments
            if segment.end_offset is not None and segment.end_position > 0
        ]
        if not candidates:
            return "nothing"
        name, segment = self.dice.choice(candidates)
        uid = self.node.broker.topics[f"default/{name}"].state.uid
        path = f"segments/{uid:016d}/{segment.segment:08d}-{segment.uid:016d}.log"
        self.node.die(Loss.NONE, power=False)
        self.disk.rot(path, self.dice.randrange(segment.end_position), self.dice.randrange(8))
        await self.nemesis.bring_up()
        line = self.clients.lines[name]
        good = dict(self.history.finals[line].rows())
        async with self.clients.connect("client-2.rot") as log:
            try:
                async with aclosing(log.read(name).frames()) as frames:
                    async for frame in frames:
                        for offset, value in self.clients.seen(frame).rows():
                            if good.get(offset) != value:
                                raise Violation("corruption", f"{line} has {value!r} at {offset} after rot")
            except (CorruptSegment, CorruptFrame):
                return path
        raise Violation("corruption", f"{path} has rotted, and {line} was read without an error")

    def _summary(self, rotted: str) -> BrokerSummary:
        return BrokerSummary(
            **self._summary_fields(self.nemesis.counts, deaths=self.disk.generation),
            rollovers=self.node.watch.rollovers,
            rotted=rotted,
        )
