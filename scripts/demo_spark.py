"""The Spark part of the demo: a query, a stream query under a broker's death, a Delta table, an audit.

Imported when the set-up of Spark is done; it counts by itself and believes no job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHIPPED = "shipped"
STREAM_SECONDS = 6.0
KILL_AFTER_SECONDS = 2.0
DOWN_SECONDS = 2.0
PATIENCE_SECONDS = 90.0
BATCH = 200

Say = Callable[..., None]


class Broker(Protocol):
    @property
    def address(self) -> str: ...

    def start(self, *more: str) -> None: ...

    def kill(self) -> None: ...


def pipeline(brokers: Sequence[Broker], topic: str, acknowledged: int, lake: Path, say: Say) -> None:
    """All of it; ends the program with what failed."""
    from ister.spark import session

    bootstrap = ",".join(broker.address for broker in brokers)
    spark = session("ister demo", **{"spark.sql.shuffle.partitions": "2"})
    try:
        count = query(spark, bootstrap, topic, say)
        check(count == acknowledged, f"Spark sees {count:,} records, {acknowledged:,} were acknowledged")
        with sync.connect(bootstrap) as log:
            stream(spark, log, brokers, topic, lake / "checkpoint", say)
        tier_and_audit(spark, bootstrap, topic, lake / topic, say)
    finally:
        spark.stop()


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"FAILED: {otherwise}. Please report this.")


def source(reader: Any, bootstrap: str, topic: str) -> Any:
    wanted = reader.format("ister").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    return wanted.option("startingOffsets", "earliest").load()


def query(spark: SparkSession, bootstrap: str, topic: str, say: Say) -> int:
    say("a Spark query over the topic that was just written", 'spark.read.format("ister"), no registration')
    orders = source(spark.read, bootstrap, topic)
    named = orders.selectExpr("get_json_object(cast(value as string), '$.order') as id")
    named.createOrReplaceTempView(topic)
    spark.sql(
        "select split(id, '-')[0] as producer, count(*) as records, count(distinct id) as different "
        f"from {topic} group by 1 order by 1"
    ).show()
    return int(orders.count())


# A stream while a broker dies.


def stream(
    spark: SparkSession, log: sync.Log, brokers: Sequence[Broker], topic: str, checkpoint: Path, say: Say
) -> None:
    bootstrap = ",".join(broker.address for broker in brokers)
    say(f"a stream query copies {topic} to {SHIPPED}, each record once", "readStream, writeStream")
    sink = source(spark.readStream, bootstrap, topic).select("key", "value").writeStream.format("ister")
    sink = sink.option("bootstrap.servers", bootstrap).option("topic", SHIPPED)
    running = sink.option("checkpointLocation", str(checkpoint)).start()
    try:
        wait_for(lambda: end_of(log, SHIPPED) > 0, running)
        writing = threading.Thread(target=write, args=(log, topic))
        writing.start()
        time.sleep(KILL_AFTER_SECONDS)
        leader = log.describe_topic(topic).segments[-1].leader
        say(f"kill -9 of node {leader}, which leads {topic}, in the middle of it")
        brokers[leader - 1].kill()
        time.sleep(DOWN_SECONDS)
        show_lag(log, say)
        brokers[leader - 1].start()
        writing.join()
        wait_for(lambda: end_of(log, SHIPPED) >= end_of(log, topic), running)
    finally:
        running.stop()
    wanted = sorted(record.value or b"" for record in log.read(topic))
    found = sorted(record.value or b"" for record in log.read(SHIPPED))
    check(found == wanted, f"{SHIPPED} has {len(found):,} records, {topic} has {len(wanted):,}, or others")
    say(f"{SHIPPED} has all {len(found):,} records, each once", "counted with the plain client")


def write(log: sync.Log, topic: str) -> None:
    """Orders of one more producer, while the query runs."""
    number, until = 0, time.monotonic() + STREAM_SECONDS
    while time.monotonic() < until:
        values = [b'{"order": "s-%d", "amount": 1}' % (number + one) for one in range(BATCH)]
        log.append(topic, values)
        number += BATCH
        time.sleep(0.05)


def show_lag(log: sync.Log, say: Say) -> None:
    for pin in log.pins():
        end = log.offsets_at(pin.topic, "latest")
        say(
            f"ister lag: {pin.name} is at offset {pin.offset:,} of {end:,}",
            "a pin: the brokers know who reads",
        )


def end_of(log: sync.Log, topic: str) -> int:
    from ister.errors import UnknownTopic

    try:
        return log.offsets_at(topic, "latest")
    except UnknownTopic:
        return 0


def wait_for(holds: Callable[[], bool], running: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        check(running.isActive, f"the stream query ended: {running.exception()}")
        check(time.monotonic() < deadline, f"the stream query was not done after {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.1)


# A table, and an audit.


def tier_and_audit(spark: SparkSession, bootstrap: str, topic: str, table: Path, say: Say) -> None:
    from deltalake import DeltaTable

    from ister.spark import audit, tier

    say(f"{topic} becomes a Delta table", f"ister pipeline tier {topic} --to delta --path ...")
    done = tier(spark, topic, to="delta", path=str(table), bootstrap=bootstrap)
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset"])
    offsets = sorted(rows.column("offset").to_pylist())
    check(
        offsets == list(range(done.end_offset)), f"the table has {len(offsets):,} of {done.end_offset:,} rows"
    )
    say(f"the table has all {len(offsets):,} rows", "read back by deltalake, without Ister")
    say("an audit of every frame, and of the table", f"ister pipeline audit {topic} --against ...")
    report = audit(spark, topic, bootstrap=bootstrap, against=str(table))
    findings = [finding.what for one in report.topics for finding in one.findings]
    check(report.is_clean, f"the audit found {findings}")
    (one,) = report.topics
    say(f"the audit says: clean, {one.records:,} records in {len(one.segments)} segments")
