"""A cluster with a history, from one seed: nodes die and come back, the store fails in every way that it may,
and jobs that merge objects are killed at it.

    python -m tests.simulation.run history --seed 17

Somebody appends all the time; segments are exported, merged, released and trimmed meanwhile. In the end
everything is well again, and then: each acknowledged record is read back, in order, once; every descriptor
has an object that is intact; no segment lost its copies before it was published; and what nobody names goes.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Self
from unittest import mock

from ister.errors import IsterError
from ister.frame import frames_in
from ister.history.format import read_footer
from ister.history.names import parse_name
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.topics import HistoryObject
from ister.testing.cluster import World
from ister.testing.object_store import LOST_RACE, THROTTLED, TIMED_OUT
from tests.history.merging_helpers import compact
from tests.replication.repair_helpers import newest, until
from tests.simulation.seeded import SeededRun, Summary

SECONDS = 60.0
TOPICS = {
    "one": {"segment_records": 5, "replicas": 1},
    "three": {"segment_records": 7, "replicas": 3},
    "short": {"segment_records": 5, "replicas": 2, "retention_ms": 20_000},
}
SETTINGS = {"local_retention_ms": 5_000, "export_after_ms": 10_000, "monitor_check_ms": 2_000}


@dataclass
class Told:
    """What one run came to."""

    acknowledged: int
    published: int
    released: int
    trimmed: int
    kills: int
    struck: int
    merged: int
    """Merged objects that were named."""


class Run:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = Random(seed)
        self.acknowledged: dict[str, list[tuple[int, bytes]]] = {name: [] for name in TOPICS}
        self.is_over = False
        self.kills = 0
        self.merged = 0

    async def play(self) -> Told:
        world = self.world
        assert world.store is not None
        async with world.connect() as log:
            for name, settings in TOPICS.items():
                await log.create_topic(name, **settings)
        tasks = [asyncio.ensure_future(self._append(name)) for name in TOPICS]
        tasks.append(asyncio.ensure_future(self._break_the_store()))
        tasks.append(asyncio.ensure_future(self._kill()))
        tasks.append(asyncio.ensure_future(self._watch()))
        tasks += [asyncio.ensure_future(self._merge(f"job-{number}")) for number in range(2)]
        await asyncio.sleep(SECONDS)
        self.is_over = True
        await asyncio.gather(*tasks)
        struck = sum(rule.struck for rule in self._rules)
        world.store.faults.clear()
        for node in world.nodes.values():
            if not node.is_up:
                await node.start(bootstrap_cluster=False)
        await world.settle()
        await until(self._is_done, seconds=3000)
        told = await self._check(struck)
        await until(self._is_swept, seconds=6000)
        return told

    # What happens.

    async def _append(self, topic: str) -> None:
        number = 0
        while not self.is_over:
            value = b"%s %d" % (topic.encode(), number)
            number += 1
            with suppress(IsterError):
                async with self.world.connect(retry_deadline_s=10.0) as log:
                    found = await log.append(topic, [value])
                    self.acknowledged[topic].append((found.base_offset, value))
            await asyncio.sleep(self.random.uniform(0.05, 0.6))

    async def _merge(self, name: str) -> None:
        """A job that merges objects again and again, beside another one, and is killed at it."""
        world, random = self.world, self.random
        assert world.store is not None
        while not self.is_over:
            store = world.store.client(name)
            topic, size = random.choice(list(TOPICS)), random.choice([2_000, 20_000])
            with suppress(IsterError, TimeoutError):
                async with world.connect(retry_deadline_s=10.0) as log:
                    work = compact(log, store, topic, size)
                    told = await asyncio.wait_for(work, random.uniform(0.1, 10.0))
                    self.merged += sum(not one.problem for one in told)
            store.kill()
            await asyncio.sleep(random.uniform(0.5, 5.0))

    async def _break_the_store(self) -> None:
        world, random = self.world, self.random
        assert world.store is not None
        self._rules = []
        while not self.is_over:
            operation = random.choice(["put", "piece", "get", "head", "list", "delete", "sweep"])
            error, applied = random.choice(
                [(errno.EIO, False), (THROTTLED, False), (TIMED_OUT, False), (TIMED_OUT, True)]
                + ([(LOST_RACE, False)] if operation == "put" else [])
            )
            if random.random() < 0.3:
                rule = world.store.faults.add(operation, delay=random.uniform(0.1, 3.0), probability=0.5)
            else:
                rule = world.store.faults.add(
                    operation, error=error, applied=applied, probability=random.choice([0.2, 0.6, 1.0])
                )
            self._rules.append(rule)
            await asyncio.sleep(random.uniform(0.5, 5.0))
            world.store.faults.remove(rule)
            await asyncio.sleep(random.uniform(0.0, 3.0))

    async def _kill(self) -> None:
        world, random = self.world, self.random
        while not self.is_over:
            await asyncio.sleep(random.uniform(2.0, 10.0))
            node = random.choice(list(world.nodes.values()))
            node.kill(power=random.random() < 0.5)
            self.kills += 1
            await asyncio.sleep(random.uniform(0.2, 5.0))
            await node.start(bootstrap_cluster=False)

    async def _watch(self) -> None:
        """At every moment: nobody is without copies who is not published, and what is published is there."""
        while not self.is_over:
            for node in self.world.up:
                for topic in node.broker.metadata.state.topics.values():
                    for segment in topic.segments:
                        assert segment.replicas or segment.history is not None, topic.key_of(segment)
                        if segment.history is not None:
                            self._look_at(topic, segment)
            await asyncio.sleep(0.5)

    # What holds.

    def _look_at(self, topic: TopicState, segment: SegmentState) -> None:
        assert self.world.store is not None and segment.history is not None
        current = newest(self.world).broker.metadata.state.topic_by_uid(topic.uid)
        if current is None or segment.uid not in [one.uid for one in current.segments]:
            return  # trimmed, and this node has not heard of it
        data = self.world.store.peek(segment.history.name)
        data = part_of(data, segment.history)
        footer = read_footer(data, segment.history.size, segment.history.name)
        assert (footer.segment_uid, footer.end_offset) == (segment.uid, segment.data_end)

    def _topics(self) -> list[TopicState]:
        return [newest(self.world).topic(name).state for name in TOPICS]

    def _is_done(self) -> bool:
        return all(one.is_released or one.is_empty for topic in self._topics() for one in topic.segments[:-1])

    def _is_swept(self) -> bool:
        assert self.world.store is not None
        stored = {name for name in self.world.store.stored() if parse_name(name) is not None}
        topics = self._topics()
        return stored == {one.history.name for t in topics for one in t.segments if one.history is not None}

    async def _check(self, struck: int) -> Told:
        published = released = trimmed = 0
        for topic in self._topics():
            name = topic.name.partition("/")[2]
            for node in self.world.up:
                async with self.world.connect(node.node_id) as log:
                    read = {record.offset: record.value async for record in log.read(name)}
            # Retention goes on: where nothing is left to read, it is what was trimmed up to by now.
            first = min(read, default=newest(self.world).topic(name).state.start_offset)
            assert list(read) == list(range(first, first + len(read))), "a gap"
            values = list(read.values())
            assert len(set(values)) == len(values), "a record twice"
            for offset, value in self.acknowledged[name]:
                assert offset < first or read.get(offset) == value, (name, offset, value)
            published += sum(one.history is not None for one in topic.segments)
            released += sum(one.is_released for one in topic.segments)
            trimmed += topic.segments[0].segment - 1
            for segment in topic.segments:
                if segment.history is not None:
                    self._check_object(segment, read)
        acknowledged = sum(map(len, self.acknowledged.values()))
        return Told(acknowledged, published, released, trimmed, self.kills, struck, self.merged)

    def _check_object(self, segment: SegmentState, read: dict[int, bytes | None]) -> None:
        assert self.world.store is not None and segment.history is not None
        data = self.world.store.peek(segment.history.name)
        data = part_of(data, segment.history)
        footer = read_footer(data, segment.history.size, segment.history.name)
        for frame in frames_in(data[: footer.frames_size]):
            for record in frame.records():
                assert read.get(record.offset, record.value) == record.value


def part_of(data: bytes, found: HistoryObject) -> bytes:
    """What a descriptor says that a segment has of an object."""
    assert len(data) == (found.stored_size or found.size), found
    return data[found.position : found.position + found.size]


@dataclass(kw_only=True)
class HistorySummary(Summary):
    """Of a run with a history."""

    told: Told

    def check_worth(self) -> None:
        told = self.told
        assert told.acknowledged > 20 and told.kills and told.struck, self
        assert told.released and told.trimmed and told.merged, self

    @classmethod
    def rows(cls, runs: Sequence[Self]) -> dict[str, str]:
        told = [vars(run.told) for run in runs]
        return super().rows(runs) | {
            f"segments {name}": f"{sum(one[name] for one in told):,}"
            for name in ("published", "merged", "released", "trimmed")
        }


class HistoryRun(SeededRun[HistorySummary]):
    world = "history"
    about = (
        "Three brokers with a history in a store a seed, jobs that merge its objects, and what goes wrong "
        "with them; the checkers and the faults are in `tests/history/world.py`. Moves and drains over "
        "such a history, and all other faults, are in the world of moves."
    )
    limit_seconds = 20_000

    async def play(self) -> HistorySummary:
        world = World(self.loop, SETTINGS, has_store=True)
        with mock.patch("ister.history.sweeping.REPLACED_SECONDS", 30.0):
            await world.grow(3)
            try:
                told = await Run(world, self.loop.seed).play()
            finally:
                for node in world.up:
                    node.kill()
        fields = self._summary_fields({"kill": told.kills, "store_request_failed": told.struck}, told.kills)
        fields["operations"] = fields["records"] = told.acknowledged
        return HistorySummary(**fields, told=told)
