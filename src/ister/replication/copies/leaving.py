"""Copies of sealed segments that are on this disk, though the node is no replica of them: when they go.

A repair has put another in this node's place, a recovery went on without it, or a copy was begun here and
given up. What the list says is then who is to have the segment, and not that they do: a change may be applied
long after the copy that it counts is gone again, and those who have it may be about to be lost. So a copy
stays until all in the list have said that they are whole, as of that very list. Where the list has one
member, which nobody may look at after a start, it has read its copy to the end for that (`only_copies`).

Where disks of the list left the cluster they will never say so, and what is here may be all there is. It is
checked then, and offers itself: the metadata is told to count this node again. So it does where one of them
says that its copy is damaged, and that the others have nothing better. Readers and repair go on from there.

Of a segment that was released to the history nobody is in the list: a copy goes when this node has seen for
itself that the object is there, and offers itself if it is not, or is another.

Fault model: the metadata known here may be old, whoever is asked may be gone a moment later, others have
copies that are not theirs too. All who stay in a list have said that they are whole, or were in it before, so
that a copy which goes is never the last one; an offer is a compare-and-set on the list (F4). One that comes
after the segment was given up changes nothing for readers: what was given up is set aside here as everywhere
(F6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from ister.errors import CorruptSegment, InvariantBroken, IsterError, NodeUnreachable, RequestTimeout
from ister.metadata.commands import SetReplicas
from ister.metadata.nodes import is_in_cluster
from ister.protocol.peer import node_of
from ister.replication.copies.copies import Copies
from ister.replication.copies.sealed_copies import SealedCopies
from ister.replication.copies.wholeness import Asking, Said, ask_about
from ister.replication.places import Place

log = logging.getLogger("ister.replication.copies.leaving")

LOOK_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 600.0
"""A copy that can be neither checked nor removed is looked at after pauses between these."""


class _Rest(NamedTuple):
    until: float
    pause: float
    why: str


class Node(Asking, Protocol):
    member: int
    copies: Copies
    sealed_copies: SealedCopies

    async def look_at_object(self, place: Place) -> Said: ...


class LeavingCopies:
    def __init__(self, node: Node, is_guest: Callable[[int], bool]) -> None:
        """`is_guest` says of which segments a copy is being made here, or waits to be counted."""
        self._node = node
        self._is_guest = is_guest
        self.segments: dict[int, int] = {}
        """Segments, and their topics, that there may be files of."""
        self._resting: dict[int, _Rest] = {}
        self._new: dict[int, None] = {}
        """Those that nobody has looked at since they came."""
        self._is_woken = asyncio.Event()
        self._no_good: set[int] = set()
        """Those of them whose log here was found short or damaged: it stays, and is not offered."""
        self._silent: set[int] = set()
        """Members that did not answer in this round: they are not waited for again for each segment."""

    def add(self, topic_uid: int, segment_uid: int) -> None:
        self.segments[segment_uid] = topic_uid
        self._no_good.discard(segment_uid)  # it may be another copy
        self._resting.pop(segment_uid, None)
        self._new[segment_uid] = None
        self._is_woken.set()

    async def run(self) -> None:
        """Those that are new at once, and all of them every so often."""
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._is_woken.wait()
            self._is_woken.clear()
            due, self._new = self._new, {}
            is_round = loop.time() >= due_at
            self._silent.clear()
            for uid in self._in_order() if is_round else due:
                await self._look_at(uid)
                await asyncio.sleep(0)  # there may be many, and no reason to wait with any
            if is_round:
                due_at = loop.time() + LOOK_SECONDS

    def _in_order(self) -> list[int]:
        """Those first that may be the last ones."""
        nodes = self._node.metadata.state.nodes

        def has_all(uid: int) -> bool:
            place = self._node.copies.place(self.segments[uid], uid)
            return place is None or all(is_in_cluster(nodes, member) for member in place.segment.replicas)

        return sorted(self.segments, key=has_all)

    async def _look_at(self, uid: int) -> None:
        topic_uid, rest = self.segments.get(uid), self._resting.get(uid)
        now = asyncio.get_running_loop().time()
        if topic_uid is None or (rest is not None and now < rest.until):
            return
        try:
            is_settled = await self._look(topic_uid, uid)
        except (IsterError, OSError) as error:
            pause = min(2 * rest.pause, LONGEST_PAUSE_SECONDS) if rest is not None else LOOK_SECONDS
            self._resting[uid] = _Rest(now + pause, pause, str(error))
            if rest is None or rest.why != str(error):
                log.warning("a copy of segment %d, which others are to have, stays here: %s", uid, error)
            return
        self._resting.pop(uid, None)
        if is_settled and uid not in self._new:  # it may have come again meanwhile
            self.segments.pop(uid, None)
            self._no_good.discard(uid)

    async def _look(self, topic_uid: int, uid: int) -> bool:
        """Whether this is not the place any more to look after that segment's files."""
        node = self._node
        place = node.copies.place(topic_uid, uid)
        if place is None or node.member in place.segment.replicas or self._is_guest(uid):
            return True  # trimmed; or this node is, or is about to be, one of those who have it
        segment = place.segment
        expected = segment.replicas
        if not segment.is_sealed:
            return False
        if segment.is_empty:
            said = Said.WHOLE
        elif segment.is_released:
            said = await node.look_at_object(place)
        else:
            said = await self._ask_all(place)
        if said is Said.WHOLE or not node.sealed_copies.is_here(place):
            return await node.sealed_copies.remove(place, expected, self._is_guest)
        if segment.lost_from is None and uid not in self._no_good:
            nodes = node.metadata.state.nodes
            there = [member for member in expected if is_in_cluster(nodes, member)]
            if len(there) < len(expected) or said is Said.DAMAGED:
                is_doubted = said is Said.DAMAGED or await self._is_denied(place, there)
                await self._offer(place, expected, there, is_doubted=is_doubted)
        return False

    async def _ask_all(self, place: Place) -> Said:
        """Whole if all are who are to have it; else what the first says that is not."""
        node, replicas = self._node, place.segment.replicas
        if not all(map(node.metadata.is_alive, replicas)) or self._silent.intersection(replicas):
            return Said.NOT_KNOWN
        for member in replicas:
            try:
                said = await ask_about(node, member, place)
            except IsterError as error:
                log.debug("whether %s is whole elsewhere is not known: %s", place.identity.key, error)
                if isinstance(error, NodeUnreachable | RequestTimeout):
                    self._silent.add(member)
                return Said.NOT_KNOWN
            if said is not Said.WHOLE:
                return said
        return Said.WHOLE

    async def _is_denied(self, place: Place, members: list[int]) -> bool:
        """Whether one of these says that it is not whole, though it may be counted as such. Of one that does
        not answer what was known stays so."""
        for member in members:
            if not self._node.metadata.is_alive(member) or member in self._silent:
                continue
            try:
                if await ask_about(self._node, member, place) is not Said.WHOLE:
                    return True
            except IsterError as error:
                log.debug("node %d says nothing of %s: %s", node_of(member), place.identity.key, error)
        return False

    async def _offer(self, place: Place, expected: list[int], there: list[int], *, is_doubted: bool) -> None:
        """`is_doubted` if what was known of those who are there does not hold any more."""
        node, segment = self._node, place.segment
        why = "it ends short, or is damaged"
        try:
            is_good = await node.sealed_copies.is_good(place)
        except (CorruptSegment, InvariantBroken) as error:
            is_good, why = False, error.message
        if is_good is False:
            self._no_good.add(segment.uid)
            log.error("what is here of %s may be all there is, and is not whole: %s", place.identity.key, why)
        if not is_good:
            return
        confirmed = 1 if is_doubted or not segment.whole_at_least else 0
        command = SetReplicas(
            place.topic.uid, segment.segment, expected, [*there, node.member], confirmed=confirmed
        )
        outcome = await node.metadata.propose(command)
        fields = {
            "segment": place.identity.key,
            "before": [node_of(member) for member in expected],
            "result": str(outcome.result),
            "detail": outcome.detail,
        }
        log.warning("a copy that may be the last one was offered", extra={"fields": fields})
