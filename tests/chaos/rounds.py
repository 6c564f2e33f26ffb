"""Rounds of kill -9 under load: after each, all that was acknowledged is there, in order, once.

The producers live through the deaths of the broker: what they have in flight is retried against the next
process, so that idempotence across restarts is judged as well (A5). What a process finds is what the page
cache and the files hold; the loss of power is the simulation's business.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from random import Random

import ister
from ister.errors import IsterError
from ister.testing.checkers import Violation, check_history
from ister.testing.history import History, Outcome, Read, Send
from tests.chaos.broker_process import BrokerProcess
from tests.chaos.cluster_load import seen

TOPICS = ("orders", "events")
PRODUCERS = 6
OVERLAP = 50
STOP_EVERY = 5
"""Each so many rounds the broker is asked to stop instead of being killed; those come on top."""


class Result:
    """What a run was worth."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rounds: Counter[str] = Counter()
        self.acknowledged = 0
        self.unknown = 0
        self.records = 0
        self.seconds = 0.0


class Chaos:
    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.history = History()
        self.result = Result(seed)
        self.broker = BrokerProcess(directory, segment_records=500, monitor_check_ms=200)
        self._finals = {topic: Read("final", topic, 0, is_final=True) for topic in TOPICS}
        self._checked = 0
        self._go = asyncio.Event()
        self._idle = 0
        self._values = 0

    async def run(self, kills: int) -> Result:
        started = time.monotonic()
        await asyncio.to_thread(self.broker.start)
        try:
            async with AsyncExitStack() as stack:
                logs = [await stack.enter_async_context(self._connect()) for _ in range(PRODUCERS)]
                producers = [
                    asyncio.create_task((self._append, self._produce)[number % 2](log, number))
                    for number, log in enumerate(logs)
                ]
                for number in range(kills + kills // (STOP_EVERY - 1)):
                    await self._round(number, producers)
                for task in producers:
                    task.cancel()
                await asyncio.wait(producers)
            await self._judge_all()
        finally:
            self.broker.kill()
        self.result.seconds = time.monotonic() - started
        return self.result

    async def _round(self, number: int, producers: list[asyncio.Task[None]]) -> None:
        self._go.set()
        await asyncio.sleep(self.random.choice((0.0, 0.01, 0.05, 0.2, 0.4)) * self.random.random())
        if number % STOP_EVERY == STOP_EVERY - 1:
            code = await asyncio.to_thread(self.broker.stop)
            if code != 0:
                raise Violation("clean_stop", f"SIGTERM ended the broker with code {code}")
            self.result.rounds["SIGTERM"] += 1
        else:
            await asyncio.to_thread(self.broker.kill)
            self.result.rounds["kill -9"] += 1
        await asyncio.to_thread(self.broker.start)
        self._go.clear()
        deadline = time.monotonic() + 60
        while self._idle < len(producers):
            for task in producers:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise Violation("liveness", f"{self._idle} of {len(producers)} producers are done after 60 s")
            await asyncio.sleep(0.005)
        await self._judge()

    # Load.

    def _value(self, session: str) -> bytes:
        self._values += 1
        return b"%s-%d-" % (session.encode(), self._values) + b"." * self.random.randrange(80)

    async def _turn(self) -> None:
        """Wait here while a round is judged."""
        if not self._go.is_set():
            self._idle += 1
            try:
                await self._go.wait()
            finally:
                self._idle -= 1

    async def _produce(self, log: ister.Log, number: int) -> None:
        topic = TOPICS[number // 2 % len(TOPICS)]
        while True:
            await self._turn()
            session = f"p{number}.{self._values}"
            try:
                async with log.producer(topic, linger_ms=1, batch_records=20) as producer:
                    while self._go.is_set():
                        sends = [
                            self.history.sending(session, topic, [self._value(session)]) for _ in range(15)
                        ]
                        receipts = [await producer.submit(send.values[0]) for send in sends]
                        for send, receipt in zip(sends, receipts, strict=True):
                            await self._told(send, receipt)
            except IsterError:
                pass  # each send was told already

    async def _append(self, log: ister.Log, number: int) -> None:
        topic = TOPICS[number // 2 % len(TOPICS)]
        while True:
            await self._turn()
            values = [self._value(f"a{number}") for _ in range(self.random.randrange(1, 30))]
            send = self.history.sending(f"a{number}", topic, values)
            try:
                send.acknowledged(list((await log.append(topic, values)).offsets))
            except IsterError as error:
                send.unknown(error)

    async def _told(self, send: Send, receipt: ister.Receipt) -> None:
        try:
            send.acknowledged([await receipt])
        except IsterError as error:
            send.unknown(error)

    def _connect(self) -> ister.Log:
        return ister.connect(self.broker.address, request_timeout_s=10, retry_deadline_s=50)

    # Judgement.

    async def _judge(self) -> None:
        """Read what is new, and a little of what was there, and look for every new acknowledgement."""
        async with self._connect() as log:
            for topic, final in self._finals.items():
                await self._read_on(log, topic, final)
        values = {topic: dict(final.rows()) for topic, final in self._finals.items()}
        for send in self.history.sends[self._checked :]:
            for offset, value in zip(send.offsets, send.values, strict=False):
                found = values[send.line].get(offset)
                if found != value:
                    raise Violation(
                        "acknowledged_is_readable",
                        f"{send.line} has {found!r} at {offset}, where {value!r} was acknowledged",
                    )
        self._checked = len(self.history.sends)

    async def _read_on(self, log: ister.Log, topic: str, final: Read) -> None:
        known = {frame.base_offset: frame for frame in final.frames[-OVERLAP:]}
        start = min(known, default=0)
        try:
            async with aclosing(log.read(topic, start=start).frames()) as frames:
                async for frame in frames:
                    found = seen(frame)
                    if found.base_offset in known and known[found.base_offset] != found:
                        raise Violation("one_offset_one_value", f"{topic} changed at {found.base_offset}")
                    if found.base_offset >= final.end_offset:
                        final.frames.append(found)
        except IsterError as error:
            if error.code != "unknown-topic":  # nothing was acknowledged before the first death
                raise

    async def _judge_all(self) -> None:
        """Once more, everything, from the files alone."""
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)
        for final in self._finals.values():
            final.frames.clear()
        async with self._connect() as log:
            for topic, final in self._finals.items():
                await self._read_on(log, topic, final)
        self.history.finals.update(self._finals)
        self.history.reads.extend(self._finals.values())
        for send in self.history.sends:
            if send.outcome is Outcome.PENDING:
                send.unknown(TimeoutError("the run ended"))
        check_history(self.history)
        outcomes = Counter(send.outcome for send in self.history.sends)
        self.result.acknowledged = outcomes[Outcome.ACKNOWLEDGED]
        self.result.unknown = outcomes[Outcome.UNKNOWN]
        self.result.records = sum(final.end_offset for final in self._finals.values())


def run_rounds(rounds: int, seed: int) -> Result:
    """All of it, in a directory of its own; raises `Violation` if a promise is broken."""
    with tempfile.TemporaryDirectory(prefix="ister-chaos-") as directory:
        return asyncio.run(Chaos(seed, Path(directory)).run(rounds))
