"""Repair of sealed segments: who has too few copies gets another one, on a node that answers.

Every so often each node looks at the sealed segments of which it is the first replica that answers, and has a
whole copy itself. One that has lost a replica is copied to another node, and then the metadata is told, by a
compare-and-set on the list and on who has all of it (F4, C3). The others wait their turn: they step in if the
first does not get it done.

Fault model: members fall silent and come back, disks are lost, several nodes repair the same segment at once,
any of them stops at any line, its proposal may be applied long afterwards, or never.

What holds:
- A replica is gone if its disk is not in the cluster any more, or did not answer for `repair_after`.
- Who comes and who goes is the plan's to say (`plan`), by who is known to have all of it: nobody is asked.
- The metadata compares the list and who has it, and judges once more who may leave (C3). Who left looks once
  more before its copy goes (`leaving`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from ister.errors import IsterError
from ister.metadata.commands import Result, SetReplicas
from ister.metadata.state import SegmentState, TopicState
from ister.metrics import Counter
from ister.protocol.peer import node_of
from ister.replication.copies.completing import Completions
from ister.replication.copies.copies import Copies
from ister.replication.copies.last_look import Asking, ask_about
from ister.replication.copies.plan import Change, Members, change_for
from ister.replication.places import Place

log = logging.getLogger("ister.replication.copies.repair")

CHECK_SECONDS = 5.0
TURN_SECONDS = 30.0
"""How long each replica further back in the list waits for those before it."""
FIRST_POLL_SECONDS = 0.05
POLL_SECONDS = 1.0
"""A node that copies is asked whether it has it: soon at first, as many segments are small."""
REST_SECONDS = 30.0
"""After an attempt that came to nothing: so long the segment waits, and others are preferred to that node."""
MAX_REPAIRS = 4
"""At a time, that this node sees to. What is copied is the taking node's matter, one segment at a time."""
SEGMENTS_AT_ONCE = 500
"""So many are looked at before others have the event loop."""


class Repairing(Asking, Protocol):
    """What repairs need of their node."""

    member: int
    copies: Copies
    completions: Completions


