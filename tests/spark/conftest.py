"""One broker and one Spark session for all tests here: a JVM takes longer to start than they take to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hurried import HURRIED
from spark_cluster import ConnectServer, StandaloneSpark

from ister import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SERVE = "import sys; from ister.cli.main import main; sys.argv[0] = 'ister'; main()"

Load = Callable[..., "DataFrame"]


class BrokerProcess:
    """`ister serve` in a directory: may be killed, and started again where it was."""

    def __init__(self, data_dir: Path, *, history: Path | None = None) -> None:
        """With `history`, a directory for what is sealed."""
        self.data_dir = data_dir
        kept = {} if history is None else {"storage_mode": "shared_fs", "storage_url": history.as_uri()}
        self._program = SERVE if history is None else HURRIED + SERVE
        self._settings = [part for each in kept.items() for part in ("--set", "=".join(each))]
        self._port = 0
        self.start()

    def start(self) -> None:
        where = ["--data-dir", str(self.data_dir), "--client-port", str(self._port), "--admin-port", "-1"]
        where += self._settings
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                self._program,
                "serve",
                *where,
                "--output",
                "json",
                "--log-level",
                "warning",
            ],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._port = json.loads(self._process.stdout.readline())["client_port"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)


@pytest.fixture(scope="session", autouse=True)
def quick_starts() -> Iterator[None]:
    """Each JVM here lives for a minute at most, and is started more often than it is asked: what its second
    compiler and its collector's threads do for later is what all others wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        yield


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    yield process.address
    process.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that a test may be unkind to."""
    process = BrokerProcess(tmp_path / "data")
    yield process
    process.stop()


@pytest.fixture(scope="session")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that exports what is sealed into a directory."""
    process = BrokerProcess(tmp_path_factory.mktemp("keeper"), history=tmp_path_factory.mktemp("history"))
    yield process
    process.stop()


@pytest.fixture
def kept(keeper: BrokerProcess) -> Iterator[sync.Log]:
    with sync.connect(keeper.address) as found:
        yield found


@pytest.fixture
def log(bootstrap: str) -> Iterator[sync.Log]:
    with sync.connect(bootstrap) as found:
        yield found


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ister.spark import local_session

    before = dict(os.environ)
    session = local_session("ister-tests", **{"spark.master": "local[2]", "spark.driver.memory": "1g"})
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    """A Spark cluster of a master and two workers; use it from `spark_cluster.run_script`."""
    made = StandaloneSpark(tmp_path_factory.mktemp("standalone"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Spark Connect server; use it from `spark_cluster.run_script`."""
    made = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield made
    made.stop()


@pytest.fixture
def load(spark: SparkSession, bootstrap: str) -> Load:
    """`load("topic", startingOffsets=...)`: a table of it."""

    def read(topic: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("ister").option("bootstrap.servers", bootstrap).option("subscribe", topic)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return read
