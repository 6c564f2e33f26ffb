"""Copies of sealed segments that are on this disk, though the node is no replica of them: when they go (C4).

A repair has put another in this node's place, a recovery went on without it, or a copy was begun here and
given up. The metadata, read now, says who of those in the list is known to have all of it. If those are
enough without this node, each of so many is looked at once more (`last_look`), and then the files go. Who is
the only one reads its copy to the end for that (`only_copies`).

Where they are not enough, because disks of the list left the cluster, or copies are short or damaged, what is
here may be all there is. It is checked then, and asks to be listed: a compare-and-set on the list and on who
has it. Readers and repair go on from there.

Of a segment that was released to the history nobody is in the list: a copy goes when nobody has reported the
object damaged, and this node has read it to its end, now or for the release. It asks to be listed if the
object is known to be damaged, is not there, or is another. Readers get the records from it then, and the
object is made anew of it, unless it is a merged one.

Fault model: the metadata known here may be old, whoever is asked may be gone a moment later, or be silent, or
hang. One that is asked and says nothing is not waited for again in the same round. A request to be listed
that comes after the segment was given up changes nothing for readers: what was given up is set aside here as
everywhere (F6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from ister.errors import CorruptSegment, InvariantBroken, IsterError
from ister.io.clock import monotonic
from ister.metadata.commands import SetReplicas
from ister.metadata.copies import is_enough, staying
from ister.metadata.nodes import is_in_cluster
from ister.metadata.state import SegmentState
from ister.protocol.peer import node_of
from ister.replication.copies.copies import Copies
from ister.replication.copies.last_look import Asking, are_enough_there
from ister.replication.copies.sealed_copies import SealedCopies
from ister.replication.places import Place

log = logging.getLogger("ister.replication.copies.leaving")

LOOK_SECONDS = 5.0
READ_SECONDS = 5.0
AFRESH_SECONDS = 5.0
"""After so long the metadata is read again, and the order made again: to look at an object is to read it."""
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

    async def look_at_object(self, place: Place) -> bool | None: ...


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
        due_at = monotonic()
        looked: set[int] = set()
        """At in this round."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._is_woken.wait()
            self._is_woken.clear()
            due, self._new = self._new, {}
            is_round, began = monotonic() >= due_at, monotonic()
            self._silent.clear()
            order = [uid for uid in self._in_order() if uid not in looked] if is_round else list(due)
            for number, uid in enumerate(order if order and await self._is_current() else ()):
                if monotonic() - began > AFRESH_SECONDS:
                    self._new = dict.fromkeys(order[number:]) | self._new
                    self._is_woken.set()
                    break
                await self._look_at(uid)
                looked.add(uid)
                await asyncio.sleep(0)  # there may be many, and no reason to wait with any
            else:
                if is_round:
                    looked.clear()
                    due_at = monotonic() + LOOK_SECONDS

    async def _is_current(self) -> bool:
        """Whether what the metadata says here is no older than this round. If not, the next comes soon."""
        try:
            await self._node.metadata.read_index(READ_SECONDS)
        except IsterError as error:
            log.debug("copies that others are to have are not looked at now: %s", error)
            return False
        return True

    def _in_order(self) -> list[int]:
        """Those first that may be the last ones."""
        nodes = self._node.metadata.state.nodes

        def has_all(uid: int) -> bool:
            place = self._node.copies.place(self.segments[uid], uid)
            return place is None or all(is_in_cluster(nodes, member) for member in place.segment.replicas)

        return sorted(self.segments, key=has_all)

    async def _look_at(self, uid: int) -> None:
        topic_uid, rest = self.segments.get(uid), self._resting.get(uid)
        now = monotonic()
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
        expected, by_object = segment.replicas, segment.history
        if not segment.is_sealed:
            return False
        if not node.sealed_copies.is_here(place) or await self._may_go(place):
            return await node.sealed_copies.remove(place, expected, by_object, self._is_guest)
        if segment.lost_from is None and uid not in self._no_good and await self._is_wanted(place):
            await self._offer(place, expected, list(segment.whole))
        return False

    async def _may_go(self, place: Place) -> bool:
        """C4: whether the segment is safe without what is here."""
        node, segment = self._node, place.segment
        if segment.is_released:
            is_good = not _is_known_damaged(segment) and await node.look_at_object(place) is True
            return is_good and await self._is_current()  # reading it took its time
        if segment.is_empty:
            return True
        return self._is_safe(segment) and await are_enough_there(node, place, self._silent)

    def _is_safe(self, segment: SegmentState) -> bool:
        there = staying(self._node.metadata.state.nodes, segment.replicas)
        return is_enough(segment, segment.replicas, there)

    async def _is_wanted(self, place: Place) -> bool:
        """Whether what is here may be all there is: too few have it, and not only until they say so."""
        node, segment = self._node, place.segment
        if segment.is_released:
            return _is_known_damaged(segment) or await node.look_at_object(place) is False
        nodes = node.metadata.state.nodes
        has_left = not all(is_in_cluster(nodes, member) for member in segment.replicas)
        return not self._is_safe(segment) and (has_left or bool(segment.told))

    async def _offer(self, place: Place, expected: list[int], whole: list[int]) -> None:
        """Ask to be listed, if what is here is good, and nothing has changed meanwhile."""
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
        command = SetReplicas(
            place.topic.uid, segment.segment, expected, [*expected, node.member], expected_whole=whole
        )
        outcome = await node.metadata.propose(command)
        fields = {
            "segment": place.identity.key,
            "before": [node_of(member) for member in expected],
            "result": str(outcome.result),
            "detail": outcome.detail,
        }
        log.warning("a copy that may be the last one was offered", extra={"fields": fields})


def _is_known_damaged(segment: SegmentState) -> bool:
    """Whether somebody has read its object to the end, and it was no good."""
    return segment.history is not None and segment.history.damaged
