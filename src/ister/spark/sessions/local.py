"""A Spark session on this machine that works out of the box, and the source in sessions of others.

`local_session` decides what otherwise goes wrong on a laptop: which Java, which Python the workers run, the
loopback interface rather than whatever the host's name resolves to, and a shuffle sized for a few cores.
What is set already, in the environment or by the caller, stays as it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ister.spark.sessions.java import find_java
from ister.spark.versions import check_version, installed_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


def local_session(app_name: str = "ister", **conf: str) -> SparkSession:
    """A session on `local[*]`, or the one that is running already.

    Settings have dots in their names: `local_session(**{"spark.driver.memory": "4g"})`.
    Raises `DependencyMissing` without Spark or Java, and `UnsupportedVersion` for another Spark.
    """
    check_version(installed_version())
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(conf.pop("spark.master", "local[*]")).appName(app_name)
    for name, value in {**quiet_conf(), **_DEFAULTS, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def quiet_conf() -> dict[str, str]:
    """For every driver that runs here: it says what a person should know, and draws nothing."""
    said = Path(__file__).with_name("log4j2.properties").as_uri()
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={said}",
        "spark.ui.showConsoleProgress": "false",
    }


def prepare_environment(*, loopback: bool = True) -> None:
    """What the JVM and the Python workers inherit. Spark is told by the environment, not by arguments.

    `loopback`: nobody on another machine has to reach this driver."""
    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    if loopback:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Otherwise the workers run whichever python3 is first on the PATH, which has no ister.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def register(spark: SparkSession) -> None:
    """Make `format("ister")` known to a session that does not find it by itself."""
    check_version(spark.version)
    from ister.spark.datasource import IsterSource

    spark.dataSource.register(IsterSource)
