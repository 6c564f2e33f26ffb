"""An asyncio event loop on virtual time: the same program, the same seed, the same run.

Time moves only when nothing is ready, and then at once to the next timer, so an hour of timeouts costs
milliseconds. There are no sockets, no threads and no signals. asyncio's own queues, events, timeouts
and task groups run on it unchanged.

What would hang a real program is an error here, with what every task was waiting for:
- `Deadlock`: nothing is scheduled and the program is not done.
- `Livelock`: too many steps of the loop.
- `TimeLimit`: the program was not done within the virtual time it was given.
- `UnhandledErrors`: a task or a callback failed and nobody looked.

Determinism: futures and tasks are numbered and hash by their number, so that the sets of them inside
asyncio (a task group that cancels its children) have one order in every process. The garbage collector
runs at fixed steps only, since finalisers may run code. What is left to the program: no iteration over
sets of strings, no `asyncio.as_completed` over bare coroutines (it puts them into a set of its own).
"""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NoReturn, TypeVar

from ister.testing.faults import Trace, died_with_its_process
from ister.testing.process import SimProcess, process_of
from ister.testing.schedule import ScheduledLoop

T = TypeVar("T")

# Rare enough to cost nothing, often enough that cycles of exceptions do not pile up in a long run.
_COLLECT_EACH_STEPS = 1 << 17

# What the leftovers of a run may use to unwind, however the run ended.
_UNWIND_SECONDS = 3_600.0
_UNWIND_STEPS = 200_000
_UNWIND_ROUNDS = 10


class SimulationError(AssertionError):
    """The program under simulation is wrong; not an error that it could meet or handle itself."""


class Deadlock(SimulationError):
    """Nothing can ever happen again, and the program is not done."""


class Livelock(SimulationError):
    """The loop turned more often than the run allows."""


class TimeLimit(SimulationError):
    """The program was not done within its virtual time."""


class UnhandledErrors(SimulationError):
    """Tasks or callbacks failed and nobody took their errors."""

    def __init__(self, errors: list[BaseException]) -> None:
        shown = "; ".join(f"{type(error).__name__}: {error}" for error in errors[:5])
        super().__init__(f"{len(errors)} unhandled errors in tasks or callbacks: {shown}")
        self.errors = errors


class _SimFuture(asyncio.Future[Any]):
    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _SimTask(asyncio.Task[Any]):
    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number  # before the base: it puts the task into a set at once
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(ScheduledLoop):
    """One run: its time, its chance (`random`, `fork`) and its memory (`trace`)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.random = Random(seed)
        self.trace = Trace(self.time)
        self.unhandled: list[BaseException] = []
        self._step_count = 0
        self._step_limit = 1 << 62
        self._time_limit = float("inf")
        self._numbers = 0
        self._failed: list[asyncio.Task[Any]] = []
        self.set_exception_handler(_record_unhandled)

    def fork(self, name: str) -> Random:
        """Chance of its own for one part of the world, so that one part's dice do not shift another's."""
        return Random(f"{self.seed}/{name}")

    def limit(self, *, seconds: float, steps: int) -> None:
        """From now, so much virtual time and so many steps."""
        self._time_limit = self._now + seconds
        self._step_limit = self._step_count + steps

    @property
    def step_count(self) -> int:
        return self._step_count

    def _count_turn(self, next_time: float | None) -> None:
        self._step_count += 1
        if self._step_count > self._step_limit:
            raise Livelock(f"{self._step_count} steps by {self._now:.6f} s; {self._waiting()}")
        if self._step_count % _COLLECT_EACH_STEPS == 0:
            gc.collect(1)
        if next_time is None:
            raise Deadlock(f"nothing is scheduled at {self._now:.6f} s; {self._waiting()}")
        self._now = next_time
        if next_time > self._time_limit:
            raise TimeLimit(f"not done after {self._now:.6f} virtual seconds; {self._waiting()}")

    def _waiting(self) -> str:
        tasks = _in_order(asyncio.all_tasks(self))
        lines = [f"  {task.get_name()} at {_where(task.get_coro())}" for task in tasks[:40]]
        return "\n".join([f"{len(tasks)} tasks wait:", *lines])

    # What asyncio asks of a loop.

    def create_future(self) -> asyncio.Future[Any]:
        self._numbers += 1
        return _SimFuture(self._numbers, self)

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        self._check_closed()
        self._numbers += 1
        number = self._numbers
        # asyncio's own default names count through the whole process, not through the run.
        task = _SimTask(number, coro, loop=self, name=str(name or f"Task-{number}"), **options)
        process = process_of(options.get("context"))
        if process is not None:
            process.adopt(number, task)
        task.add_done_callback(functools.partial(self._remember_failure, process))
        return task

    def _remember_failure(self, process: SimProcess | None, task: asyncio.Task[Any]) -> None:
        if process is not None:
            process.release(hash(task))
        if not _nobody_looked(task):
            return
        if process is None or process.alive:
            # Looked at when the run ends: asyncio itself would report it only when it is collected.
            self._failed.append(task)
        else:
            task.exception()  # the dead need not be looked after

    def run_in_executor(  # type: ignore[override]  # the base ties args to func's own; here they pass through
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Not in a thread: inline, a little virtual time later, whatever the executor."""
        self._check_closed()
        future = self.create_future()
        self.call_later(self.random.uniform(0.00005, 0.002), _run_inline, future, func, args)
        return future

    def _write_to_self(self) -> None:
        """No thread ever sleeps in this loop, so none needs waking."""

    def _check_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("the simulated event loop is closed")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a simulated loop has no sockets, processes or signals; use the seams")

    getaddrinfo = getnameinfo = create_connection = create_server = _refuse
    create_datagram_endpoint = subprocess_exec = subprocess_shell = _refuse

    # The end of a run.

    def unwind(self) -> None:
        """Cancel what is left, let it run its cleanup, and collect the errors that nobody took."""
        for process in list(self._frozen):
            process.thaw()
        try:
            for _ in range(_UNWIND_ROUNDS):
                left = _in_order(asyncio.all_tasks(self))
                if not left:
                    break
                for task in left:
                    task.cancel()
                self.limit(seconds=_UNWIND_SECONDS, steps=_UNWIND_STEPS)
                self.run_until_complete(asyncio.wait(left, timeout=_UNWIND_SECONDS / 2))
            self.limit(seconds=_UNWIND_SECONDS, steps=_UNWIND_STEPS)
            self.run_until_complete(self.shutdown_asyncgens())
        except SimulationError as error:
            self.unhandled.append(error)
        left = _in_order(asyncio.all_tasks(self))
        if left:
            stuck = ", ".join(task.get_name() for task in left)
            self.unhandled.append(SimulationError(f"tasks that do not end when cancelled: {stuck}"))
        self._sweep_failures()

    def _sweep_failures(self) -> None:
        for task in self._failed:
            if _nobody_looked(task):
                error = task.exception()  # also tells asyncio that somebody looked now
                if error is not None and not died_with_its_process(error):
                    self.unhandled.append(error)
        self._failed.clear()


