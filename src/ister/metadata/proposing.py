"""Asking the metadata leader, wherever it is: to take a command, or how far it has committed.

On the leader a command enters the log, elsewhere it travels there and its outcome comes back; the call
returns once this node has applied it too. Nobody waits for ever: past a deadline the error says that no
majority could be found.

Fault model: leaders change, requests and answers are lost, so that a command may be applied though its answer
never came. Every one may be applied twice: it is idempotent, a compare-and-set, or, as `BeginRecovery`, takes
the place of its like. So it is simply proposed again; but not by a node that knows what came of it, and is
slow to apply it itself: one whose disk hangs would do so for as long as it hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

import msgspec

from ister.errors import ConnectionFailed, NotLeader, Overloaded, RequestTimeout, ShuttingDown
from ister.io.clock import monotonic
from ister.metadata.commands import Outcome
from ister.peers import Peers
from ister.protocol.peer import PeerKind
from ister.raft.driver import RaftNode

ATTEMPT_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 0.05

_RETRIED = (NotLeader, ConnectionFailed, RequestTimeout, Overloaded)
_NO_MAJORITY = "The cluster may have no majority; ask `ister cluster status` on several nodes."

T = TypeVar("T")


class Proposals:
    def __init__(
        self,
        raft: RaftNode,
        peers: Peers,
        member: int,
        random: Random,
        has_majority: Callable[[], bool] = lambda: True,
    ) -> None:
        self._raft = raft
        self._peers = peers
        self._member = member
        self._random = random
        self._has_majority = has_majority
        self.is_stopping = False
        """Then a majority that does not answer is not waited for: the next start goes on from here."""
        self._limits: dict[asyncio.Timeout, None] = {}
        """Of what waits for a majority."""

    async def keep_looking(self) -> None:
        """While this node stops: end what waits for a majority that answers no more. Others may have stopped
        a moment before, and are missed only when something waits already."""
        while True:
            if not self._has_majority():
                now = asyncio.get_running_loop().time()
                for limit in self._limits:
                    if not limit.expired():
                        limit.reschedule(now)
            await asyncio.sleep(_LOOK_SECONDS)

    @asynccontextmanager
    async def needs_majority(self, seconds: float | None = None) -> AsyncIterator[None]:
        """What needs one, for so long; `TimeoutError` earlier if this node is stopping and there is none."""
        async with asyncio.timeout(seconds) as limit:
            self._limits[limit] = None
            try:
                yield
            finally:
                del self._limits[limit]

    async def propose(self, data: bytes, timeout: float) -> Outcome:
        """`data` is a command."""
        deadline = monotonic() + timeout
        outcome = await self._persist(
            lambda seconds: self.propose_once(data, seconds), timeout, "metadata could not be changed"
        )
        try:
            await self._raft.wait_applied(outcome.index, max(0.01, deadline - monotonic()))
        except _RETRIED as error:
            if self._raft.failure is not None:
                raise self._raft.failure.again() from error
            raise RequestTimeout(
                f"metadata was changed, but this node has not applied that within {timeout:.0f} s",
                hint="Its disk may hang, or its way to the metadata leader be cut: look at its log and disk.",
            ) from error
        return outcome

    async def read_index(self, timeout: float) -> None:
        await self._persist(self.read_once, timeout, "no metadata leader could be asked")

    async def _persist(self, attempt: Callable[[float], Awaitable[T]], timeout: float, what: str) -> T:
        """Try again after what may pass, until the deadline."""
        deadline = monotonic() + timeout
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self.needs_majority():
                    return await attempt(max(0.01, min(ATTEMPT_SECONDS, deadline - monotonic())))
            except TimeoutError as error:
                if not self.is_stopping:
                    raise
                raise ShuttingDown(f"{what}: this node is stopping, and too few voters answer") from error
            except _RETRIED as error:
                if self._raft.failure is not None:
                    raise self._raft.failure.again() from error
                if self.is_stopping and not self._has_majority():
                    raise ShuttingDown(f"{what}: this node is stopping, and {error.message}") from error
                if monotonic() >= deadline:
                    raise RequestTimeout(
                        f"{what} within {timeout:.0f} s: {error.message}", hint=_NO_MAJORITY
                    ) from error
                await asyncio.sleep(min(pause * (0.5 + self._random.random()), deadline - monotonic()))
                pause = min(pause * 1.5, 0.1)

    async def propose_once(self, data: bytes, timeout: float) -> Outcome:
        if self._raft.is_leader:
            outcome = await self._raft.propose(data, timeout)
            assert isinstance(outcome, Outcome)
            return outcome
        answer = await self.ask_leader(PeerKind.PROPOSE, b"", data, timeout=timeout)
        return msgspec.msgpack.decode(answer, type=Outcome)

    async def read_once(self, timeout: float) -> None:
        if self._raft.is_leader:
            await self._raft.read_index(timeout)
            return
        answer = await self.ask_leader(PeerKind.READ_INDEX, b"", timeout=timeout)
        await self._raft.wait_applied(int.from_bytes(answer, "little"), timeout)

    async def ask_leader(
        self, kind: PeerKind, header: bytes, payload: bytes = b"", *, timeout: float
    ) -> bytes:
        """One request to the metadata leader, which is another node."""
        leader = self._raft.leader
        if not leader or leader == self._member:
            raise NotLeader("no metadata leader is known", hint=_NO_MAJORITY)
        return (await self._peers.request(leader, kind, header, payload, timeout=timeout)).header
