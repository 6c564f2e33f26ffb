"""Tier a topic to Delta and audit it, wherever Spark runs; prints one JSON object of what it found."""

from __future__ import annotations

import argparse
import json

from ister.spark import audit, session, tier


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--master")
    arguments.add_argument("--remote")
    arguments.add_argument("--bootstrap", required=True)
    arguments.add_argument("--topic", required=True)
    arguments.add_argument("--path", required=True)
    arguments.add_argument("--file-bytes", type=int, default=1 << 20)
    asked = arguments.parse_args()
    memory = {} if asked.remote else {"spark.executor.memory": "512m"}
    spark = session("tier and audit", master=asked.master, remote=asked.remote, **memory)
    try:
        where = {"bootstrap": asked.bootstrap}
        done = tier(spark, asked.topic, to="delta", path=asked.path, file_bytes=asked.file_bytes, **where)
        report = audit(spark, asked.topic, against=asked.path, **where)
        findings = [finding.what for topic in report.topics for finding in topic.findings]
        found = {"records": done.records, "files": done.files, "clean": report.is_clean, "findings": findings}
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
