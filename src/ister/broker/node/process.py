"""A broker as a process: real seams, signals, the metrics endpoint, and the way out.

SIGTERM and SIGINT drain: no new connections, what was accepted becomes durable and is answered, then the
files are closed. SIGKILL loses nothing that was acknowledged: that is the log's business, not this one's.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ister.broker.clients.server import Server
from ister.broker.node.balancing import Usage
from ister.broker.node.broker import Broker
from ister.config import BrokerConfig
from ister.errors import AddressInUse, DataDirectoryError, IsterError
from ister.failpoints import halt_of
from ister.io.clock import SystemClock
from ister.io.disk import LocalDisk
from ister.io.network import TcpNetwork
from ister.io.stores import open_store

log = logging.getLogger("ister.broker.node.process")


class BrokerInfo(NamedTuple):
    """Where a running broker is to be found."""

    client_host: str
    client_port: int
    admin_port: int
    data_dir: str
    cluster_id: str
    node_id: int
    peer_port: int = -1


def run(config: BrokerConfig, *, on_ready: Callable[[BrokerInfo], None] | None = None) -> None:
    """Run a broker until it is told to stop; raises `IsterError` if it cannot start or go on."""
    if not faulthandler.is_enabled():
        # A crash in native code says where, on the standard error. Only of the thread that it was in: others
        # run on while they are looked at, and may make the look itself crash before it comes to that one.
        faulthandler.enable(all_threads=False)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_main(config, on_ready))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: about a tenth faster, otherwise the same."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _main(config: BrokerConfig, on_ready: Callable[[BrokerInfo], None] | None) -> None:
    stop = asyncio.Event()
    fatal: list[IsterError] = []
    loop = asyncio.get_running_loop()

    def on_fatal(error: IsterError) -> None:
        fatal.append(error)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    starting = loop.create_task(start(config, on_fatal=on_fatal))
    told_to_stop = loop.create_task(stop.wait())
    await asyncio.wait([starting, told_to_stop], return_when=asyncio.FIRST_COMPLETED)
    told_to_stop.cancel()
    if not starting.done():  # it waits to be let into a cluster, perhaps for ever
        starting.cancel()
        await asyncio.wait([starting])
        if fatal:
            raise fatal[0]
        return
    running = starting.result()
    # What exists now stays; looking through it again and again would only cost pauses.
    gc.collect()
    gc.freeze()
    log.info("ready", extra={"fields": running.info._asdict()})
    if on_ready is not None:
        on_ready(running.info)
    await stop.wait()
    log.info("stopping")
    await running.stop()
    if running.broker.fatal is not None:
        raise running.broker.fatal
    log.info("stopped")


class RunningBroker:
    """A started broker with its server; for embedding as well."""

    def __init__(self, broker: Broker, server: Server, admin: Any, info: BrokerInfo) -> None:
        self.broker = broker
        self.server = server
        self.info = info
        self._admin = admin

    async def stop(self) -> None:
        await self.server.stop(self.broker.config.drain_timeout_ms / 1000)
        await self.broker.stop()
        if self._admin is not None:
            self._admin[0].shutdown()
            self._admin[0].server_close()


async def start(
    config: BrokerConfig, *, on_fatal: Callable[[IsterError], None] | None = None
) -> RunningBroker:
    """Start a broker on the running loop; raises `IsterError` and leaves nothing behind if it cannot."""
    try:
        disk = LocalDisk(Path(config.data_dir))
    except FileExistsError as error:
        raise DataDirectoryError(f"{config.data_dir} cannot be used: it is not a directory") from error
    except OSError as error:
        raise DataDirectoryError(f"{config.data_dir} cannot be used: {error.strerror or error}") from error
    network = TcpNetwork()
    store = open_store(config.storage_mode, config.storage_url, f"node-{config.node_id}")
    broker = Broker(config, disk, SystemClock(), network, on_fatal=on_fatal, store=store)
    server = Server(broker, network, read_rss)
    broker.commits.after_cycle = server.flush
    broker.balancing.usage = read_usage
    broker.failpoint = halt_of(os.environ, config.node_id)
    try:
        await _check_ports(network, config)
        await broker.start()
        await server.start()
        admin = _serve_metrics(broker, config)
    except BaseException as error:
        await server.stop(0)
        await broker.stop()
        if isinstance(error, OSError):
            raise DataDirectoryError(f"{config.data_dir} cannot be used: {error}") from error
        raise
    assert server.listener is not None and broker.identity is not None
    host, port = server.listener.address
    admin_port = admin[0].server_port if admin is not None else -1
    identity = broker.identity
    listener = broker.metadata.peers.listener
    peer_port = listener.address[1] if listener is not None else -1
    info = BrokerInfo(host, port, admin_port, disk.location, identity.cluster_id, identity.node_id, peer_port)
    return RunningBroker(broker, server, admin, info)


async def _check_ports(network: TcpNetwork, config: BrokerConfig) -> None:
    """A broker that joins a cluster, and then finds its port taken, would be a member that is down."""
    for option, host, port in (
        ("--peer-port", config.peer_host, config.peer_port),
        ("--client-port", config.client_host, config.client_port),
        ("--admin-port", config.admin_host, config.admin_port),
    ):
        if port > 0:
            try:
                (await network.listen(asyncio.BufferedProtocol, host, port)).close()
            except AddressInUse as error:
                raise AddressInUse(
                    error.message, hint=f"Stop what listens there, or choose another port with {option}."
                ) from error


def _serve_metrics(broker: Broker, config: BrokerConfig) -> tuple[Any, threading.Thread] | None:
    if config.admin_port < 0:
        return None
    from prometheus_client import (
        CollectorRegistry,
        GCCollector,
        PlatformCollector,
        ProcessCollector,
        start_http_server,
    )

    registry = CollectorRegistry()
    registry.register(broker.metrics)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    try:
        return start_http_server(config.admin_port, config.admin_host, registry)
    except OSError as error:
        raise AddressInUse(
            f"{config.admin_host}:{config.admin_port} is already in use by another process",
            hint="Choose another port for metrics with --admin-port; 0 takes any free one, -1 is off.",
        ) from error


def read_usage() -> Usage:
    """What this process uses of the machine."""
    return Usage(time.process_time(), read_rss())


def read_rss() -> int:
    """Resident memory of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")
