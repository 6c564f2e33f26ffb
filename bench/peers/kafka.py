"""Kafka: one KRaft node, driven by its own ProducerPerformance, with and without a sync for each write.

The jars come from Maven Central into a cache directory, when the person asks for it (`install.sh`); this file
only looks whether they are there. `append` has flush.messages=1 and acks=all: synced before it is
acknowledged, as the others are. `append_unsynced` is Kafka as it is usually run. Lone records go one to a
request and one request at a time, as fast as they are answered; their latencies are of another run, at a
hundred a second, and in whole milliseconds: the tool has no finer ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.peers.peer import Found, Missing, beside_raw, free_port, server
from ister.bench.figures import Fields, Repetition, rounded, summarise
from ister.bench.target import peak_rss_bytes
from ister.bench.workload import Workload

LONE_PER_SECOND = 100
SYNCED = ("--config", "flush.messages=1")
_LAST_LINE = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?"
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99.9th",
    re.MULTILINE,
)


def jars_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "ister-bench" / "kafka"


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


class Kafka:
    name = "kafka"

    def find(self) -> Found | Missing:
        core = sorted(jars_directory().glob("kafka_2.13-*.jar"))
        if not core or java() is None:
            return Missing("sh bench/peers/install.sh kafka (needs Java 17 and mvn)")
        version = core[-1].stem.rpartition("-")[2]
        return Found(version, "one KRaft node, acks=all, flush.messages=1")

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        port, controller = free_port(), free_port()
        bootstrap = f"127.0.0.1:{port}"
        config = write_config(directory, port, controller)
        format_storage(config, new_cluster_id())
        with server(tool("kafka.Kafka", str(config), memory="1g"), directory, port) as process_id:
            results: dict[str, Fields] = {}
            for mode, asked, options in (
                ("append", work, SYNCED),
                ("append_unsynced", work, ()),
                ("latency", lone, SYNCED),
            ):
                topic = f"bench-{mode}"
                create_topic(topic, bootstrap, options)
                results[mode] = measure(
                    topic,
                    bootstrap,
                    asked,
                    [process_id],
                    partial(beside_raw, asked, directory=directory),
                    lone=mode == "latency",
                )
            return results


def tool(main: str, *arguments: str, memory: str = "512m") -> list[str]:
    program = java()
    assert program is not None
    return [program, f"-Xmx{memory}", "-cp", f"{jars_directory()}/*", main, *arguments]


def call(main: str, *arguments: str) -> str:
    done = subprocess.run(tool(main, *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{main} failed: {(done.stdout + done.stderr)[-1000:]}")
    return done.stdout


def write_config(directory: Path, port: int, controller: int, **more: str) -> Path:
    """One node that is broker and controller, alone unless `more` says otherwise."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "logs"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def new_cluster_id() -> str:
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def format_storage(config: Path, cluster: str) -> None:
    call("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(config))


def create_topic(
    topic: str, bootstrap: str, options: tuple[str, ...], *, partitions: int = 1, replicas: int = 1
) -> None:
    call(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", bootstrap, "--create", "--topic", topic),
        *("--partitions", str(partitions), "--replication-factor", str(replicas), *options),
    )


def measure(
    topic: str,
    bootstrap: str,
    work: Workload,
    process_ids: Sequence[int],
    beside: Callable[[float, list[float]], Repetition],
    *,
    lone: bool,
) -> Fields:
    """The tool's own figures: it says how many records a second, and the latencies. `beside` is given both,
    and adds the bare loop."""
    settings = (
        {"linger.ms": 0, "batch.size": 0} if lone else {"linger.ms": 5, "batch.size": batch_bytes(work)}
    )
    settings["max.in.flight.requests.per.connection"] = 1 if lone else 5
    produce(topic, bootstrap, work, settings)  # the virtual machine compiles what it runs often
    runs = [produce(topic, bootstrap, work, settings) for _ in range(work.repeats)]
    repetitions = [beside(work.total_records / run["rate"], [run["p50"] / 1000]) for run in runs]
    paced = [produce(topic, bootstrap, work, settings, per_second=LONE_PER_SECOND)] if lone else runs
    percentiles = {
        f"{name}_ms": rounded(median(run[name] for run in paced)) for name in ("p50", "p99", "p999")
    }
    return {**summarise(repetitions, max(map(peak_rss_bytes, process_ids))), **percentiles}


def batch_bytes(work: Workload) -> int:
    return work.batch_records * (work.size + 16)


def produce(
    topic: str, bootstrap: str, work: Workload, settings: dict[str, int], *, per_second: int = -1
) -> dict[str, float]:
    properties = [
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        f"max.request.size={max(batch_bytes(work) * 2, 1 << 20)}",
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    said = call(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(work.total_records), "--record-size", str(work.size)),
        *("--throughput", str(per_second), "--producer-props", *properties),
    )
    found = list(_LAST_LINE.finditer(said))
    if not found:
        raise RuntimeError(f"ProducerPerformance said what nobody can read: {said[-500:]}")
    return {name: float(found[-1][name]) for name in ("rate", "p50", "p99", "p999")}
