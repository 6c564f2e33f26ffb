"""Telling the metadata how this node's copies of sealed segments are (C2).

What is told is the level, not the edge: what is known here of each copy is compared with what the metadata
has, and every difference is told again, in one command for each interval, until it is applied. Damage does
not wait for the interval.

Fault model: a proposal may be lost, hang through an election, be applied late, twice, or after the next one.
Its number and this node's start order it; the index at which it compared says which list it speaks of. This
node may stop at any line: the next start looks at its copies and compares anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from ister.errors import IsterError
from ister.metadata.commands import CopyEntry, ReportCopies, Reported
from ister.metadata.copies import MAX_ENTRIES
from ister.metadata.state import SegmentState
from ister.metadata.store import MetadataStore
from ister.replication.places import Place

log = logging.getLogger("ister.replication.copies.reporting")

INTERVAL_SECONDS = 1.0

State = tuple[Reported, int]
"""How a copy is, and where it ends if it is short."""


class Reporting:
    def __init__(
        self,
        metadata: MetadataStore,
        member: int,
        place: Callable[[int, int], Place | None],
        state_of: Callable[[SegmentState], State | None],
    ) -> None:
        """`state_of` says how the copy here of a segment is; None while that is not known."""
        self._metadata = metadata
        self._member = member
        self._place = place
        self._state_of = state_of
        self._unsettled: dict[int, int] = {}
        """Segments, and their topics, of which what is known here may differ from what the metadata has."""
        self._number = 0
        self._is_urgent = asyncio.Event()

    def look_at(self, topic_uid: int, segment_uid: int, is_urgent: bool) -> None:
        """Something changed here, or in the metadata."""
        self._unsettled[segment_uid] = topic_uid
        if is_urgent:
            self._is_urgent.set()

    async def run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._is_urgent.wait()
            self._is_urgent.clear()
            try:
                await self._report()
            except IsterError as error:
                log.debug("how the copies here are was not told yet: %s", error)
                await asyncio.sleep(INTERVAL_SECONDS)

    async def _report(self) -> None:
        entries = self._differences()
        if not entries:
            return
        self._number += 1
        index = self._metadata.state.applied_index
        outcome = await self._metadata.propose(
            ReportCopies(self._member, self._metadata.starts, self._number, index, entries)
        )
        log.debug("told how %d copies are: %s", len(entries), outcome.result)

    def _differences(self) -> list[CopyEntry]:
        found: list[CopyEntry] = []
        for uid, topic_uid in list(self._unsettled.items()):
            if len(found) == MAX_ENTRIES:
                break
            place = self._place(topic_uid, uid)
            entry = self._difference(place) if place is not None else None
            if entry is None:
                del self._unsettled[uid]  # whatever changes it comes back
            else:
                found.append(entry)
        return found

    def _difference(self, place: Place) -> CopyEntry | None:
        segment = place.segment
        if not segment.is_sealed or segment.is_empty or self._member not in segment.replicas:
            return None
        state = self._state_of(segment)
        if state is None or state == known_of(segment, self._member):
            return None
        return CopyEntry(place.topic.uid, segment.uid, *state)


def known_of(segment: SegmentState, member: int) -> State | None:
    """What the metadata has of a member's copy."""
    if segment.is_whole_at(member):
        return Reported.WHOLE, 0
    told = segment.told_by(member)
    return (Reported(told.state), told.end_offset) if told is not None else None
