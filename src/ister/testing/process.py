"""A simulated process: all the tasks that grew from one, so that they can die together.

Whatever a process starts belongs to it: tasks, the tasks of those, and the callbacks of its listeners and
connections, since all of them inherit its context. To end a node as kill -9 would:

    disk.kill()  (or disk.crash(), with the power)
    network.kill("node-1")
    process.kill()

In this order: the seams first, so that the cleanup code which Python runs when tasks are cancelled, and
which a real kill would not run, reaches nothing. Errors in a dead process are nobody's.

`freeze` is SIGSTOP, or a long pause of a garbage collector or a hypervisor: nothing of the process runs until
`thaw`, while the world and its clock go on. Then everything that was due runs at once, in its order, in a
process that does not know that it was away.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_current: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("process", default=None)


class Loop(Protocol):
    """What a process needs of the loop that it runs on: `VirtualLoop` has it."""

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]: ...

    def freeze(self, process: SimProcess) -> None: ...

    def thaw(self, process: SimProcess) -> None: ...


class SimProcess:
    """Tasks that live and die together."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self._loop = loop
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run this as a part of the process. Whoever waits for it sees a cancelled task after a kill."""
        context = contextvars.copy_context()
        context.run(_current.set, self)
        return self._loop.create_task(coroutine, name=name or self.name, context=context)

    def kill(self) -> None:
        """End every task of the process; what they still try to start does not begin."""
        self.alive = False
        self.thaw()  # only so that its tasks can end
        for task in list(self._tasks.values()):
            task.cancel()

    def freeze(self) -> None:
        """Nothing of this process runs until `thaw`, from the next turn of the loop on."""
        if self.alive and not self.frozen:
            self.frozen = True
            self._loop.freeze(self)

    def thaw(self) -> None:
        """What was due meanwhile runs now, in the order in which it came due."""
        if self.frozen:
            self.frozen = False
            self._loop.thaw(self)

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    def adopt(self, number: int, task: asyncio.Task[Any]) -> None:
        """For the loop: a task was started within this process."""
        self._tasks[number] = task
        if not self.alive:
            task.cancel()

    def release(self, number: int) -> None:
        """For the loop: it ended."""
        self._tasks.pop(number, None)


def process_of(context: contextvars.Context | None) -> SimProcess | None:
    """The process that a context belongs to; without a context, the one that is running."""
    return _current.get() if context is None else context.get(_current)
