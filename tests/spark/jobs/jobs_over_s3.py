"""Tier a topic, compact it, audit and read it, on a cluster; prints one JSON object of what it found."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ister.spark import audit, compact, session, tier


def main() -> None:
    arguments = argparse.ArgumentParser()
    for name in ("master", "bootstrap", "topic", "path", "marks", "events"):
        arguments.add_argument(f"--{name}", required=True)
    asked = arguments.parse_args()
    settings = {
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{asked.events}",
        "spark.eventLog.compress": "false",
    }
    spark = session("jobs over S3", master=asked.master, **settings)
    try:
        where = {"bootstrap": asked.bootstrap}
        done = tier(spark, asked.topic, to="delta", path=asked.path, file_bytes=20_000, **where)
        (Path(asked.marks) / "tiered").touch()
        compacted = compact(spark, asked.topic, **where)
        report = audit(spark, asked.topic, against=asked.path, replicas=True, **where)
        reader = spark.read.format("ister").option("bootstrap.servers", asked.bootstrap)
        table = reader.option("subscribe", asked.topic).load()
        plans = spark._jvm.PythonSQLUtils.explainString(table._jdf.queryExecution(), "extended")
        found = {
            "records": done.records,
            "clean": report.is_clean,
            "findings": [finding.what for topic in report.topics for finding in topic.findings],
            "stored": sum(bool(part.object_name) for topic in report.topics for part in topic.segments),
            "objects": len({part.object_name for topic in report.topics for part in topic.segments} - {""}),
            "merged": len(compacted.merged),
            "left": [run.why for run in compacted.left],
            "rows": table.count(),
            "plans": plans,
        }
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
