"""Kafka with three brokers on this machine: every record on three, acknowledged when all in sync have it.

Three KRaft nodes that are brokers and controllers; `acks=all`, replication factor 3, `min.insync.replicas=2`.
With `flush.messages=1` each replica syncs what it appends; `..._unsynced` is without that, as Kafka is
usually run: then an acknowledged record is in the memory of the brokers, and on no disk yet. A partition of
each broker stands beside a topic of each node, one partition beside one topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.peers.kafka import (
    SETTINGS,
    Kafka,
    Part,
    broker,
    format_storage,
    measure_parts,
    new_cluster_id,
    write_config,
)
from bench.peers.kafka_load import KafkaLoad, running_load
from bench.peers.peer import START_SECONDS, Found, Missing, free_port, large_work, server
from bench.replication.raw import time_copies
from ister.bench.figures import Fields, Repetition
from ister.bench.workload import Workload

BROKERS: Final = (1, 2, 3)
MIN_IN_SYNC: Final = 2
DURABLE: Final = (f"min.insync.replicas={MIN_IN_SYNC}",)


@dataclass(frozen=True)
class Running:
    bootstrap: str
    process_ids: list[int]


class KafkaCluster:
    name = "kafka_replicated"

    def find(self) -> Found | Missing:
        found = Kafka().find()
        if isinstance(found, Missing):
            return found
        how = f"three brokers, replication 3, {SETTINGS}, min.insync.replicas={MIN_IN_SYNC}, flush.messages=1"
        return Found(found.version, how)

    def run(self, work: Workload, lone: Workload, directory: Path) -> dict[str, Fields]:
        large = large_work(work)
        parts = (
            Part("append", work, len(BROKERS)),
            Part("append_one", work),
            Part("append_1k", large, len(BROKERS)),
            Part("append_1k_one", large),
            Part("latency", lone),
        )
        raw = directory / "raw"
        raw.mkdir()
        with running_brokers(directory) as cluster, running_load(cluster.bootstrap, directory) as load:
            wait_for_all(load)
            return measure_parts(
                load,
                parts,
                cluster.process_ids,
                lambda asked: partial(beside_copies, asked, directory=raw),
                replicas=len(BROKERS),
                options=DURABLE,
            )


def beside_copies(work: Workload, seconds: float, latencies: list[float], directory: Path) -> Repetition:
    """With the bare loop on three files."""
    record_bytes = work.total_records * work.size
    cycle = work.batch_records * work.size * min(work.in_flight, work.batch_count)
    raw_seconds = time_copies(directory, record_bytes, cycle)
    return Repetition(work.total_records, record_bytes, seconds, latencies, raw_seconds, cycle)


@contextmanager
def running_brokers(directory: Path) -> Iterator[Running]:
    """All three take connections; they may still have to find each other."""
    ports = {node: free_port() for node in BROKERS}
    controllers = {node: free_port() for node in BROKERS}
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items())
    cluster_id = new_cluster_id()
    commands: dict[int, list[str]] = {}
    for node in BROKERS:
        home = directory / f"broker-{node}"
        home.mkdir()
        config = write_config(
            home, ports[node], controllers[node], node_id=str(node), controller_quorum_voters=voters
        )
        format_storage(config, cluster_id)
        commands[node] = broker(config)
    with ExitStack() as stack:
        # A broker takes connections when the controllers have elected one of them, so all start first.
        process_ids = [
            stack.enter_context(server(command, directory / f"broker-{node}", ports[node], wait=False))
            for node, command in commands.items()
        ]
        yield Running(",".join(f"127.0.0.1:{port}" for port in ports.values()), process_ids)


def wait_for_all(load: KafkaLoad) -> None:
    """Until all brokers have registered, and a topic can have a replica on each."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            load.create_topic("bench-first", DURABLE, partitions=1, replicas=len(BROKERS))
            return
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
