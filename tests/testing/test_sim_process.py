"""A simulated process dies whole: no task, callback or child of it goes on."""

from __future__ import annotations

import asyncio

import pytest

from ister.testing import SimDisk, SimNetwork, SimProcess, UnhandledErrors, VirtualLoop, simulate


def test_a_kill_ends_tasks_and_their_children_and_no_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        ticks: dict[str, int] = {"child": 0, "other": 0}

        async def tick(name: str) -> None:
            for _ in range(1_000):
                await asyncio.sleep(1)
                ticks[name] += 1

        async def parent() -> None:
            child = asyncio.create_task(tick("child"))
            await asyncio.sleep(1_000)
            await child

        process, other = SimProcess(loop, "node-1"), SimProcess(loop, "node-2")
        task = process.start(parent())
        other.start(tick("other"))
        await asyncio.sleep(5.5)
        assert process.task_count == 2
        process.kill()
        await asyncio.sleep(5)
        assert task.cancelled()
        assert process.task_count == 0
        assert ticks == {"child": 5, "other": 10}

    simulate(main, 1)


def test_a_dead_process_cannot_begin_anything_and_its_errors_are_nobodys() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        done: list[str] = []
        begun: list[asyncio.Task[None]] = []

        async def revenge() -> None:
            done.append("began after death")

        async def last_words() -> None:
            try:
                await asyncio.sleep(1_000)
            finally:
                begun.append(asyncio.create_task(revenge()))
                loop.call_soon(int, "no number")
                raise ValueError("failed while dying")

        process = SimProcess(loop, "node-1")
        process.start(last_words())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(1)
        assert len(begun) == 1
        return done

    assert simulate(main, 1) == []


def test_an_error_in_a_living_process_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("alive and wrong")

    async def main(loop: VirtualLoop) -> None:
        SimProcess(loop, "node-1").start(fail())
        await asyncio.sleep(1)

    with pytest.raises(UnhandledErrors, match="alive and wrong"):
        simulate(main, 1)


def test_what_a_listener_starts_belongs_to_the_process_that_listens() -> None:
    class Server(asyncio.BufferedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.task = asyncio.create_task(asyncio.sleep(1_000))

    async def main(loop: VirtualLoop) -> None:
        network, disk = SimNetwork(loop.fork("network")), SimDisk(loop.fork("disk"))
        process = SimProcess(loop, "node-1")
        await process.start(_listen(network))
        await network.host("node-2").connect(asyncio.BufferedProtocol, "node-1", 9000)
        await asyncio.sleep(1)
        assert process.task_count == 1
        disk.kill()
        network.kill("node-1")
        process.kill()
        await asyncio.sleep(1)
        assert process.task_count == 0

    async def _listen(network: SimNetwork) -> None:
        await network.host("node-1").listen(Server, "node-1", 9000)

    simulate(main, 1)
