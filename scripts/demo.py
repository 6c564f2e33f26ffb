"""The main job, end to end: a broker, a kill -9, three of them, a lost disk, consumers, then Spark.

Everything runs on loopback, on free ports, in a temporary directory that is removed at the end. Exits with 1,
loudly, if a single acknowledged record is lost or comes twice. `--no-spark` leaves the Spark part out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path

from demo_subscription import share_out

import ister

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "orders"
PRODUCERS = 3
BATCH = 500
RUN_SECONDS = 6.0
KILL_AFTER_SECONDS = 2.5
DOWN_SECONDS = 0.5
CLUSTER_SECONDS = 6.0
MOVE_SECONDS = 4.0
MOVES = 4
NODES = 3

BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


def say(step: str, why: str = "") -> None:
    """One line for each step: what happens, and why it matters."""
    print(f"{BOLD}==> {step}{PLAIN}{DIM}{'  ' + why if why else ''}{PLAIN}", flush=True)


def ister_command() -> str:
    return str(Path(sys.executable).with_name("ister"))


class BrokerProcess:
    """`ister serve` as a person would run it, with its log kept aside."""

    def __init__(self, directory: Path, node_id: int = 1) -> None:
        self._node_id = node_id
        self._log_path = directory / f"broker-{node_id}.log"
        self._log = self._log_path.open("ab")
        self._data = directory / f"data-{node_id}"
        self._history = f"file://{directory}/history"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.peer_port = -1

    def start(self, *more: str) -> None:
        """Again with the same ports; `more` are further options."""
        command = [ister_command(), "serve", "--output", "json"]
        command += ["--node-id", str(self._node_id), "--admin-port", "-1", "--client-port", str(self.port)]
        command += ["--data-dir", str(self._data), *more]
        command += ["--set", "storage_mode=shared_fs", "--set", f"storage_url={self._history}"]
        if self.peer_port >= 0:
            command += ["--peer-port", str(self.peer_port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the broker did not start; its log says:\n{self.tail()}")
        ready = json.loads(line)
        self.port, self.peer_port = int(ready["client_port"]), int(ready["peer_port"])

    def tail(self) -> str:
        self._log.flush()
        return self._log_path.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """kill -9: no chance to write, sync or say goodbye."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def lose_disk(self) -> None:
        """All that it ever had; it must be dead."""
        shutil.rmtree(self._data)

    def end(self) -> None:
        """SIGTERM: it finishes what it has accepted."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=30)

    def stop(self) -> None:
        self.end()
        self._log.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Story:
    """What was acknowledged, what the live tail saw, and the longest time without an acknowledgement."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.tailed: list[int] = []
        self.longest_stall = 0.0
        self.last = time.monotonic()
        """When something was acknowledged last."""
        self.writing_seconds = 0.0

    def note(self, offsets: range, values: list[bytes]) -> None:
        now = time.monotonic()
        self.longest_stall = max(self.longest_stall, now - self.last)
        self.last = now
        for offset, value in zip(offsets, values, strict=True):
            if offset in self.acknowledged:
                raise SystemExit(f"LOST: offset {offset} was given out twice")
            self.acknowledged[offset] = value


async def write(log: ister.Log, name: str, story: Story, seconds: float) -> None:
    """All producers at once; returns when everything is acknowledged."""
    story.last = began = time.monotonic()
    await asyncio.gather(*(produce(log, f"{name}{n}", story, began + seconds) for n in range(PRODUCERS)))
    story.writing_seconds += time.monotonic() - began


async def produce(log: ister.Log, name: str, story: Story, until: float) -> None:
    number = 0
    async with log.producer(TOPIC) as producer:
        while time.monotonic() < until:
            values = [
                b'{"order": "%s-%d", "cents": %d}' % (name.encode(), number + i, i % 997)
                for i in range(BATCH)
            ]
            offsets = await producer.send_many(values)
            story.note(range(offsets[0], offsets[-1] + 1), values)
            number += BATCH
            await asyncio.sleep(0.01)


async def follow(log: ister.Log, story: Story) -> None:
    async for record in log.read(TOPIC, follow=True):
        if story.tailed and record.offset != story.tailed[-1] + 1:
            raise SystemExit(f"LOST: the tail went from offset {story.tailed[-1]} to {record.offset}")
        story.tailed.append(record.offset)


async def progress(story: Story) -> None:
    shown = 0
    while True:
        await asyncio.sleep(1)
        count = len(story.acknowledged)
        if count != shown:
            print(f"    {count:>9,} acknowledged   {len(story.tailed):>9,} seen by the live tail", flush=True)
        shown = count


