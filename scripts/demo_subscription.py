"""The demo's part with a shared subscription: three consumers, one of which is killed.

    python scripts/demo_subscription.py HOST:PORT,... TOPIC

is one of these consumers: it says what it got, a line for each range, and acknowledges it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

import ister

NAME: Final = "billing"
CONSUMERS: Final = 3
RECORDS: Final = 200_000
KILL_AFTER_SECONDS: Final = 0.5
WORK_SECONDS: Final = 0.03
"""For each range."""


class Consumer:
    """A process, and what it said that it got."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ranges: list[tuple[int, int, bool]] = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            words = line.split()
            if len(words) == 3:  # of one that was killed the last line may be cut
                self.ranges.append((int(words[0]), int(words[1]), words[2] == b"1"))

    @property
    def records(self) -> int:
        return sum(end - start for start, end, _ in self.ranges)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
        await self.process.wait()
        await self._listening


async def share_out(log: ister.Log, addresses: str, topic: str, say: Callable[[str, str], None]) -> None:
    """Everything must be delivered, and what comes twice must say so."""
    end = await log.offsets_at(topic, "latest")
    start = max(0, end - RECORDS)
    say(
        f"{CONSUMERS} consumers share the subscription {NAME!r}, {end - start:,} records",
        "each record goes to one of them, until it is acknowledged",
    )
    await log.create_subscription(topic, NAME, kind="shared", start=start)
    command = (sys.executable, __file__, addresses, topic)
    consumers = [
        Consumer(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
        for _ in range(CONSUMERS)
    ]
    try:
        while not all(one.ranges for one in consumers):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(KILL_AFTER_SECONDS)
        say("kill -9 of one of them", "what it had and did not acknowledge goes to the others")
        consumers[0].process.kill()
        async with asyncio.timeout(60):
            while (await log.subscriptions(name=NAME))[0].cursor < end:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    finally:
        for one in consumers:
            await one.end()
    got: Counter[int] = Counter()
    unmarked: Counter[int] = Counter()
    for one in consumers:
        for first, behind, may_repeat in one.ranges:
            got.update(range(first, behind))
            if not may_repeat:
                unmarked.update(range(first, behind))
    missing = end - start - len(got)
    twice = sum(count > 1 for count in unmarked.values())
    shares = ", ".join(f"{one.records:,}" for one in consumers)
    repeats = got.total() - len(got)
    print(
        f"    {shares} records each; {missing:,} missing, {repeats:,} came again, marked as such", flush=True
    )
    if missing or twice:
        raise SystemExit(f"FAILED: {missing} records were not delivered, {twice} came twice unmarked.")


async def consume(addresses: str, topic: str) -> None:
    async with (
        ister.connect(addresses) as log,
        log.subscribe(topic, NAME, kind="shared", window=5_000) as subscription,
    ):
        while (batch := await subscription.next()) is not None:
            print(batch.start, batch.end, int(batch.may_repeat), flush=True)
            await asyncio.sleep(WORK_SECONDS)
            await batch.ack()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:3]))
