"""`python -m tests.chaos.spark --kills 20 [--seed S] [--report FILE]`: a query and its brokers are killed.

Two topics of numbered records grow while a stream query of Spark writes them to a third, exactly once. Its
driver (Python and JVM) and the brokers are killed with kill -9 at random moments; the driver comes back with
another number of partitions. In the end the target is read with the plain client: each number of each source
is there once, and in order.

The seed decides who dies when; the machine decides the rest, so a seed makes a failure likely to show again,
and not certain to.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster.nodes import NodeProcess, running_cluster

import ister
from ister.errors import UnknownTopic
from ister.testing.checkers import Violation
from tests.chaos.spark_driver import Driver

SOURCES = ("left", "right")
TARGET = "both"
RECORDS_A_TURN = 10
SETTINGS = {"segment_records": 1500, "monitor_check_ms": 200, "log_level": "warning"}
PROGRESS_S = 180.0
AHEAD = 3000
"""So many records the sources are ahead of the target at most, however slow the machine is."""
_TURN_S = 0.1
_LOOK_S = 0.2


@dataclass
class Result:
    """What a run was worth."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    batches: int = 0
    gave_up: int = 0
    """How often a query failed by itself while a broker was away, and was started again."""
    records: int = 0
    seconds: float = 0.0


