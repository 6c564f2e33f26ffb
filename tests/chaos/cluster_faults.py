"""What goes wrong in a cluster of real processes: kill -9, SIGSTOP, a clean stop, and all at once.

Which fault comes when, and for how long, is the seed's choice; each of them comes at least once if the time
allows. The victim may be any node, the one that leads the metadata, or one that leads a topic's open segment.
A fault ends before the next one begins, except that one node may be killed while another one is paused.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from bench.cluster.nodes import ClusterProcesses, NodeProcess

import ister
from ister.errors import IsterError
from ister.testing.checkers import Violation

KINDS = (
    "kill -9 of any node",
    "SIGSTOP of the metadata leader",
    "kill -9 of a segment leader",
    "kill -9 of all at once, twice in a row",
    "SIGSTOP of a segment leader",
    "kill -9 of the metadata leader",
    "kill -9 of one node while another is stopped",
    "SIGSTOP of any node",
    "kill -9 of all at once",
    "kill -9 of a stopped node",
    "SIGTERM of any node",
)
LONGEST_PAUSE_SECONDS = 5.0
LONGEST_DOWN_SECONDS = 1.5


Say = Callable[[str], None]


def quiet(text: str) -> None:
    """For runs that nobody watches."""


class Faults:
    def __init__(
        self, cluster: ClusterProcesses, topics: Sequence[str], random: Random, say: Say = quiet
    ) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._topics = topics
        self._random = random
        self._say = say

    async def run(self, seconds: float) -> None:
        """Faults until the time is over; then all nodes run again."""
        deadline = time.monotonic() + seconds
        longest_pause = min(LONGEST_PAUSE_SECONDS, max(1.0, seconds / 10))
        kinds: list[str] = []
        while time.monotonic() < deadline:
            kinds = kinds or self._shuffled()
            kind = kinds.pop()
            self._say(kind)
            await self._one(kind, longest_pause)
            self.done[kind] += 1
            for node in self._nodes:
                node.check_running()
            await asyncio.sleep(self._random.choice((0.05, 0.5, 1.5)) * self._random.random())
        await self.heal()

    def _shuffled(self) -> list[str]:
        kinds = list(KINDS)
        self._random.shuffle(kinds)
        return kinds

    async def heal(self) -> None:
        for node in self._nodes:
            node.resume()
        await self._start(*(node for node in self._nodes if not node.is_running))

    async def _one(self, kind: str, longest_pause: float) -> None:
        nap = max(0.5, longest_pause * self._random.random() ** 2)
        down = LONGEST_DOWN_SECONDS * self._random.random() ** 2
        match kind.split():
            case ["kill", "-9", "of", "all", *_, "row"]:
                await self._kill_all(twice=True)
            case ["kill", "-9", "of", "all", *_]:
                await self._kill_all(twice=False)
            case ["kill", "-9", "of", "a", "stopped", "node"]:
                victim = self._any()
                victim.pause()
                await asyncio.sleep(nap)
                await self._kill(victim, down)
            case [*_, "is", "stopped"]:
                sleeper, victim = self._random.sample(self._nodes, 2)
                sleeper.pause()
                await asyncio.sleep(nap / 2)
                await self._kill(victim, down)
                await asyncio.sleep(nap / 2)
                sleeper.resume()
            case ["SIGTERM", *_]:
                code = await asyncio.to_thread((victim := self._any()).stop)
                if code != 0:
                    raise Violation("clean_stop", f"SIGTERM ended {victim.directory} with code {code}")
                await self._start(victim)
            case ["kill", *_]:
                await self._kill(await self._victim(kind), down)
            case _:
                victim = await self._victim(kind)
                victim.pause()
                await asyncio.sleep(nap)
                victim.resume()

    async def _kill(self, victim: NodeProcess, down: float) -> None:
        await asyncio.to_thread(victim.kill)
        await asyncio.sleep(down)
        await self._start(victim)

    async def _kill_all(self, *, twice: bool) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self._nodes))
        if twice:
            # The second time they may be anywhere: importing, recovering, electing, or long back at work.
            starting = asyncio.ensure_future(self._start(*self._nodes))
            await asyncio.sleep(0.2 + 2 * self._random.random())
            await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self._nodes))
            await starting
        await self._start(*self._nodes)

    async def _start(self, *nodes: NodeProcess) -> None:
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))

    # Who is hit.

    @property
    def _nodes(self) -> list[NodeProcess]:
        return list(self._cluster.nodes.values())

    def _any(self) -> NodeProcess:
        return self._random.choice(self._nodes)

    async def _victim(self, kind: str) -> NodeProcess:
        """By its part in the cluster; any node if nobody can say."""
        topic = self._random.choice(self._topics)
        otherwise = self._any()
        if kind.endswith("any node"):
            return otherwise
        try:
            async with ister.connect(self._cluster.bootstrap, request_timeout_s=2, retry_deadline_s=2) as log:
                if kind.endswith("metadata leader"):
                    node_id = (await log.cluster()).leader
                else:
                    node_id = (await log.describe_topic(topic)).segments[-1].leader
        except IsterError:
            return otherwise
        return self._cluster.nodes.get(node_id, otherwise)
