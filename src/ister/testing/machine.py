"""A machine of a simulated world: its disk stays, its processes come and go.

A process dies of `kill -9`, of the end of power, or of what it calls fatal itself. The seams die first (see
`ister.testing.process`): nothing that it does afterwards reaches the world. Whoever waits for work of a
process that a death overtook gets `ProcessDied`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from ister.testing.disk import SimDisk
from ister.testing.image import Loss
from ister.testing.loop import VirtualLoop
from ister.testing.network import SimNetwork
from ister.testing.process import SimProcess


class ProcessDied(Exception):
    """It was killed while somebody waited for it."""


class SimMachine:
    def __init__(self, loop: VirtualLoop, network: SimNetwork, host: str, disk: SimDisk) -> None:
        self.loop, self.network, self.host, self.disk = loop, network, host, disk
        self.process: SimProcess | None = None
        self.is_up = False
        self._context = contextvars.copy_context()
        """Of the world: what is done to a machine is no work of its process."""

    # Life.

    async def begin(self, work: Coroutine[Any, Any, None], name: str = "") -> None:
        """Start a process with this work; it is up once that is done. If the work raises, nothing runs."""
        process = self.process = SimProcess(self.loop, name or self.host)
        try:
            await self._work(process, work)
        except ProcessDied:
            raise
        except BaseException:
            self.kill()
            raise
        self.is_up = True

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """The last work of the process that runs, and its end."""
        assert self.process is not None
        await self._work(self.process, work)
        self.kill()

    async def _work(self, process: SimProcess, work: Coroutine[Any, Any, None]) -> None:
        task = process.start(work)
        await asyncio.wait([task])
        if task.cancelled() or process is not self.process or not process.alive:
            if not task.cancelled():
                task.exception()
            raise ProcessDied
        task.result()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.loop.trace.note(f"{self.host} freeze")
        if self.process is not None:
            self.process.freeze()

    def thaw(self) -> None:
        self.loop.trace.note(f"{self.host} thaw")
        if self.process is not None:
            self.process.thaw()

    # Death.

    def kill(self) -> None:
        """kill -9."""
        self.disk.kill()
        self._end_process(silent=False)

    def lose_power(self, loss: Loss | None = None) -> None:
        """What was not synced is lost as `loss` says, else by dice."""
        self.disk.crash(loss)
        self._end_process(silent=True)

    def lose_power_after(self, changes: int) -> None:
        """In the middle of some coming work on the disk."""
        self.disk.crash_after(changes, lambda: self._soon(lambda: self._end_process(silent=True)))

    def die_soon(self) -> None:
        """Of what is fatal to the process that runs. A real one ends in an orderly way, if it gets so far."""
        generation = self.disk.generation
        self._soon(lambda: self.kill() if generation == self.disk.generation else None)

    def take_disk(self, disk: SimDisk) -> None:
        """Another disk in its place; the process must be dead."""
        assert not self.is_up
        self.disk = disk

    def died(self) -> None:
        """For those who have more to do then."""

    def _soon(self, act: Callable[[], None]) -> None:
        self.loop.call_soon(act, context=self._context)

    def _end_process(self, silent: bool) -> None:
        self.network.kill(self.host, silent=silent)
        if self.process is not None:
            self.process.kill()
        self.is_up = False
        self.died()
