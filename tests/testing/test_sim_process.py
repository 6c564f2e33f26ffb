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


def test_a_frozen_process_stands_still_and_wakes_to_all_that_was_due() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        seen: list[str] = []

        async def work(name: str) -> None:
            loop.call_later(3, seen.append, f"{name} timer")
            for number in range(4):
                await asyncio.sleep(2)
                seen.append(f"{name} {number} at {loop.time():.0f}")

        process, other = SimProcess(loop, "node-1"), SimProcess(loop, "node-2")
        process.start(work("stopped"))
        other.start(work("awake"))
        await asyncio.sleep(1)
        process.freeze()
        await asyncio.sleep(10)
        assert seen == ["awake 0 at 2", "awake timer", *(f"awake {n} at {2 * n + 2}" for n in (1, 2, 3))]
        seen.clear()
        process.thaw()
        await asyncio.sleep(10)
        return seen

    assert simulate(main, 1) == [
        "stopped timer",
        "stopped 0 at 11",
        "stopped 1 at 13",
        "stopped 2 at 15",
        "stopped 3 at 17",
    ]


def test_bytes_for_a_frozen_process_wait_until_it_wakes() -> None:
    async def main(loop: VirtualLoop) -> None:
        network = SimNetwork(loop.fork("network"))
        got = bytearray()

        class Taking(asyncio.BufferedProtocol):
            def get_buffer(self, sizehint: int) -> bytearray:
                self.buffer = bytearray(64)
                return self.buffer

            def buffer_updated(self, nbytes: int) -> None:
                got.extend(self.buffer[:nbytes])

        class Sending(asyncio.BufferedProtocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport

        process = SimProcess(loop, "node-1")
        await process.start(network.host("node-1").listen(Taking, "node-1", 1))
        sending = await network.host("client").connect(Sending, "node-1", 1)
        assert isinstance(sending, Sending) and isinstance(sending.transport, asyncio.WriteTransport)
        await asyncio.sleep(1)
        process.freeze()
        sending.transport.write(b"while it was away")
        await asyncio.sleep(30)
        assert not got
        process.thaw()
        await asyncio.sleep(1)
        assert got == b"while it was away"

    simulate(main, 1)


def test_a_frozen_process_can_be_killed_and_a_run_may_end_with_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        killed, left = SimProcess(loop, "node-1"), SimProcess(loop, "node-2")
        task = killed.start(asyncio.sleep(1_000))
        left.start(asyncio.sleep(1_000))
        await asyncio.sleep(1)
        killed.freeze()
        left.freeze()
        await asyncio.sleep(1)
        killed.kill()
        await asyncio.wait([task])
        assert task.cancelled() and killed.task_count == 0

    simulate(main, 1)
