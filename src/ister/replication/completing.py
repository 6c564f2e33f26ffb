"""Sealed segments of which this node is a replica: cut where they are longer than the seal, completed where shorter.

A replica that ends short serves nothing of that segment (F3): it says so, and another is asked. Whether a log is
whole is seen at the seal, and after a start, when the last life may have stopped in the middle of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ister.errors import CorruptSegment, InvariantBroken, IsterError
from ister.metadata.store import MetadataStore
from ister.protocol.peer import node_of
from ister.replication.copies import Copies, Place

log = logging.getLogger("ister.replication.complete")

RETRY_SECONDS = 1.0


class Completions:
    def __init__(
        self,
        copies: Copies,
        metadata: MetadataStore,
        member: int,
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._copies = copies
        self._metadata = metadata
        self._member = member
        self._spawn = spawn
        self._incomplete: dict[int, None] = {}
        """Segments that are not known to be whole here."""

    def is_incomplete(self, segment_uid: int) -> bool:
        return segment_uid in self._incomplete

    @property
    def behind(self) -> list[int]:
        return list(self._incomplete)

    def sealed(self, place: Place) -> None:
        """The metadata has sealed a segment: whether this copy is whole is not known until it was looked at."""
        segment = place.segment
        if self._member in segment.replicas and not self._ended_it(place):
            self._incomplete[segment.uid] = None
            self._spawn(self._complete(place))
        else:
            self._spawn(self._copies.sealed(place))

    def suspect(self, place: Place) -> None:
        """A reader found this copy short or damaged."""
        if place.segment.uid not in self._incomplete:
            self._incomplete[place.segment.uid] = None
            self._spawn(self._complete(place))

    async def look_at_all(self) -> None:
        """After a start: every sealed segment of which this node is a replica, one after the other."""
        found: list[Place] = []
        for topic in self._metadata.state.topics.values():
            for segment in topic.segments:
                if segment.is_sealed and len(segment.replicas) > 1 and self._member in segment.replicas:
                    place = self._copies.place(topic.uid, segment.uid)
                    if place is not None:
                        found.append(place)
        for place in found:
            if place.segment.uid not in self._incomplete:
                self._incomplete[place.segment.uid] = None
        for place in found:
            await self._complete(place)

    def _ended_it(self, place: Place) -> bool:
        """Whether this very process led the segment to its end."""
        segment = place.segment
        return segment.leader == self._member and segment.sealed_by == self._member and not segment.recovery

    async def _complete(self, place: Place) -> None:
        uid = place.segment.uid
        is_damaged = False
        try:
            while uid in self._incomplete and self._copies.place(place.topic.uid, uid) is not None:
                try:
                    if await self._copies.finish(place, self._sources(place), is_damaged=is_damaged):
                        break
                except InvariantBroken:
                    raise
                except CorruptSegment as error:
                    log.error("a copy is damaged, and is replaced: %s", error)
                    is_damaged = True
                    continue
                except (IsterError, OSError) as error:
                    log.warning("%s is not complete here: %s", place.identity.key, error)
                await asyncio.sleep(RETRY_SECONDS)
        except InvariantBroken as error:
            log.critical("%s", error.message)
            return  # it stays incomplete, and is not served: somebody has to look (F3)
        self._incomplete.pop(uid, None)

    def _sources(self, place: Place) -> list[int]:
        others = [m for m in place.segment.replicas if m != self._member and self._metadata.is_alive(m)]
        log.debug("%s may be had from nodes %s", place.identity.key, [node_of(m) for m in others])
        return others
