"""The end of a topic's open segment: drained, sealed, and let go of for what the chain says is next.

The handoff machine (`handoff`) says what is to be done; here it is done, one step after the other, by one
task. Which segment comes next, and who leads it, is the metadata's to say (H1): the answer to a proposal may
be lost, and what was applied is then found in the chain.

Fault model: the metadata may not answer, or apply a command whose answer is lost; the disk may fail while the
segment drains; somebody else may seal it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ister.broker.node.storage import Storage
from ister.broker.node.storage_faults import doubt
from ister.broker.topic import handoff as steps
from ister.broker.topic.held import HeldAppend, HeldAppends
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.led_segment import FAULT_RETRY_SECONDS, LedSegment
from ister.broker.topic.life import Stage
from ister.broker.topic.sealing import make_seal, wanted_move
from ister.errors import InvariantBroken, IsterError, ShuttingDown, invariant
from ister.failpoints import Step
from ister.frame import FrameHeader, decode_header
from ister.metadata.commands import Outcome, Result
from ister.metadata.placement import Why
from ister.metadata.state import SegmentState
from ister.protocol.peer import node_of
from ister.wal.segment import FsyncPolicy, Segment
from ister.wal.sink import Waiting

log = logging.getLogger("ister.broker.topic")


class HandingOff:
    def __init__(
        self,
        topic: KnownTopic,
        storage: Storage,
        led: LedSegment,
        held: HeldAppends,
        release_held: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._storage = storage
        self._led = led
        self._held = held
        self._release_held = release_held
        self._effects: list[steps.Effect] = []
        self._drained = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        """What carries them out, while there are any."""

    def start(self, why: Why = Why.FULL) -> None:
        """Begin to seal the open segment; nothing happens if that is under way.

        Nor if the segment has failed: it is about to be opened again, and two must not decide its end.
        """
        led = self._led
        if led.segment is not None and led.segment.failure is None and led.handoff.admits:
            self.carry_out(led.handoff.step(steps.Close(why)))

    def carry_out(self, effects: list[steps.Effect]) -> None:
        if not effects or self._led.stage in (Stage.HALTED, Stage.OVER):
            return
        self._led.ending()
        self._effects += effects
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._run())
            self.task.add_done_callback(lambda _: self._led.turn())

    async def finished(self) -> None:
        """Returns once the segment that is being handed off is sealed."""
        while self.task is not None and not self._topic.is_deleted:
            await asyncio.wait([self.task])

    async def _run(self) -> None:
        """Carry out effects until there are none: an append released by one handoff may begin the next."""
        led = self._led
        try:
            while self._effects:
                segment = led.segment
                if segment is None or led.is_over:
                    self._effects.clear()  # the topic was deleted, or the next start goes on from here
                    break
                match self._effects.pop(0):
                    case steps.Drain():
                        self._effects += await self.drain(segment)
                    case steps.ProposeSeal(end):
                        self._effects += await self._seal(segment, end)
                    case steps.AwaitSeal():
                        self._effects += await self._await_seal(segment)
                    case steps.OpenNext():
                        self._storage.reach(Step.SEALED)
                        await led.sealed(segment)
        except InvariantBroken as error:
            # A seal below what was acknowledged, say (F3).
            log.critical("%s", error.message, extra={"fields": {"topic": self._topic.state.name}})
            self._effects.clear()
            led.halt(error)
            self._held.refuse(error)
        finally:
            self.task = None
            if led.segment is None and not self._topic.leads:
                self._release_held()

    # Draining.

    async def drain(self, segment: Segment) -> list[steps.Effect]:
        await self._wait_idle(segment)
        handoff = self._led.handoff
        if segment.failure is not None:
            return handoff.step(steps.StorageBroke(segment.committed_end))
        if segment.policy is not FsyncPolicy.FSYNC:
            await self.checkpoint(segment)  # which syncs: a sealed segment must not lose its end
        return handoff.step(steps.Drained(segment.committed_end))

    def looked_idle(self) -> None:
        """The segment may be idle, or takes nothing more: who waits for that looks again."""
        self._drained.set()

    async def _wait_idle(self, segment: Segment) -> None:
        """All that was admitted is committed, or nothing more will be."""
        while not segment.is_idle and segment.failure is None:
            self._drained.clear()
            await self._drained.wait()

    async def wait_idle_at_the_end(self, segment: Segment) -> None:
        """With other replicas it may be for ever; those who wait are then told that nobody knows."""
        try:
            async with asyncio.timeout(2 * FAULT_RETRY_SECONDS if self._led.leading is not None else None):
                await self._wait_idle(segment)
        except TimeoutError:
            segment.stop(self._led.stopping())

    async def checkpoint(self, segment: Segment) -> None:
        """Make the next opening of this segment quick. Its records are durable with or without this."""
        segment.hold(writes=True)
        try:
            await self._storage.disk.run(segment.final_checkpoint())
        except OSError as error:
            log.warning("final checkpoint of %s was not written: %s", segment.identity.key, error)
        finally:
            segment.release(writes=True)

    # Sealing.

    async def _seal(self, segment: Segment, end: int) -> list[steps.Effect]:
        """Side by side: what waits for the next segment waits for the longer of the two, not for both."""
        effects, _ = await asyncio.gather(self.propose_seal(segment, end), self.checkpoint(segment))
        return effects

    async def propose_seal(self, segment: Segment, end: int) -> list[steps.Effect]:
        known = self._sealed_already(segment)
        if known is not None:
            return known  # by an earlier proposal, of which only the answer was lost
        self._storage.reach(Step.DRAINED)
        seal = make_seal(self._storage, self._topic.state, segment, end, self._led.handoff.why)
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
            return self._led.handoff.step(steps.SealApplied(end, outcome.index))
        known = self._sealed_already(segment)
        if known is not None or self._topic.is_deleted:
            return known or []
        if seal.move and wanted_move(self._storage, self._topic.state) is None:
            log.info("the move of %s is off: %s", segment.identity.key, outcome.detail)  # E7: it stays
            return self._led.handoff.step(steps.ProposalFailed())
        log.error("seal of %s was not applied: %s", segment.identity.key, outcome.detail)
        return await self._propose_later()

    async def _is_overtaken(self, proposal: asyncio.Task[Outcome], segment: Segment) -> bool:
        """Wait for a proposal; True if the chain says before its answer that the segment is sealed. The
        answer may be lost, and what waits for the next segment need not wait for that to be found out."""
        led = self._led
        while not proposal.done():
            turned = asyncio.get_running_loop().create_task(led.turned.wait())
            await asyncio.wait([proposal, turned], return_when=asyncio.FIRST_COMPLETED)
            turned.cancel()
            if not proposal.done() and led.segment is segment and led.current is None:
                proposal.cancel()
                return True
        return False

    async def _propose_later(self) -> list[steps.Effect]:
        await asyncio.sleep(FAULT_RETRY_SECONDS)
        return [] if self._topic.is_deleted else self._led.handoff.step(steps.ProposalFailed())

    async def _await_seal(self, segment: Segment) -> list[steps.Effect]:
        """By others, or by this node's part in their recovery."""
        led = self._led
        while not led.is_over:
            turned = led.turned
            known = self._sealed_already(segment)
            if known is not None:
                await segment.settled()
                assert led.handoff.end_offset is not None
                self._send_on(segment.settle(led.handoff.end_offset))
                return known
            self._storage.replication.recover(self._topic.state.uid)
            await turned.wait()
        return []

    def _sealed_already(self, segment: Segment) -> list[steps.Effect] | None:
        """What follows if the chain has this segment as sealed (H1); None if it is the open one."""
        state = self.state_of(segment)
        if self._topic.is_deleted or (state is not None and state.end_offset is None):
            return None
        # One that is no longer in the chain was trimmed, and so was sealed before.
        end, key = segment.committed_end, segment.identity.key
        if state is None and segment.replication is not None and not segment.is_idle:
            # By others perhaps, and further on: what waits may be in the line, and must not be sent again.
            segment.refuse_waiting(doubt(segment, "it was sealed by others, and trimmed since"))
        if state is not None and state.end_offset is not None:
            end = state.end_offset
            level = logging.DEBUG if state.sealed_by == self._storage.member else logging.WARNING
            log.log(level, "%s was sealed at %d by node %d", key, end, node_of(state.sealed_by))
        if state is not None and state.lost_from is not None:
            end = state.lost_from  # what waits past this is not in the log for anybody (F6)
        else:
            invariant(end >= segment.committed_end, f"{key} was sealed at {end}, below its end")
        return self._led.handoff.step(steps.SealApplied(end, self._storage.metadata.state.applied_index))

    def state_of(self, segment: Segment) -> SegmentState | None:
        """As the chain has it; None if it was trimmed."""
        return next((one for one in self._topic.state.segments if one.uid == segment.identity.uid), None)

    def _send_on(self, waiting: list[Waiting]) -> None:
        """What was admitted and is past the sealed end: first among those that wait for the next leader."""
        held: list[HeldAppend] = []
        for _, sink, token, _, _, started, frame in waiting:
            header = decode_header(frame)
            assert isinstance(header, FrameHeader) and not isinstance(frame, bytes)
            held.append(HeldAppend(frame, header, sink, token, started))
        self._held.put_first(held, self._topic.state.name)
