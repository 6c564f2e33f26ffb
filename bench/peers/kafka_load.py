"""The driver in Java (`KafkaLoad.java`), one process for all that a peer is asked: it stays warm.

Kafka's own ProducerPerformance starts a virtual machine for each run, which compiles itself while it is
measured, makes each payload on the way, and knows whole milliseconds only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DRIVER: Final = Path(__file__).with_name("KafkaLoad.java")
BATCH_BYTES: Final = 1_000_000
"""As large as a request may be with a broker's default settings."""
LINGER_MS: Final = 5
AS_KAFKA_STARTS_IT: Final = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
"""What Kafka's own start script gives its broker."""


@dataclass(frozen=True)
class Run:
    """One timed run."""

    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


def jars_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "ister-bench" / "kafka"


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def can_compile() -> bool:
    """Whether this Java has a compiler: the driver comes as its source."""
    program = java()
    if program is None:
        return False
    said = subprocess.run([program, "--list-modules"], capture_output=True, text=True)
    return "jdk.compiler" in said.stdout


def tool(main: str, *arguments: str, memory: str = "512m", options: Sequence[str] = ()) -> list[str]:
    program = java()
    assert program is not None
    return [program, f"-Xmx{memory}", *options, "-cp", f"{jars_directory()}/*", main, *arguments]


class KafkaLoad:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def create_topic(self, topic: str, options: Sequence[str], *, partitions: int, replicas: int) -> None:
        self.ask("create", topic, partitions, replicas, ",".join(options))

    def delete_topic(self, topic: str) -> None:
        self.ask("delete", topic)

    def batches(self, topic: str, records: int, size: int) -> Run:
        return self._run("batches", topic, records, size, BATCH_BYTES, LINGER_MS)

    def lone(self, topic: str, records: int, size: int) -> Run:
        return self._run("lone", topic, records, size)

    def _run(self, *job: object) -> Run:
        return Run(*map(float, self.ask(*job).split()))

    def ask(self, *job: object) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, job)).strip() + "\n")
        self._process.stdin.flush()
        while answer := self._process.stdout.readline():
            word, _, rest = answer.strip().partition(" ")
            if word == "ok":
                return rest
            if word == "error":
                raise RuntimeError(f"Kafka's client failed at {job[0]}: {rest[:500]}")
        raise RuntimeError(f"Kafka's client ended at {job[0]}")


@contextmanager
def running_load(bootstrap: str, directory: Path, driver: Path = DRIVER) -> Iterator[KafkaLoad]:
    command = tool(str(driver), bootstrap, memory="1g")
    with (directory / "load.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=directory
        )
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and line.strip() != "ready":
            pass  # whatever a library says first
        if not line:
            said = (directory / "load.log").read_text(errors="replace")[-1000:]
            raise RuntimeError(f"Kafka's client did not start: {said}")
        yield KafkaLoad(process)
    finally:
        process.terminate()
        process.communicate()
