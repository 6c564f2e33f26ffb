"""Kafka: one KRaft node and its own client, both warm, at the settings that its documents give.

The jars come from Maven Central into a cache directory, when the person asks for it (`install.sh`); this file
only looks whether they are there. `append` has flush.messages=1 and acks=all: each batch is synced before it
is acknowledged, as the others are. `..._unsynced` is the same without the flush, as Kafka is usually run.
Each is run once to warm up, then timed. Segments are as large as Ister's, so that both pass from one to the
next.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.peers.kafka_load import (
    AS_KAFKA_STARTS_IT,
    BATCH_BYTES,
    LINGER_MS,
    KafkaLoad,
    can_compile,
    jars_directory,
    running_load,
    tool,
)
from bench.peers.peer import Found, Missing, beside_raw, free_port, large_work, server
from ister.bench.figures import Fields, Repetition, rounded, summarise
from ister.bench.target import peak_rss_bytes
from ister.bench.workload import Workload

SYNCED: Final = ("flush.messages=1",)
SEGMENTS: Final = ("segment.bytes=268435456", "file.delete.delay.ms=1000")
SETTINGS: Final = f"acks=all, batch.size {BATCH_BYTES:,}, linger.ms {LINGER_MS}"
PARTITIONS: Final = 3


class Part(NamedTuple):
    """One thing to measure, flushed and not."""

    name: str
    work: Workload
    partitions: int = 1


class Kafka:
    name = "kafka"

    def find(self) -> Found | Missing:
        core = sorted(jars_directory().glob("kafka_2.13-*.jar"))
        if not core or not can_compile():
            return Missing("sh bench/peers/install.sh kafka (needs a JDK of 17 or newer, and mvn)")
        version = core[-1].stem.rpartition("-")[2]
        return Found(version, f"one KRaft node, {SETTINGS}, flush.messages=1")

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        port, controller = free_port(), free_port()
        config = write_config(directory, port, controller)
        format_storage(config, new_cluster_id())
        parts = (
            Part("append", work),
            Part("append_three", work, PARTITIONS),
            Part("append_1k", large_work(work)),
            Part("latency", lone),
        )
        with (
            server(broker(config), directory, port) as process_id,
            running_load(f"127.0.0.1:{port}", directory) as load,
        ):
            return measure_parts(
                load, parts, [process_id], lambda asked: partial(beside_raw, asked, directory=directory)
            )


def measure_parts(
    load: KafkaLoad,
    parts: Sequence[Part],
    process_ids: Sequence[int],
    beside: Callable[[Workload], Callable[[float, list[float]], Repetition]],
    *,
    replicas: int = 1,
    options: Sequence[str] = (),
) -> dict[str, Fields]:
    results: dict[str, Fields] = {}
    for part in parts:
        for suffix, synced in (("", SYNCED), ("_unsynced", ())):
            topic = f"bench-{part.name}{suffix}".replace("_", "-")
            load.create_topic(
                topic, (*synced, *SEGMENTS, *options), partitions=part.partitions, replicas=replicas
            )
            results[part.name + suffix] = measure(
                load, topic, part.work, process_ids, beside(in_its_batches(part.work))
            )
            load.delete_topic(topic)
    return results


def measure(
    load: KafkaLoad,
    topic: str,
    work: Workload,
    process_ids: Sequence[int],
    beside: Callable[[float, list[float]], Repetition],
) -> Fields:
    """Once to warm up, then timed. `beside` adds the bare loop to what was measured."""
    produce = load.lone if work.batch_records == 1 else load.batches
    produce(topic, work.total_records, work.size)
    runs, repetitions = [], []
    for _ in range(work.repeats):
        run = produce(topic, work.total_records, work.size)
        runs.append(run)
        repetitions.append(beside(run.seconds, [run.p50_ms / 1000]))
    percentiles = {
        name: rounded(median(getattr(run, name) for run in runs)) for name in ("p50_ms", "p99_ms", "p999_ms")
    }
    return {**summarise(repetitions, max(map(peak_rss_bytes, process_ids))), **percentiles}


def in_its_batches(work: Workload) -> Workload:
    """For the bare loop: what Kafka syncs is a batch of its client's making."""
    if work.batch_records == 1:
        return work
    return replace(work, batch=max(BATCH_BYTES // work.size, 1), in_flight=1)


def broker(config: Path) -> list[str]:
    return tool("kafka.Kafka", str(config), memory="1g", options=("-Xms1g", *AS_KAFKA_STARTS_IT))


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
    command = tool("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(config))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"Kafka's storage was not formatted: {(done.stdout + done.stderr)[-1000:]}")
