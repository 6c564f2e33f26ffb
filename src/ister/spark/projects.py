"""A project of Spark Declarative Pipelines over a topic: topic -> table -> topic.

`make_project` writes one that runs; `run_project` runs it, once, to where its topics end then, and goes on
from there the next time. Spark keeps how far each flow is in the project's `storage`, and its tables in
`warehouse`, with a catalog of them in `metastore`. That catalog is what a second run needs: without one that
lasts, Spark knows of no table and finds its directory taken (LOCATION_ALREADY_EXISTS). It is chosen before
the JVM starts, and a project's own `configuration` comes after that: so Spark's program is called here.

What can fail: a run is killed. Then the next one goes on: each flow is a stream query with a checkpoint, and
what the `ister` sink was given is in the topic once. Two runs of a project at once: the catalog lets in one.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ister.errors import ConfigError, DependencyMissing, JobFailed
from ister.names import normalise_topic
from ister.spark.sessions.java import quiet_java
from ister.spark.sessions.local import prepare_environment, quiet_conf
from ister.spark.versions import check_version, installed_version

SPEC: Final = "spark-pipeline.yml"
_STDERR: Final = 2
_PACKAGES: Final = ("grpc", "grpc_status", "google.rpc", "yaml", "pandas")

_SPEC_TEXT: Final = """\
# A project of Spark Declarative Pipelines: `ister pipeline run` brings its tables and topics up to date.
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_PROGRAM: Final = '''\
"""{topic} as a table, and a topic that is made of the table. Spark gives `spark`; edit the two functions."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, upper

BROKERS = "{bootstrap}"


@dp.table(comment="Each record of {topic}, once.")
def {table}() -> DataFrame:
    records = spark.readStream.format("ister").option("bootstrap.servers", BROKERS)
    return records.option("subscribe", "{topic}").option("startingOffsets", "earliest").load()


dp.create_sink("{table}_sink", "ister", {{"bootstrap.servers": BROKERS, "topic": "{to}"}})


@dp.append_flow(target="{table}_sink")
def {table}_flow() -> DataFrame:
    return spark.readStream.table("{table}").select("key", upper(col("value").cast("string")).alias("value"))
'''


def make_project(directory: Path, topic: str, to: str, bootstrap: str) -> list[Path]:
    """Write it; refuses a directory that has something in it. Which files were made."""
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty", hint="Give a directory that is, or is not there yet.")
    topic, to = normalise_topic(topic), normalise_topic(to)
    if topic == to:
        raise ConfigError(f"{topic} would be its own target", hint="Give another topic with --to.")
    table = re.sub(r"\W", "_", topic.removeprefix("default/"))
    table = table if table[0].isalpha() else f"topic_{table}"
    program = directory / "transformations" / f"{table}.py"
    program.parent.mkdir(parents=True)
    storage = (directory / "storage").absolute()
    storage.mkdir()
    spec = directory / SPEC
    spec.write_text(_SPEC_TEXT.format(name=directory.absolute().name, storage=storage.as_uri()))
    program.write_text(_PROGRAM.format(topic=topic, to=to, table=table, bootstrap=bootstrap))
    return [spec, program]


def run_project(
    directory: Path,
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    dry: bool = False,
    full_refresh: bool = False,
) -> None:
    """Once, to where its topics end. With a `master` that is `sc://...`, on that Connect server, whose
    catalog has the tables then. What Spark says goes to the standard error. `JobFailed` if it fails."""
    spec = directory / SPEC
    if not spec.is_file():
        raise ConfigError(
            f"{directory} has no {SPEC}", hint=f"`ister pipeline init {directory}` makes a project there."
        )
    check_version(installed_version())
    _check_packages()
    words = [*_command(), "dry-run" if dry else "run", "--spec", str(spec.absolute())]
    if full_refresh:
        words.append("--full-refresh-all")
    words += ["--remote", master]  # of Connect, in any case: `local[*]` starts a server of it, for this run
    settings = {} if master.startswith("sc://") else _settings(directory.absolute())
    with TemporaryDirectory(prefix="ister-pipeline-") as kept:
        # On the command line, Spark keeps the last ten settings of a local server, and drops the others.
        lines = [f"{name} {value}\n" for name, value in {**settings, **(conf or {})}.items()]
        Path(kept, "spark-defaults.conf").write_text("".join(lines))
        environment = {**_environment(), "SPARK_CONF_DIR": kept}
        ended = subprocess.run(
            words, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False
        ).returncode
    if ended:
        raise JobFailed(
            f"the pipeline in {directory} failed: Spark's exit code is {ended}",
            hint="What Spark said is above; `ister pipeline run --dry-run` checks the project alone.",
        )


def _command() -> list[str]:
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return [str(Path(found.origin).parent / "bin" / "spark-pipelines")]


def _environment() -> dict[str, str]:
    prepare_environment()
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None
    return {
        **os.environ,
        "JAVA_HOME": str(quiet_java(os.environ)),
        "SPARK_HOME": str(Path(found.origin).parent),
    }


def _settings(directory: Path) -> dict[str, str]:
    """A catalog that lasts, and all that Spark writes, in the project."""
    said = quiet_conf()["spark.driver.extraJavaOptions"]
    return {
        **quiet_conf(),
        "spark.driver.extraJavaOptions": f"{said} -Dderby.stream.error.file={directory}/metastore.log",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={directory}/metastore;create=true"
        ),
    }


def _check_packages() -> None:
    for package in _PACKAGES:
        try:
            import_module(package)
        except ImportError as error:
            raise DependencyMissing(
                f"Spark's pipelines need the package {package}", hint="pip install 'ister[pipelines]'"
            ) from error
