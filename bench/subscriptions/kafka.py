"""Kafka's share groups (KIP-932): the records of a partition for many consumers, each acknowledged.

They are early access in 4.0 and off by default: the broker is told to serve what is not stable yet, and to
keep a share group's state on one node. As many records may be with consumers as the broker allows: with its
own setting, 200 of a partition, a share group is a fraction as fast. As in the bench of appends, records are
flushed before they are acknowledged where they are timed from their publishing.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.peers.kafka import (
    SYNCED,
    Kafka,
    broker,
    format_storage,
    new_cluster_id,
    write_config,
)
from bench.peers.kafka_load import running_load
from bench.peers.peer import Missing, free_port, server
from bench.subscriptions.asked import Job
from ister.bench.figures import rounded
from ister.bench.target import scratch_directory

SHARE_DRIVER: Final = Path(__file__).parent.parent / "peers" / "KafkaShare.java"
SHARE: Final = {
    "unstable.api.versions.enable": "true",
    "group.share.enable": "true",
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.share.partition.max.record.locks": "10000",
}


class KafkaShares:
    name = "kafka"

    def run(self, job: Job) -> dict[str, Any]:
        found = Kafka().find()
        if isinstance(found, Missing):
            return {"status": "missing", "how": found.how}
        with scratch_directory() as directory:
            try:
                results = self._run(job, directory)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                how = str(error).replace(str(directory), "")
                return {"status": "failed", "version": found.version, "how": how}
        how = "share groups (early access); published with flush.messages=1 where it is timed"
        return {"status": "measured", "version": found.version, "how": how, **results}

    def _run(self, job: Job, directory: Path) -> dict[str, Any]:
        port, controller = free_port(), free_port()
        config = write_config(directory, port, controller, **SHARE)
        format_storage(config, new_cluster_id())
        bootstrap, results = f"127.0.0.1:{port}", dict[str, Any]()
        with (
            server(broker(config), directory, port),
            running_load(bootstrap, directory) as load,
            running_load(bootstrap, directory, SHARE_DRIVER) as share,
        ):
            for name, consumers in job.consuming.items():
                topic = f"bench-{name}"
                load.create_topic(topic, (), partitions=1, replicas=1)
                load.batches(topic, job.records, job.size)
                rates = [
                    job.records / float(share.ask("share", topic, f"{name}-{number}", consumers, job.records))
                    for number in range(1 + job.repeats)
                ]
                results[name] = {"records_per_s": round(median(rates[1:])), "repeats": job.repeats}
            if "delivery" not in job.modes:
                return results
            load.create_topic("bench-delivery", SYNCED, partitions=1, replicas=1)
            took = share.ask("deliver", "bench-delivery", "delivery", job.rate, job.seconds, job.size).split()
            names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
            results["delivery"] = {name: rounded(float(ms)) for name, ms in zip(names, took, strict=True)}
        return results