class SparkChaos:
    def __init__(self, nodes: list[NodeProcess], bootstrap: str, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.result = Result(seed)
        self._nodes = nodes
        self._bootstrap = bootstrap
        self._directory = directory
        self._driver: Driver | None = None
        self._sent = dict.fromkeys(SOURCES, 0)
        self._written = 0
        self._is_over = False

    async def run(self, kills: int) -> Result:
        began = time.monotonic()
        async with self._connect() as log:
            for topic in SOURCES:
                await log.create_topic(topic)
        writers = [asyncio.create_task(self._write(topic)) for topic in SOURCES]
        try:
            self._start()
            for number in range(kills):
                await self._progress()
                await asyncio.sleep(self.random.random() * 2)
                await (self._kill_broker if number % 3 == 2 else self._kill_driver)()
            self._is_over = True
            await asyncio.gather(*writers)
            await self._caught_up()
        finally:
            for writer in writers:
                writer.cancel()
            if self._driver is not None:
                self._driver.kill()
        await self._judge()
        self.result.seconds = time.monotonic() - began
        return self.result

    def _connect(self) -> ister.Log:
        return ister.connect(self._bootstrap, request_timeout_s=5, retry_deadline_s=60)

    async def _write(self, topic: str) -> None:
        async with self._connect() as log:
            while not self._is_over:
                await asyncio.sleep(_TURN_S)
                if sum(self._sent.values()) > self._written + AHEAD:
                    continue
                first = self._sent[topic]
                values = [b"%s-%d" % (topic.encode(), first + number) for number in range(RECORDS_A_TURN)]
                await log.append(topic, values)
                self._sent[topic] += len(values)

    # Dying.

    def _start(self) -> None:
        self.result.starts += 1
        partitions = self.random.choice((1, 2, 3))
        self._driver = Driver(
            self._bootstrap, ",".join(SOURCES), TARGET, self._directory, partitions=partitions
        )

    async def _kill_driver(self) -> None:
        assert self._driver is not None
        await asyncio.to_thread(self._driver.kill)
        self.result.kills["driver"] += 1
        self._start()

    async def _kill_broker(self) -> None:
        node = self.random.choice(self._nodes)
        await asyncio.to_thread(node.kill)
        self.result.kills["broker"] += 1
        await asyncio.sleep(self.random.random() * 3)
        await asyncio.to_thread(node.start)

    async def _progress(self) -> None:
        """Wait until the query has written something since now; or, one time in four, do not."""
        if self.random.random() < 0.25:
            await asyncio.sleep(self.random.random() * 10)
            return
        before = await self._end()
        await self._until(lambda end: end > before, "wrote nothing")

    async def _caught_up(self) -> None:
        total = sum(self._sent.values())
        await self._until(lambda end: end >= total, f"did not write all {total} records")
        await asyncio.sleep(2)  # whatever is too much comes now

    async def _until(self, holds: Callable[[int], bool], what: str) -> None:
        assert self._driver is not None
        last, deadline = -1, time.monotonic() + PROGRESS_S
        while not holds(end := await self._end()):
            if (
                self._driver.has_ended
            ):  # a query may give up on a broker that is away; whoever runs it starts it
                self.result.gave_up += 1
                self._start()
            if end > last:
                last, deadline = end, time.monotonic() + PROGRESS_S
            if time.monotonic() > deadline:
                said = self._driver.last_words()
                raise Violation(
                    "liveness", f"the query {what}: for {PROGRESS_S:g} s the target is at {end}:\n{said}"
                )
            await asyncio.sleep(_LOOK_S)

    async def _end(self) -> int:
        async with self._connect() as log:
            try:
                self._written = await log.offsets_at(TARGET, "latest")
                return self._written
            except UnknownTopic:
                return 0

    # Judgement: by reading, not by what the sink says of itself.

    async def _judge(self) -> None:
        found: dict[str, list[int]] = {topic: [] for topic in SOURCES}
        async with self._connect() as log:
            async for record in log.read(TARGET):
                source, _, number = (record.value or b"").decode().partition("-")
                found[source].append(int(number))
            for source, numbers in found.items():
                self._check(source, numbers)
            (ledger,) = [there.topic for there in await log.list_topics("_spark/") if "ledger" in there.topic]
            self.result.batches = await log.offsets_at(ledger, "latest") // 2
        self.result.records = sum(map(len, found.values()))

    def _check(self, source: str, numbers: list[int]) -> None:
        sent = self._sent[source]
        counts = Counter(numbers)
        twice = sorted(number for number, count in counts.items() if count > 1)
        missing = sorted(set(range(sent)) - counts.keys())
        if twice or missing or len(numbers) != sent:
            raise Violation(
                "exactly_once",
                f"of {sent} records of {source}, {len(missing)} are missing ({missing[:5]}...) and "
                f"{len(twice)} are there more than once ({twice[:5]}...)",
            )
        if numbers != sorted(numbers):
            at = next(at for at in range(1, sent) if numbers[at] < numbers[at - 1])
            raise Violation(
                "order", f"{source} has {numbers[at]} behind {numbers[at - 1]}, at its place {at}"
            )


def run_spark(kills: int, seed: int, directory: Path | None = None) -> Result:
    """All of it, in a directory of its own unless one is given; raises `Violation` if a promise is broken."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ister-spark-chaos-")))
        cluster = stack.enter_context(running_cluster(directory, SETTINGS))
        asyncio.run(cluster.wait_whole())
        return asyncio.run(
            SparkChaos(list(cluster.nodes.values()), cluster.bootstrap, directory, seed).run(kills)
        )


def report(result: Result) -> str:
    lines = [
        "# Chaos of a stream query: the last full run",
        "",
        "Written by `python -m tests.chaos.spark --report`: two topics of numbered records, growing; a query",
        "of Spark that writes them to a third, exactly once; three real brokers. The driver (Python and JVM)",
        "and the brokers were killed with kill -9 at random moments. Then the target was read with the plain",
        "client, and its numbers counted.",
        "",
        "| | |",
        "|---|---|",
        f"| seed | {result.seed} |",
        *(f"| kills of a {who} | {count} |" for who, count in sorted(result.kills.items())),
        f"| starts of the driver | {result.starts} |",
        f"| ends of the query by itself, a broker being away | {result.gave_up} |",
        f"| batches | {result.batches:,} |",
        f"| records | {result.records:,} |",
        f"| wall time | {result.seconds:.0f} s |",
        "| result | each number once, in the order of its source |",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.spark", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--directory", type=Path, help="an empty one, to keep files and logs in")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    print(f"spark chaos seed {seed}, {options.kills} kills", flush=True)
    try:
        result = run_spark(options.kills, seed, options.directory)
    except (Exception, KeyboardInterrupt):
        traceback.print_exc()
        print(f"FAILED; again: python -m tests.chaos.spark --kills {options.kills} --seed {seed}")
        return 1
    print(
        f"clean in {result.seconds:.0f} s: {dict(result.kills)} killed, {result.batches} batches, "
        f"{result.records} records, each once"
    )
    if options.report is not None:
        options.report.write_text(report(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
