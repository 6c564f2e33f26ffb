"""The session that a command runs its job on, wherever that is, ended with the job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ister.spark.sessions.java import quiet_java
from ister.spark.sessions.opening import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def job_session(name: str, master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session at `local[*]`, `spark://host:port`, or `sc://host:port` for Spark Connect."""
    where = "remote" if master.startswith("sc://") else "master"
    if where == "master":
        os.environ["JAVA_HOME"] = str(quiet_java(os.environ))
    spark = session(name, **{where: master}, **conf)
    try:
        yield spark
    finally:
        spark.stop()
