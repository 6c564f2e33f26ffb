"""A Spark session wherever it runs: on this machine, on a standalone cluster, or behind Spark Connect.

One place decides what differs between the three, so that whoever works with the session need not know which
one it is. Nothing of ours uses `sparkContext`, which Spark Connect does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ister.client.routing import DEFAULT_PORT
from ister.errors import ConfigError, ConnectionFailed, DependencyMissing
from ister.spark.sessions.local import local_session, prepare_environment, quiet_conf
from ister.spark.versions import check_version, installed_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_PACKAGES: Final = ("grpc", "grpc_status", "google.rpc")
_LOOPBACK: Final = ("127.", "localhost", "[::1]")
DEFAULT_BOOTSTRAP: Final = f"127.0.0.1:{DEFAULT_PORT}"
"""The brokers that are meant where nobody says, here as in the options of the source."""


def session(
    app_name: str = "ister", *, master: str | None = None, remote: str | None = None, **conf: str
) -> SparkSession:
    """The session at a master (`local[*]`, `spark://host:7077`, ...) or at a Spark Connect server
    (`sc://host:15002`); without either, one on this machine.

    Raises `ConfigError` for both, `DependencyMissing` without what it takes, `UnsupportedVersion` for another
    Spark, there as well as here, and `ConnectionFailed` if nobody answers.
    """
    if master and remote:
        raise ConfigError(
            f"both a master, {master}, and a Spark Connect server, {remote}, are given",
            hint="Give one of them: a master starts a driver here, a server has its own.",
        )
    check_version(installed_version())
    if remote:
        found = _connected(app_name, remote, conf)
    elif master is None or master.startswith("local"):
        found = local_session(app_name, **{**({"spark.master": master} if master else {}), **conf})
    else:
        found = _at_master(app_name, master, conf)
    check_version(found.version)
    return found


def _at_master(app_name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    prepare_environment(loopback=_is_loopback(master))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**quiet_conf(), **conf}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # whatever the JVM threw, as Python got it
        raise ConnectionFailed(
            f"there is no session at {master}: {_first_line(error)}",
            hint="Look whether the master runs there, and whether it can reach this machine.",
        ) from error


def _connected(app_name: str, remote: str, conf: Mapping[str, str]) -> SparkSession:
    _check_connect()
    if urlsplit(remote).scheme != "sc":
        raise ConfigError(f"{remote!r} is no Spark Connect server", hint="Write it as sc://host:15002.")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote).appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        made = builder.getOrCreate()
        made.version  # noqa: B018 (the first question to the server: does it answer)
    except Exception as error:  # of grpc, which has many
        raise ConnectionFailed(
            f"there is no session at {remote}: {_first_line(error)}",
            hint="Look whether a Spark Connect server runs there: sbin/start-connect-server.sh starts one.",
        ) from error
    return made


def _check_connect() -> None:
    from importlib import import_module

    for package in _CONNECT_PACKAGES:
        try:
            import_module(package)
        except ImportError as error:
            raise DependencyMissing(
                f"Spark Connect needs the package {package}", hint="pip install 'ister[connect]'"
            ) from error


def _is_loopback(master: str) -> bool:
    hosts = [part.rpartition("@")[2] for part in master.partition("://")[2].split(",")]
    return bool(hosts) and all(host.startswith(_LOOPBACK) for host in hosts)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