class Repairs:
    def __init__(
        self, node: Repairing, after_seconds: float, spawn: Callable[[Awaitable[None]], None]
    ) -> None:
        self._node = node
        self._after = after_seconds
        self._spawn = spawn
        self._silent_since: dict[int, float] = {}
        self._needed_since: dict[int, float] = {}
        """Segments of which this node is a replica and that need a change, and since when."""
        self._found: dict[int, tuple[TopicState, SegmentState]] = {}
        """Those of them that were found by the last look and have not begun since."""
        self._running: set[int] = set()
        self._resting: dict[int, float] = {}
        """Segments of which the last attempt came to nothing: until when they wait."""
        self._avoided: dict[int, float] = {}
        """Members that did not copy what they were asked to: until when others are chosen before them."""
        self._held: Tally[int] = Tally()
        self.repaired = Counter(
            "repaired_segments_total", "Sealed segments that this node had copied to another."
        )
        self.failed = Counter(
            "repairs_failed_total", "Attempts at that which came to nothing, and are repeated."
        )

    @property
    def running(self) -> int:
        return len(self._running)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._look()

    def members(self) -> Members:
        metadata = self._node.metadata
        active = metadata.state.active_members
        now, since = self._now(), self._silent_since
        lost = {m for m in active if now - since.get(m, now) >= self._after and not metadata.is_alive(m)}
        alive = [m for m in active if metadata.is_alive(m)]
        return Members(frozenset(active), alive, lost, metadata.state.drains.members)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # Looking.

    async def _look(self) -> None:
        metadata, now = self._node.metadata, self._now()
        silent = [m for m in metadata.state.active_members if not metadata.is_alive(m)]
        self._silent_since = {m: self._silent_since.get(m, now) for m in silent}
        self._resting = {uid: until for uid, until in self._resting.items() if until > now}
        self._avoided = {member: until for member, until in self._avoided.items() if until > now}
        members = self.members()
        alive = frozenset(members.alive).difference(members.drained)
        needed: dict[int, tuple[TopicState, SegmentState]] = {}
        async for topic, segment in self._segments():
            is_well = len(segment.replicas) == topic.settings.replicas and alive.issuperset(segment.replicas)
            if not is_well and self._needs(topic, segment, members):
                needed[segment.uid] = topic, segment
        if needed:
            held = Tally[int]()
            async for _, segment in self._segments():
                held.update(segment.replicas)
            self._held = held
        self._needed_since = {uid: self._needed_since.get(uid, now) for uid in needed}
        self._found = {uid: found for uid, found in needed.items() if uid not in self._running}
        self._begin()

    def _begin(self) -> None:
        """As many as may be under way at a time."""
        members = self.members()
        for uid, (topic, segment) in list(self._found.items()):
            if len(self._running) >= MAX_REPAIRS:
                break
            if uid not in self._resting and self._is_turn(segment, members):
                del self._found[uid]
                self._running.add(uid)
                self._spawn(self._repair(topic.uid, uid))

    async def _segments(self) -> AsyncIterator[tuple[TopicState, SegmentState]]:
        """All of them. There may be many: others have their turn in between."""
        seen = 0
        for topic in list(self._node.metadata.state.topics.values()):
            for segment in list(topic.segments):
                yield topic, segment
                seen += 1
                if seen % SEGMENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _needs(self, topic: TopicState, segment: SegmentState, members: Members) -> bool:
        """Whether this node could do something for a segment."""
        if not segment.is_sealed or self._node.member not in segment.replicas:
            return False
        is_drained = any(m in members.drained for m in segment.replicas)
        if segment.lost_from == segment.base_offset and not is_drained:
            return False  # given up as a whole: there is nothing to copy
        if is_drained and segment.history is not None and not segment.history.damaged:
            return False  # its copies are about to be released to the history
        if not self._node.completions.is_whole(segment.uid):
            return False
        return self._change(topic, segment, members) is not None

    def _change(self, topic: TopicState, segment: SegmentState, members: Members) -> Change | None:
        """What is to be done, if this node may do it: whoever is to go leaves that to those who stay."""
        own = self._node.member
        change = change_for(segment, topic.settings.replicas, members, self._held, self._avoided.keys())
        if change is None:
            return None
        others = [m for m in segment.replicas if m != own and m in members.alive and members.stays(m)]
        is_left_to_others = not members.stays(own) and any(map(segment.is_whole_at, others))
        return None if is_left_to_others else change

    def _is_turn(self, segment: SegmentState, members: Members) -> bool:
        """The first replica that answers begins; whoever comes after it does if that was to no avail."""
        order = [m for m in segment.replicas if m in members.alive and m not in members.drained]
        order = order if self._node.member in order else [self._node.member]
        place = order.index(self._node.member) if self._node.member in order else len(order)
        return self._now() - self._needed_since[segment.uid] >= place * TURN_SECONDS

    # Repairing.

    async def _repair(self, topic_uid: int, uid: int) -> None:
        change: Change | None = None
        try:
            place = self._node.copies.place(topic_uid, uid)
            change = self._change(place.topic, place.segment, self.members()) if place is not None else None
            if place is None or change is None:
                return
            if await self._carry_out(place, change):
                self.repaired.add()
        except (IsterError, OSError) as error:
            log.warning("a repair came to nothing, and is tried again: %s", error)
            self.failed.add()
            self._rest(uid)
            if change is not None and change.target:
                self._avoided[change.target] = self._now() + REST_SECONDS
        finally:
            self._running.discard(uid)
        self._begin()

    def _rest(self, uid: int) -> None:
        self._resting[uid] = self._now() + REST_SECONDS

    async def _carry_out(self, place: Place, change: Change) -> bool:
        """Whether the list is changed now. Where the reason for it is another meanwhile, the next look finds
        what is to be done. It rests where it was refused."""
        topic_uid, segment, key = place.topic.uid, place.segment, place.identity.key
        pause = FIRST_POLL_SECONDS
        while change.target and not await ask_about(
            self._node, change.target, place, source=self._node.member
        ):
            await asyncio.sleep(pause)
            pause = min(POLL_SECONDS, 2 * pause)
            if not self._still_holds(place, change):
                return False
        if not self._still_holds(place, change):
            return False
        command = SetReplicas(
            topic_uid,
            segment.segment,
            change.expected,
            change.replicas,
            expected_whole=list(segment.whole),
        )
        outcome = await self._node.metadata.propose(command)
        fields = {
            "segment": key,
            "replicas": [node_of(member) for member in change.replicas],
            "before": [node_of(member) for member in change.expected],
            "result": str(outcome.result),
        }
        log.info(
            "replicas changed" if outcome.result is Result.APPLIED else "not changed",
            extra={"fields": fields},
        )
        if outcome.result is Result.REFUSED:
            self._rest(segment.uid)
        return outcome.result is Result.APPLIED

    def _still_holds(self, place: Place, change: Change) -> bool:
        """Whether there still is a reason for this change, and nothing came in between."""
        now = self._node.copies.place(place.topic.uid, place.segment.uid)
        if now is None or now.segment.replicas != change.expected:
            return False
        if not self._node.completions.is_whole(now.segment.uid):
            return False
        fresh = self._change(now.topic, now.segment, self.members())
        return fresh is not None and bool(fresh.target) == bool(change.target)