def _run_inline(future: asyncio.Future[T], work: Callable[..., T], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return  # as a thread pool does with work that has not begun
    try:
        result = work(*args)
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _nobody_looked(task: asyncio.Task[Any]) -> bool:
    # asyncio's own flag: set when a future gets an exception, cleared when somebody asks for it.
    return bool(getattr(task, "_log_traceback", False))


def _record_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    handle = context.get("handle")
    # A task that is reported is so by its own process.
    is_own = handle is not None or "task" in context
    process = process_of(getattr(handle, "_context", None)) if is_own else None
    if process is not None and not process.alive:
        return
    error = context.get("exception") or SimulationError(str(context.get("message")))
    if isinstance(loop, VirtualLoop) and not died_with_its_process(error):
        loop.unhandled.append(error)


def _in_order(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return sorted(tasks, key=hash)


def _where(coroutine: Any) -> str:
    """The innermost line that a suspended coroutine waits in."""
    place = getattr(coroutine, "__qualname__", repr(coroutine))
    for _ in range(64):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
        if coroutine is None:
            break
    return place


def simulate(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]],
    seed: int,
    *,
    limit_seconds: float = 3_600.0,
    limit_steps: int = 10_000_000,
) -> T:
    """Run `main(loop)` from one seed to its end, clean up after it, and return what it returned.

    Raises what `main` raised, or a `SimulationError`; either has the seed and the end of the trace in
    its notes. Errors that nobody handled fail the run even if `main` was content.
    """
    loop = VirtualLoop(seed)
    loop.limit(seconds=limit_seconds, steps=limit_steps)
    collecting = gc.isenabled()
    gc.disable()
    try:
        failure: BaseException | None = None
        try:
            result = loop.run_until_complete(main(loop))
        except BaseException as error:
            failure = error
        loop.unwind()
        # A future that nobody kept reports its error only when it is collected.
        gc.collect(0)
        if failure is None and loop.unhandled:
            failure = UnhandledErrors(loop.unhandled)
            failure.__cause__ = loop.unhandled[0]
        if failure is not None:
            raise _annotate(failure, loop)
        return result
    finally:
        loop.close()
        if collecting:
            gc.enable()


def _annotate(failure: BaseException, loop: VirtualLoop) -> BaseException:
    failure.add_note(f"simulation seed {loop.seed}, {loop.time():.6f} virtual s, {loop.step_count} steps")
    for error in loop.unhandled:
        failure.add_note(f"unhandled: {type(error).__name__}: {error}")
    tail = loop.trace.tail()[-20:]
    if tail:
        failure.add_note("the trace ended:\n  " + "\n  ".join(tail))
    return failure
