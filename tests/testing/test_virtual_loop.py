"""The loop on virtual time: asyncio's own tools work on it, and what would hang is an error."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from ister.io.clock import monotonic
from ister.testing import (
    Deadlock,
    DeadProcess,
    Livelock,
    SimClock,
    TimeLimit,
    UnhandledErrors,
    VirtualLoop,
    simulate,
)


def test_an_hour_of_sleep_passes_in_virtual_time_only() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(3_000)
        return loop.time()

    assert simulate(main, 1, limit_seconds=3_600) == pytest.approx(3_000)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        fired: list[int] = []
        for delay in (3, 1, 2):
            loop.call_later(delay, fired.append, delay)
        await asyncio.sleep(5)
        return fired

    assert simulate(main, 1) == [1, 2, 3]


def test_timeouts_queues_events_and_task_groups_work() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=1)
        go = asyncio.Event()

        async def produce() -> None:
            await go.wait()
            for number in range(4):
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await queue.get()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.get(), 1)
            go.set()
            return [await queue.get() for _ in range(4)]

    assert simulate(main, 1) == [0, 1, 2, 3]


def test_executor_work_runs_inline_after_some_virtual_time() -> None:
    async def main(loop: VirtualLoop) -> tuple[int, float]:
        return await asyncio.to_thread(sum, [1, 2, 3]), loop.time()

    result, when = simulate(main, 1)
    assert result == 6
    assert when > 0


def test_an_error_in_executor_work_reaches_the_one_who_waits() -> None:
    async def main(loop: VirtualLoop) -> int:
        return await loop.run_in_executor(None, int, "no number")

    with pytest.raises(ValueError, match="no number"):
        simulate(main, 1)


def test_waiting_for_what_cannot_come_is_a_deadlock_that_names_the_place() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main(loop: VirtualLoop) -> None:
        await wait_for_godot()

    with pytest.raises(Deadlock, match=r"Event\.wait"):
        simulate(main, 1)


def test_a_loop_that_never_rests_is_a_livelock() -> None:
    async def main(loop: VirtualLoop) -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        simulate(main, 1, limit_steps=1_000)


def test_a_program_that_is_not_done_in_its_time_is_stopped() -> None:
    async def main(loop: VirtualLoop) -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(TimeLimit):
        simulate(main, 1, limit_seconds=10)


def test_a_task_that_failed_unseen_fails_the_run_even_if_somebody_keeps_it() -> None:
    kept: list[asyncio.Task[Any]] = []

    async def fail() -> None:
        raise ValueError("unseen")

    async def main(loop: VirtualLoop) -> None:
        kept.append(asyncio.create_task(fail()))
        await asyncio.sleep(1)

    with pytest.raises(UnhandledErrors, match="unseen") as caught:
        simulate(main, 7)
    assert "seed 7" in caught.value.__notes__[0]


def test_a_task_whose_error_was_taken_does_not_fail_the_run() -> None:
    async def fail() -> None:
        raise ValueError("seen")

    async def main(loop: VirtualLoop) -> str:
        task = asyncio.create_task(fail())
        await asyncio.sleep(1)
        return str(task.exception())

    assert simulate(main, 1) == "seen"


def test_an_error_in_a_callback_fails_the_run() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.call_soon(int, "in a callback")
        await asyncio.sleep(1)

    with pytest.raises(UnhandledErrors, match="in a callback"):
        simulate(main, 1)


def test_a_forgotten_future_with_an_error_fails_the_run() -> None:
    async def main(loop: VirtualLoop) -> None:
        loop.create_future().set_exception(ValueError("forgotten"))

    with pytest.raises(UnhandledErrors, match="forgotten"):
        simulate(main, 1)


def test_a_forgotten_future_that_holds_itself_fails_the_run_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        future = loop.create_future()
        future.add_done_callback(future.__eq__)
        future.set_exception(ValueError("in a cycle"))
        holder: list[object] = [future]
        holder.append(holder)

    with pytest.raises(UnhandledErrors, match="in a cycle"):
        simulate(main, 1)


def test_the_death_of_a_simulated_process_is_nobodys_unhandled_error() -> None:
    async def die() -> None:
        try:
            raise DeadProcess("disk")
        except OSError as error:
            raise RuntimeError("wrapped by the dying code") from error

    async def main(loop: VirtualLoop) -> str:
        task = asyncio.create_task(die())
        await asyncio.sleep(1)
        del task
        return "went on"

    assert simulate(main, 1) == "went on"


def test_leftover_tasks_are_cancelled_and_may_clean_up() -> None:
    cleaned: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            await asyncio.sleep(1)
            cleaned.append("done")

    async def main(loop: VirtualLoop) -> None:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        assert not task.done()

    simulate(main, 1, limit_seconds=2)
    assert cleaned == ["done"]


def test_leftover_tasks_are_cancelled_in_the_order_of_their_birth() -> None:
    ended: list[int] = []

    async def linger(number: int) -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            ended.append(number)

    async def main(loop: VirtualLoop) -> None:
        early = [asyncio.create_task(asyncio.sleep(1)) for _ in range(100)]
        first = [asyncio.create_task(linger(number)) for number in range(50)]
        # The memory of these is used again, so that addresses do not rise with the numbers.
        for _ in range(40):
            await early.pop(0)
        second = [asyncio.create_task(linger(number)) for number in range(50, 100)]
        await asyncio.sleep(2)
        assert not any(task.done() for task in first + second)

    simulate(main, 1)
    assert ended == list(range(100))


def test_a_leftover_that_refuses_to_end_fails_the_run() -> None:
    async def stay() -> None:
        while True:
            try:
                await asyncio.sleep(1_000_000)
            except asyncio.CancelledError:
                pass

    async def main(loop: VirtualLoop) -> None:
        task = asyncio.create_task(stay(), name="stubborn")
        await asyncio.sleep(1)
        assert not task.done()

    with pytest.raises(UnhandledErrors, match="stubborn"):
        simulate(main, 1, limit_seconds=2)


def test_a_task_group_cancels_its_children_in_the_order_of_their_birth() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        ended: list[int] = []

        async def child(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(number)

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(child(number))
                await asyncio.sleep(1)
                raise ValueError("enough")
        return ended

    assert simulate(main, 1) == list(range(20))


def test_real_sockets_are_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.open_connection("localhost", 1)

    with pytest.raises(NotImplementedError, match="seams"):
        simulate(main, 1)


def test_forked_chance_depends_on_seed_and_name_only() -> None:
    first, second = VirtualLoop(5), VirtualLoop(5)
    try:
        first.fork("disk").random()
        assert first.fork("network").random() == second.fork("network").random()
        assert first.fork("network").random() != first.fork("disk").random()
    finally:
        first.close()
        second.close()


def test_a_clock_jumps_and_drifts_and_the_time_that_passes_is_the_loops() -> None:
    async def main(loop: VirtualLoop) -> None:
        clock, true = SimClock(loop, loop.fork("a")), SimClock(loop, loop.fork("b"))
        assert clock.now_us() == true.now_us()
        clock.jump(-60)
        assert clock.now_us() == true.now_us() - 60_000_000
        clock.drift(1.5)
        await asyncio.sleep(10)
        assert clock.now_us() == pytest.approx(true.now_us() - 55_000_000, abs=1)
        clock.drift(1.0)
        await asyncio.sleep(10)
        assert monotonic() == loop.time() == 20
        assert clock.now_us() == pytest.approx(true.now_us() - 55_000_000, abs=1)
        tokens = [clock.token() for _ in range(100)]
        assert all(0 < token < 1 << 63 for token in tokens)
        assert len(dict.fromkeys(tokens)) == 100

    simulate(main, 1)
