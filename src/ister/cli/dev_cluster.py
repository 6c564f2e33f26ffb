"""The nodes of `ister dev`: child processes, from their start to their end.

A node that ends by itself while the cluster comes up stops the whole; later it is told, with the end of its
log, and the others go on: a person is meant to kill one. However it ends, no child is left behind, unless
this process itself is killed with SIGKILL.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ister.cli.common import QUICK
from ister.cli.dev_plan import DevNode
from ister.cli.render_cluster import is_alive_voter
from ister.errors import IsterError
from ister.protocol.messages import ClusterAnswer

SERVE: Final = (sys.executable, "-m", "ister", "serve")
READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.1
LOG_LINES: Final = 8
_LOG_BYTES: Final = 4096


class Ended(NamedTuple):
    """A node that is gone, and the last that it said."""

    node: DevNode
    pid: int
    code: int
    log_lines: list[str]

    @property
    def how(self) -> str:
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"


class NodeProcess:
    """One `ister serve`, whose output goes to a file of its own."""

    def __init__(self, node: DevNode, options: Sequence[str], log: Path) -> None:
        self.node = node
        self.options = options
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, environ: Mapping[str, str]) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *SERVE,
                *self.options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> Ended:
        assert self._process is not None
        code = await self._process.wait()
        return Ended(self.node, self.pid, code, self.log_lines())

    def log_lines(self) -> list[str]:
        with self.log.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _LOG_BYTES))
            return log.read().decode(errors="replace").splitlines()[-LOG_LINES:]


class DevCluster:
    def __init__(
        self, nodes: Sequence[DevNode], directory: Path, extra: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self.directory = directory
        self.nodes = [
            NodeProcess(
                node, [*node.options(directory, nodes[0]), *extra], directory / f"node-{node.node_id}.log"
            )
            for node in nodes
        ]
        self._environ = environ
        self._stop = asyncio.Event()

    @property
    def bootstrap(self) -> str:
        return ",".join(process.node.client for process in self.nodes)

    def stop(self) -> None:
        """End it; asked a second time, at once."""
        if self._stop.is_set():
            for process in self.nodes:
                process.signal(signal.SIGKILL)
        self._stop.set()

    async def run(
        self,
        on_ready: Callable[[ClusterAnswer], None],
        on_ended: Callable[[Ended, NodeProcess], None],
    ) -> None:
        """Start them, say when all are in, watch them until told to stop."""
        try:
            for process in self.nodes:
                await process.start(self._environ)
            await self._watch(on_ready, on_ended)
        finally:
            await self._stop_all()

    async def _watch(
        self,
        on_ready: Callable[[ClusterAnswer], None],
        on_ended: Callable[[Ended, NodeProcess], None],
    ) -> None:
        endings = {_task(process.ended()): process for process in self.nodes}
        stopping = _task(self._stop.wait())
        coming_up: asyncio.Task[ClusterAnswer] | None = _task(self._until_all_in())
        try:
            while endings:
                waited = [stopping, *endings, *([coming_up] if coming_up else [])]
                done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done:
                    return
                for ending in [ending for ending in endings if ending in done]:
                    process = endings.pop(ending)
                    if coming_up is not None:
                        raise click.ClickException(_did_not_come_up(ending.result()))
                    on_ended(ending.result(), process)
                if coming_up is not None and coming_up in done:
                    on_ready(coming_up.result())
                    coming_up = None
            raise click.ClickException("no node is left; start the cluster again with the same --data-dir")
        finally:
            for task in (stopping, coming_up, *endings):
                if task is not None:
                    task.cancel()

    async def _until_all_in(self) -> ClusterAnswer:
        """Ask until every node votes and is heard from; a bounded wait."""
        said = "nobody answered"
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    try:
                        found = await self._ask()
                    except IsterError as error:
                        if not error.retriable:
                            raise
                        said = error.message
                    else:
                        alive = sum(map(is_alive_voter, found.nodes))
                        if alive >= len(self.nodes):
                            return found
                        said = f"{alive} of {len(self.nodes)} are in"
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise click.ClickException(
                f"the cluster was not up after {READY_SECONDS:.0f} s: {said}; the logs are "
                f"{self.directory}/node-*.log{self._logs_shown()}"
            ) from None

    def _logs_shown(self) -> str:
        return "".join(
            f"\nnode {process.node.node_id}:" + _indented(process.log_lines()) for process in self.nodes
        )

    async def _ask(self) -> ClusterAnswer:
        import ister

        async with ister.connect(self.bootstrap, **QUICK) as log:
            return await log.cluster()

    async def _stop_all(self) -> None:
        for process in self.nodes:
            process.signal(signal.SIGTERM)
        left = [_task(process.ended()) for process in self.nodes if process.is_running]
        if not left:
            return
        _, late = await asyncio.wait(left, timeout=STOP_SECONDS)
        if late:
            for process in self.nodes:
                process.signal(signal.SIGKILL)
            await asyncio.wait(late)


def _task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def _did_not_come_up(ended: Ended) -> str:
    return (
        f"node {ended.node.node_id} {ended.how} before the cluster was up; the last lines of its log:"
        + _indented(ended.log_lines)
    )


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)
