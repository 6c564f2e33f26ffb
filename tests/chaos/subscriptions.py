"""`python -m tests.chaos.subscriptions --seconds 60 [--seed S]`: consumers and brokers, killed.

Eight consumer processes share a subscription of a cluster of three real nodes, while a producer appends and
consumers and nodes are killed (kill -9) and started again. In the end each record was delivered and
acknowledged; each that came more than once says so, but for what a node delivers that has not heard yet that
it was replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.nodes import ClusterProcesses, running_cluster

import ister
from ister.errors import IsterError

CONSUMERS = 8
SETTLE_SECONDS = 90.0
CONSUMER = """
import asyncio, sys
import ister

async def main(bootstrap, path):
    with open(path, "a", buffering=1) as seen:
        while True:
            try:
                async with ister.connect(bootstrap, request_timeout_s=5) as log:
                    subscription = log.subscribe("t", "s", kind="shared", window=200)
                    async for batch in subscription.batches():
                        seen.write(f"{batch.start} {batch.end} {int(batch.may_repeat)}\\n")
                        await batch.ack()
            except ister.IsterError as error:
                print(error, file=sys.stderr)
                await asyncio.sleep(0.2)

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Result:
    seed: int
    records: int = 0
    killed_consumers: int = 0
    killed_nodes: int = 0
    repeats: int = 0
    unmarked: int = 0
    epochs: int = 0

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.records:,} records, all delivered and acknowledged; "
            f"{self.killed_consumers} consumers and {self.killed_nodes} nodes killed, {self.epochs} owners; "
            f"{self.repeats:,} repeats, {self.unmarked:,} of them not marked"
        )


class Place:
    """Where one consumer after another is."""

    def __init__(self, bootstrap: str, path: Path) -> None:
        self.path = path
        self._bootstrap = bootstrap
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = self.path.with_suffix(".err")
        with words.open("ab") as errors:
            command = [sys.executable, "-c", CONSUMER, self._bootstrap, str(self.path)]
            self._process = subprocess.Popen(command, stderr=errors)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def run(seconds: float, seed: int, directory: Path) -> Result:
    result, chance = Result(seed), random.Random(seed)
    settings = {"replicas": 3, "monitor_check_ms": 200, "log_level": "info"}
    with running_cluster(directory, settings) as cluster:
        await cluster.wait_whole()
        places = [Place(cluster.bootstrap, directory / f"consumer-{number}") for number in range(CONSUMERS)]
        try:
            async with ister.connect(cluster.bootstrap, request_timeout_s=5) as log:
                await log.create_topic("t", segment_records=20_000)
                await log.create_subscription("t", "s", kind="shared", start="earliest")
                for place in places:
                    place.start()
                until = time.monotonic() + seconds
                appending = asyncio.create_task(append(log, until))
                while time.monotonic() < until:
                    await asyncio.sleep(chance.uniform(0.3, 1.5))
                    if chance.random() < 0.75:
                        place = chance.choice(places)
                        place.kill()
                        place.start()
                        result.killed_consumers += 1
                    else:
                        await kill_node(cluster, chance)
                        result.killed_nodes += 1
                result.records = await appending
                await wait_acknowledged(log, result)
        finally:
            for place in places:
                place.kill()
    judge(result, [place.path for place in places])
    return result


async def append(log: ister.Log, until: float) -> int:
    records = 0
    while time.monotonic() < until:
        appended = await log.append("t", [b"x" * 100] * 100)
        records = appended.base_offset + appended.count
        await asyncio.sleep(0.02)
    return records


async def kill_node(cluster: ClusterProcesses, chance: random.Random) -> None:
    node = chance.choice(list(cluster.nodes.values()))
    node.kill()
    await asyncio.sleep(chance.uniform(0.5, 2.0))
    await asyncio.to_thread(node.start)


async def wait_acknowledged(log: ister.Log, result: Result) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    cursor = -1
    while time.monotonic() < deadline:
        try:
            (found,) = await log.subscriptions("default/t")
        except IsterError:
            continue
        cursor, result.epochs = found.cursor, found.epoch
        if cursor == result.records:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(
        f"the cursor stays at {cursor} of {result.records}, {SETTLE_SECONDS:.0f} s after all is well"
    )


def judge(result: Result, paths: list[Path]) -> None:
    """By what the consumers themselves have written down."""
    times: Counter[int] = Counter()
    unmarked: Counter[int] = Counter()
    for path in paths:
        if not path.exists():
            continue
        for line in path.read_text().splitlines():
            start, end, may_repeat = map(int, line.split())
            times.update(range(start, end))
            if not may_repeat:
                unmarked.update(range(start, end))
    missing = set(range(result.records)) - set(times)
    assert not missing, f"never delivered: {sorted(missing)[:20]} and more, {len(missing)} in all"
    result.repeats = sum(count - 1 for count in times.values())
    result.unmarked = sum(count - 1 for count in unmarked.values() if count > 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.subscriptions", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        print(asyncio.run(run(chosen.seconds, chosen.seed, Path(directory))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
