"""A standalone Spark cluster and a Spark Connect server from the installed package, on loopback.

A process has one session at most, and the tests' own has the local one: what is to run here runs as a script
in a process of its own, `run_script`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PATIENCE_S = 120


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment() -> dict[str, str]:
    """What every process of Spark is told here, whatever this machine has set up."""
    from ister.spark import find_java

    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **kept,
        "JAVA_HOME": str(find_java(os.environ).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


class Daemon:
    """A process of Spark that says in its log when it is ready, and where."""

    def __init__(
        self, name: str, directory: Path, command: Sequence[str], *, ready: str, memory: str = "256m"
    ) -> None:
        self._ready = ready
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(spark_home() / "bin" / command[0]), *command[1:]],
                env={**environment(), "SPARK_DAEMON_MEMORY": memory, "SPARK_NO_DAEMONIZE": "1"},
                cwd=directory,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> str:
        """What it says when it is ready: the first group of the pattern."""
        reading: IO[str]
        with self._log.open(errors="replace") as reading:
            seen = ""
            waiter = _Patience(self._process)
            while (found := re.search(self._ready, seen)) is None:
                seen += reading.read()
                waiter.wait(seen)
        return found.group(1)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _Patience:
    """Waits for a process to say more, as long as it lives and not for ever."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._turns = PATIENCE_S * 10

    def wait(self, seen: str) -> None:
        self._turns -= 1
        try:
            self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            if self._turns:
                return
            self._process.kill()
        raise RuntimeError(f"it did not become ready: {seen[-4000:]}")


@contextmanager
def stopped_if_it_fails(made: StandaloneSpark | ConnectServer) -> Iterator[None]:
    """Whoever could not be made leaves no process behind."""
    try:
        yield
    except BaseException:
        made.stop()
        raise


class StandaloneSpark:
    """A master and workers of one core each; `master` is its address."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        deploy = "org.apache.spark.deploy"
        master = Daemon(
            "master",
            directory,
            ["spark-class", f"{deploy}.master.Master", *where],
            ready=r"Starting Spark master at (spark://\S+)",
        )
        worker = ["spark-class", f"{deploy}.worker.Worker", *where, "--cores", "1", "--memory", "1g"]
        self._daemons = [master]
        with stopped_if_it_fails(self):
            self.master = master.wait()
            self._daemons += [
                Daemon(
                    f"worker-{number}",
                    directory,
                    [*worker, "--work-dir", str(directory / f"worker-{number}"), self.master],
                    ready=r"Successfully registered with master (spark://\S+)",
                )
                for number in range(workers)
            ]
            for daemon in self._daemons[1:]:
                daemon.wait()

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.stop()


class ConnectServer:
    """Spark Connect over a driver of two cores, which lets a task fail thrice; `remote` is its address."""

    def __init__(self, directory: Path) -> None:
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        settings = {
            "spark.connect.grpc.binding.port": "0",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        command = ["spark-submit", "--master", "local[2,4]", "--class", server]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        self._daemon = Daemon(
            "connect",
            directory,
            [*command, "spark-internal"],
            ready=r"Spark Connect server started at: .*?(\d+)\s",
            memory="1g",
        )
        with stopped_if_it_fails(self):
            self.remote = f"sc://127.0.0.1:{self._daemon.wait()}"

    def stop(self) -> None:
        self._daemon.stop()


def run_script(
    script: Path | str, *arguments: str, cwd: Path, timeout: float = 900
) -> subprocess.CompletedProcess[str]:
    """A program with a session of its own. Python code, or a path to it."""
    what = [str(script)] if isinstance(script, Path) else ["-c", script]
    return subprocess.run(
        [sys.executable, *what, *arguments],
        env=environment(),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