async def tell(brokers: list[BrokerProcess]) -> Story:
    broker, story = brokers[0], Story()
    async with ister.connect(broker.address) as log:
        await log.create_topic(TOPIC, segment_records=100_000)
        say(f"{PRODUCERS} producers write to {TOPIC!r}, a reader follows live", "acknowledged means on disk")
        work = asyncio.create_task(write(log, "p", story, RUN_SECONDS))
        watch = [asyncio.create_task(follow(log, story)), asyncio.create_task(progress(story))]
        await asyncio.sleep(KILL_AFTER_SECONDS)
        say("kill -9 of the broker, in full flight", "no warning, no flush, no goodbye")
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(DOWN_SECONDS)
        say("the broker starts again on the same directory", "the clients retry by themselves")
        await asyncio.to_thread(broker.start)
        await work
        await grow(log, brokers)
        say(f"the producers go on, now with {NODES} nodes", "acknowledged means on the disks of two of them")
        work = asyncio.create_task(write(log, "q", story, CLUSTER_SECONDS))
        await asyncio.sleep(KILL_AFTER_SECONDS)
        await lose_the_leader(log, brokers, story)
        await work
        await show_health(brokers, "--exit-when-healthy", "--nodes", str(NODES), "--timeout", "60s")
        await move_about(log, story)
        async with asyncio.timeout(60):
            while len(story.tailed) < len(story.acknowledged):
                if watch[0].done():
                    watch[0].result()
                await asyncio.sleep(0.05)
        for task in watch:
            task.cancel()
        entries = (await log.history(TOPIC)).entries
        released = sum(entry.state == "published" and not entry.replicas for entry in entries)
        say(
            f"reading everything back, {released} of {len(entries)} segments from the history",
            "a shared directory here; offset by offset, value by value",
        )
        if not released:
            raise SystemExit("FAILED: after the moves nothing is in the history alone. Please report this.")
        await check(log, story)
        await share_out(log, ",".join(one.address for one in brokers), TOPIC, say)
    return story


async def grow(log: ister.Log, brokers: list[BrokerProcess]) -> None:
    """From one broker to a cluster, on the same directory; the open tail and the topic stay."""
    say("the broker is restarted with a peer port", "same directory, same topics: a cluster of one")
    first = brokers[0]
    await asyncio.to_thread(first.end)
    await asyncio.to_thread(first.start, "--peer-port", "0")
    say(f"{NODES - 1} more join it", f"ister serve --node-id 2 --join 127.0.0.1:{first.peer_port} ...")
    join = f"127.0.0.1:{first.peer_port}"
    for broker in brokers[1:]:
        await asyncio.to_thread(broker.start, "--peer-port", "0", "--join", join)
    async with asyncio.timeout(60):
        while not await are_voters(log):  # noqa: ASYNC110 (what is waited for is other processes)
            await asyncio.sleep(0.1)
    await log.alter_topic(TOPIC, segment_records=20_000)
    say(
        "what one disk had is copied to the others",
        "three replicas are the default: as many as there are nodes",
    )
    await show_health(brokers, "--exit-when-healthy", "--nodes", str(NODES), "--timeout", "60s")


async def lose_the_leader(log: ister.Log, brokers: list[BrokerProcess], story: Story) -> None:
    """For good, with its disk; and a node with its number comes back with nothing."""
    leader = (await log.describe_topic(TOPIC)).segments[-1].leader
    broker = brokers[leader - 1]
    say(
        f"kill -9 of node {leader}, which leads, and its data directory is deleted",
        "as if the machine burned",
    )
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.lose_disk)
    killed = time.monotonic()
    async with asyncio.timeout(60):
        while story.last < killed:  # noqa: ASYNC110 (what is waited for is other processes)
            await asyncio.sleep(0.02)
    took = story.last - killed
    say(f"writing goes on after {took:.1f} s", "another replica took over, with all that was acknowledged")
    await show_health([one for one in brokers if one is not broker])
    say(f"node {leader} starts again, with an empty disk", "its copies are made anew from the others'")
    join = ",".join(f"127.0.0.1:{one.peer_port}" for one in brokers if one is not broker)
    await asyncio.to_thread(broker.start, "--join", join)


