"""A stream query as a process of its own, so that it can be killed: from topics of numbered records to one.

`python -m tests.chaos.spark_driver --bootstrap ... --subscribe a,b --topic t --checkpoint DIR`. With
`--available-now` it ends by itself, else when it is killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ENDS_S = 240.0
QUICK_START = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM that is killed before its second compiler would pay."""


class Driver:
    """The process, and all that it started: the JVM, and the workers under it."""

    def __init__(
        self,
        bootstrap: str,
        subscribe: str,
        topic: str,
        directory: Path,
        *,
        partitions: int = 2,
        available_now: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "tests.chaos.spark_driver", "--bootstrap", bootstrap]
        command += ["--subscribe", subscribe, "--topic", topic]
        command += ["--checkpoint", str(directory / "checkpoint"), "--partitions", str(partitions)]
        command += ["--available-now"] * available_now
        self._said = directory / "driver.log"
        with self._said.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                env={**QUICK_START, **os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        """kill -9 of Python and the JVM. The workers find out by themselves, a moment later."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def wait(self) -> None:
        """Until it has ended, well."""
        code = self._process.wait(ENDS_S)
        assert code == 0, f"the driver ended with code {code}:\n{self.last_words()}"

    def wait_for(self, file: Path) -> None:
        """Until it stands still at its failpoint."""
        deadline = time.monotonic() + ENDS_S
        while not file.exists():
            assert not self.has_ended, f"the driver ended before its failpoint:\n{self.last_words()}"
            assert time.monotonic() < deadline, f"no failpoint was reached:\n{self.last_words()}"
            time.sleep(0.05)

    def last_words(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")[-4000:]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap", "--subscribe", "--topic", "--checkpoint"):
        parser.add_argument(name, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--available-now", action="store_true")
    asked = parser.parse_args()

    from ister.spark import local_session

    spark = local_session("chaos", **{"spark.master": "local[2]", "spark.driver.memory": "512m"})
    start_query(spark, **vars(asked)).awaitTermination()


def start_query(
    spark: SparkSession,
    bootstrap: str,
    subscribe: str,
    topic: str,
    checkpoint: str,
    partitions: int,
    available_now: bool,
) -> StreamingQuery:
    source = spark.readStream.format("ister").option("bootstrap.servers", bootstrap)
    rows = (
        source.option("subscribe", subscribe)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .option("minPartitions", partitions)
        .load()
        .select("value")
    )
    sink = rows.writeStream.format("ister").option("bootstrap.servers", bootstrap)
    sink = sink.option("topic", topic).option("checkpointLocation", checkpoint)
    if available_now:
        sink = sink.trigger(availableNow=True)
    return sink.start()


if __name__ == "__main__":
    main()
