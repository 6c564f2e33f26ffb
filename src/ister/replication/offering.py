"""The last copy of a sealed segment, on a node that is no replica of it any more: it offers itself.

Repair replaces a node that is silent for long. If it comes back after the disks left that were to have the
segment in its place, what it has kept may be all there is. It is not removed then (`SealedCopies.remove`);
here it is checked, and the metadata is told to count this node again. Readers and repair go on from there.

Fault model: the metadata known here may be old, and whoever else has a whole copy may offer it too. So the
change is a compare-and-set on the list (F4). One that comes after the segment was given up changes nothing
for readers: what was given up is set aside here as everywhere (F6). A disk that could not be read says
nothing of what is on it, however often: no other copy would take its place, so it is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ister.errors import CorruptSegment, InvariantBroken, IsterError
from ister.metadata.commands import SetReplicas
from ister.metadata.nodes import is_in_cluster
from ister.metadata.store import MetadataStore
from ister.protocol.peer import node_of
from ister.replication.copies import Copies
from ister.replication.places import Place
from ister.replication.sealed_copies import SealedCopies

log = logging.getLogger("ister.replication.offer")

LOOK_SECONDS = 5.0


class Offers:
    def __init__(
        self,
        copies: Copies,
        sealed_copies: SealedCopies,
        metadata: MetadataStore,
        member: int,
        remove: Callable[[int, int], Awaitable[None]],
    ) -> None:
        """`remove` lets go of a segment's files, if nothing has come to speak against it."""
        self._copies = copies
        self._sealed_copies = sealed_copies
        self._metadata = metadata
        self._member = member
        self._remove = remove
        self._no_good: set[int] = set()
        """Of `last_copies`, those whose log is short or damaged: it stays, and is not looked at again."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._no_good &= self._sealed_copies.last_copies.keys()
            for uid, topic_uid in list(self._sealed_copies.last_copies.items()):
                try:
                    await self._look(topic_uid, uid)
                except (IsterError, OSError) as error:
                    log.warning("a copy that may be the last one was not offered yet: %s", error)

    async def _look(self, topic_uid: int, uid: int) -> None:
        place = self._copies.place(topic_uid, uid)
        if place is None or self._member in place.segment.replicas:
            self._sealed_copies.last_copies.pop(uid, None)  # trimmed; or this node is to have it again
            return
        segment = place.segment
        if segment.is_empty or self._copies.is_kept_by_all(segment):
            await self._remove(topic_uid, uid)
        elif segment.lost_from is None and uid not in self._no_good:
            await self._offer(place)

    async def _offer(self, place: Place) -> None:
        segment, key = place.segment, place.identity.key
        if not await self._is_good(place):
            self._no_good.add(segment.uid)
            return
        nodes = self._metadata.state.nodes
        expected = segment.replicas
        there = [member for member in expected if is_in_cluster(nodes, member)]
        command = SetReplicas(place.topic.uid, segment.segment, expected, [*there, self._member])
        outcome = await self._metadata.propose(command)
        fields = {
            "segment": key,
            "before": [node_of(member) for member in expected],
            "result": str(outcome.result),
            "detail": outcome.detail,
        }
        log.warning("a copy that may be the last one was offered", extra={"fields": fields})

    async def _is_good(self, place: Place) -> bool:
        try:
            if await self._sealed_copies.is_good(place):
                return True
            why = "it ends short, or is damaged"
        except (CorruptSegment, InvariantBroken) as error:
            why = error.message
        log.error("what is here of %s may be all there is, and is not whole: %s", place.identity.key, why)
        return False
