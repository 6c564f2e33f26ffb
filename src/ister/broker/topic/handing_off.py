"""A topic that ends its open segment: drains it, seals it, and goes on with what the chain says is next.

The handoff machine (`handoff`) says what is to be done; here it is done, one step after the other, by one
task. Which segment comes next, and who leads it, is the metadata's to say (H1): the answer to a proposal may
be lost, and what was applied is then found in the chain.

Fault model: the metadata may not answer, or apply a command whose answer is lost; the disk may fail while the
segment drains; somebody else may seal it first.
"""

from __future__ import annotations

import asyncio
import logging

from ister.broker.node.storage import Storage
from ister.broker.node.storage_faults import doubt
from ister.broker.topic import handoff as steps
from ister.broker.topic.opening import FAULT_RETRY_SECONDS
from ister.broker.topic.replicated import ReplicatedTopic
from ister.broker.topic.sealing import make_seal
from ister.errors import InvariantBroken, IsterError, ShuttingDown, invariant
from ister.metadata.commands import Outcome, Result
from ister.metadata.state import TopicState
from ister.protocol.peer import node_of
from ister.wal.segment import FsyncPolicy, Segment

log = logging.getLogger("ister.broker.topic")


class HandingOffTopic(ReplicatedTopic):
    """A topic that hands its segments off. `TopicLog` adds the appends."""

    def __init__(self, storage: Storage, state: TopicState) -> None:
        super().__init__(storage, state)
        self._effects: list[steps.Effect] = []
        self._drained: asyncio.Event = asyncio.Event()

    def start_handoff(self) -> None:
        """Begin to seal the open segment; nothing happens if that is under way.

        Nor if the segment has failed: it is about to be opened again, and two must not decide its end.
        """
        if self.segment is not None and self.segment.failure is None and self._handoff.admits:
            self._run_soon(self._handoff.step(steps.Close()))

    def _run_soon(self, effects: list[steps.Effect]) -> None:
        self._effects += effects
        if self._handing_off is None:
            self._handing_off = asyncio.get_running_loop().create_task(self._run_handoffs())
            self._handing_off.add_done_callback(lambda _: self._turn())

    async def _run_handoffs(self) -> None:
        """Carry out effects until there are none: an append released by one handoff may begin the next."""
        try:
            while self._effects:
                segment = self.segment
                if segment is None or self._stopping:
                    self._effects.clear()  # the topic was deleted, or the next start goes on from here
                    break
                match self._effects.pop(0):
                    case steps.Drain():
                        self._effects += await self._drain(segment)
                    case steps.ProposeSeal(end):
                        self._effects += await self._seal(segment, end)
                    case steps.AwaitSeal():
                        self._effects += await self._await_seal(segment)
                    case steps.OpenNext():
                        if self.leading is not None:
                            self.leading.close()
                            self.leading = None
                        self.segment = self._cut_at = None
                        if segment.failure is not None:
                            segment.refuse_waiting()
                        segment.close()
                        if self.leads:
                            await self._open_soon()
        except InvariantBroken as error:
            # A seal below what was acknowledged, say (F3): nothing here goes on before somebody has looked.
            log.critical("%s", error.message, extra={"fields": {"topic": self.state.name}})
            self._set_fault(error)
            self._held.refuse(error)
        finally:
            self._handing_off = None
            if self.segment is None and not self.leads:
                self._release_held()

    async def _drain(self, segment: Segment) -> list[steps.Effect]:
        await self._wait_idle(segment)
        if segment.failure is not None:
            return self._handoff.step(steps.StorageBroke(segment.committed_end))
        if segment.policy is not FsyncPolicy.FSYNC:
            await self._checkpoint(segment)  # which syncs: a sealed segment must not lose its end
        return self._handoff.step(steps.Drained(segment.committed_end))

    async def _wait_idle(self, segment: Segment) -> None:
        """All that was admitted is committed, or nothing more will be."""
        while not segment.is_idle and segment.failure is None:
            self._drained.clear()
            await self._drained.wait()

    async def _wait_idle_at_the_end(self, segment: Segment) -> None:
        """With other replicas it may be for ever; those who wait are then told that nobody knows."""
        try:
            async with asyncio.timeout(2 * FAULT_RETRY_SECONDS if self.leading is not None else None):
                await self._wait_idle(segment)
        except TimeoutError:
            segment.stop(self._going())

    async def _checkpoint(self, segment: Segment) -> None:
        """Make the next opening of this segment quick. Its records are durable with or without this."""
        segment.hold(writes=True)
        try:
            await self._storage.disk.run(segment.final_checkpoint())
        except OSError as error:
            log.warning("final checkpoint of %s was not written: %s", segment.identity.key, error)
        finally:
            segment.release(writes=True)

    async def _seal(self, segment: Segment, end: int) -> list[steps.Effect]:
        """Side by side: what waits for the next segment waits for the longer of the two, not for both."""
        effects, _ = await asyncio.gather(self._propose_seal(segment, end), self._checkpoint(segment))
        return effects

    async def _propose_seal(self, segment: Segment, end: int) -> list[steps.Effect]:
        known = self._sealed_already(segment)
        if known is not None:
            return known  # by an earlier proposal, of which only the answer was lost
        seal = make_seal(self._storage, self.state, segment, end)
        proposal = asyncio.get_running_loop().create_task(self._storage.metadata.propose(seal))
        # Nobody may be left to look at it: the chain overtook it, or the broker stops.
        proposal.add_done_callback(lambda done: done.cancelled() or done.exception())
        if await self._is_overtaken(proposal, segment):
            return self._sealed_already(segment) or []
        try:
            outcome = proposal.result()
        except IsterError as error:
            level = logging.DEBUG if isinstance(error, ShuttingDown) else logging.ERROR
            log.log(level, "seal of %s failed: %s", segment.identity.key, error)
            return await self._propose_later()
        if outcome.result is Result.APPLIED:
            log.debug("sealed %s at %d", segment.identity.key, end)
            return self._handoff.step(steps.SealApplied(end, outcome.index))
        known = self._sealed_already(segment)
        if known is not None or self.is_deleted:
            return known or []
        log.error("seal of %s was not applied: %s", segment.identity.key, outcome.detail)
        return await self._propose_later()

    async def _is_overtaken(self, proposal: asyncio.Task[Outcome], segment: Segment) -> bool:
        """Wait for a proposal; True if the chain says before its answer that the segment is sealed. The
        answer may be lost, and what waits for the next segment need not wait for that to be found out."""
        while not proposal.done():
            turned = asyncio.get_running_loop().create_task(self._turned.wait())
            await asyncio.wait([proposal, turned], return_when=asyncio.FIRST_COMPLETED)
            turned.cancel()
            if not proposal.done() and self.segment is segment and self.current is None:
                proposal.cancel()
                return True
        return False

    def _sealed_already(self, segment: Segment) -> list[steps.Effect] | None:
        """What follows if the chain has this segment as sealed (H1); None if it is the open one."""
        state = next((state for state in self.state.segments if state.uid == segment.identity.uid), None)
        if self.is_deleted or (state is not None and state.end_offset is None):
            return None
        # One that is no longer in the chain was trimmed, and so was sealed before.
        end = segment.committed_end
        if state is None and segment.replication is not None and not segment.is_idle:
            # By others perhaps, and further on: what waits may be in the line, and must not be sent again.
            segment.refuse_waiting(doubt(segment, "it was sealed by others, and trimmed since"))
        if state is not None and state.end_offset is not None:
            end = state.end_offset
            level = logging.DEBUG if state.sealed_by == self._storage.member else logging.WARNING
            log.log(
                level, "%s was sealed at %d by node %d", segment.identity.key, end, node_of(state.sealed_by)
            )
        if state is not None and state.lost_from is not None:
            # What waits past this is not in the log for anybody, and goes to the next leader (F6).
            return self._handoff.step(
                steps.SealApplied(state.lost_from, self._storage.metadata.state.applied_index)
            )
        invariant(end >= segment.committed_end, f"{segment.identity.key} was sealed at {end}, below its end")
        return self._handoff.step(steps.SealApplied(end, self._storage.metadata.state.applied_index))

    async def _propose_later(self) -> list[steps.Effect]:
        await asyncio.sleep(FAULT_RETRY_SECONDS)
        return [] if self.is_deleted else self._handoff.step(steps.ProposalFailed())