async def move_about(log: ister.Log, story: Story) -> None:
    """The topic goes from node to node while it is written; what the producers notice of it."""
    say(f"the topic is moved {MOVES} times while it is written", "ister topic move orders --to 2, and so on")
    before, story.longest_stall = story.longest_stall, 0.0
    work = asyncio.create_task(write(log, "r", story, MOVE_SECONDS))
    for _ in range(MOVES):
        await asyncio.sleep(MOVE_SECONDS / (MOVES + 1))
        found = await log.unload_topic(TOPIC)
        async with asyncio.timeout(60):
            while not found.arrived and not found.is_over:
                await asyncio.sleep(0.02)
                (found,) = await log.moves(move=found.move)
        if not found.arrived:
            raise SystemExit(f"FAILED: move {found.move} {found.stage}: {found.detail}")
        print(f"    node {found.source} to node {found.target} at offset {found.end_offset:,}", flush=True)
    await work
    async with asyncio.timeout(60):
        while not found.is_over:
            await asyncio.sleep(0.1)
            (found,) = await log.moves(move=found.move)
    say(
        f"the longest pause of a producer was {story.longest_stall * 1000:.0f} ms",
        "and no error; what the old leaders had is exported by now, verified, and gone from them",
    )
    story.longest_stall = max(before, story.longest_stall)


async def show_health(brokers: list[BrokerProcess], *more: str) -> None:
    """What a person who asks is told; with `more` that ask to wait, the last thing."""
    print(f"    {DIM}$ {' '.join(['ister', 'cluster', 'health', *more])}{PLAIN}", flush=True)
    command = [ister_command(), "cluster", "health", *more]
    command += ["--bootstrap", ",".join(broker.address for broker in brokers)]
    asking = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    lines = (await asking.communicate())[0].decode().splitlines()
    for line in lines[-1:] if more else lines:
        indent = " " * (4 + len(line) - len(line.lstrip()))
        width = max(60, shutil.get_terminal_size((110, 24)).columns)
        print(textwrap.fill(line.strip(), width, initial_indent=indent, subsequent_indent=indent), flush=True)
    if more and asking.returncode:
        raise SystemExit("FAILED: the copies were not whole again within a minute.")


async def are_voters(log: ister.Log) -> bool:
    return sum(node.role in ("leader", "voter") for node in (await log.cluster()).nodes) == NODES


async def check(log: ister.Log, story: Story) -> None:
    read: dict[int, bytes] = {}
    twice = 0
    async for record in log.read(TOPIC):
        twice += record.offset in read
        read[record.offset] = record.value or b""
    lost = sum(read.get(offset) != value for offset, value in story.acknowledged.items())
    doubled = len(read) - len(set(read.values()))
    segments = (await log.describe_topic(TOPIC)).segments
    kept = [len(one.replicas) - len(one.behind) for one in segments if one.replicas]
    led = Counter(segment.leader for segment in segments)
    rows = [
        ("records acknowledged", f"{len(story.acknowledged):,}"),
        ("read back", f"{len(read):,}"),
        ("lost", f"{lost:,}"),
        ("duplicated", f"{doubled + twice:,}"),
        ("seen by the live tail", f"{len(story.tailed):,}"),
        ("segments", f"{len(segments):,}"),
        ("led by", ", ".join(f"node {node}: {count}" for node, count in sorted(led.items()))),
        ("in the history alone", f"{len(segments) - len(kept):,} segments"),
        ("fewest copies of the others", f"{min(kept)}"),
        ("longest stall of a producer", f"{story.longest_stall:.2f} s (killed, and on again)"),
        ("acknowledged per second", f"{len(story.acknowledged) / story.writing_seconds:,.0f}"),
    ]
    print()
    for name, value in rows:
        print(f"    {name:<30} {value}")
    print()
    if lost or doubled or twice or sorted(read) != list(range(len(read))):
        raise SystemExit("FAILED: an acknowledged record was lost or doubled. Please report this.")


def pipeline_with_spark(brokers: list[BrokerProcess], story: Story, directory: Path) -> None:
    say("waiting for the Spark part of the set-up", "PySpark and, if there is no Java 17, a JRE from PyPI")
    waiting = [sys.executable, str(ROOT / "scripts" / "setup.py"), "full", "--wait"]
    if subprocess.run(waiting, check=False, cwd=ROOT).returncode != 0:
        raise SystemExit(
            "The log's part is done and nothing was lost; the Spark part needs what is missing above."
        )
    from demo_spark import pipeline

    pipeline(brokers, TOPIC, len(story.acknowledged), directory / "lake", say)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--no-spark", action="store_true", help="leave out the Spark part at the end")
    options = arguments.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ister-demo-"))
    brokers = [BrokerProcess(directory, node_id) for node_id in range(1, NODES + 1)]
    try:
        say("starting a broker", "one process; sealed segments go to a shared directory, too")
        brokers[0].start()
        story = asyncio.run(tell(brokers))
        if not options.no_spark:
            pipeline_with_spark(brokers, story, directory)
        say(
            "done: nothing lost, nothing twice",
            "to go on: .venv/bin/ister dev --nodes 3, and .venv/bin/ister --help",
        )
    except KeyboardInterrupt:
        print("\ninterrupted; cleaning up", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        for broker in reversed(brokers):
            broker.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
