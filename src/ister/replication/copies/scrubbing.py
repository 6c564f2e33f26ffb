"""The scrub's rounds: all sealed segments that this node has, one after the other, at a rate, over and over.

What is found is an error in the log and in the counters, and the copy is not served any more: it is replaced
from another replica (`completing`). Where there is no other it is only reported, and served as it is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ister.errors import IsterError
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.metadata.store import MetadataStore
from ister.metrics import Counter
from ister.replication.copies.completing import Completions
from ister.replication.copies.copies import Copies
from ister.replication.copies.scrub import Finding, scrub_log
from ister.replication.places import Place
from ister.wal.read_faults import REPEAT_SECONDS

log = logging.getLogger("ister.replication.copies.scrub")

PAUSE_SECONDS = 60.0
"""Between two rounds, and before the first."""


class Scrubbed(Protocol):
    """What the scrub needs of its node."""

    member: int
    metadata: MetadataStore
    copies: Copies
    completions: Completions


class Scrubbing:
    def __init__(self, node: Scrubbed, disk: Disk, clock: Clock, bytes_per_second: int) -> None:
        self._node = node
        self._disk = disk
        self._clock = clock
        self._rate = bytes_per_second
        self._told: dict[int, Finding] = {}
        """By segment, of those whose damage is known: what the last round found. It is told once."""
        self.bytes = Counter("scrubbed_bytes_total", "Bytes of sealed segments that were checked for rot.")
        self.rounds = Counter(
            "scrub_rounds_total", "Rounds over all sealed segments here that were finished."
        )
        self.findings = Counter("scrub_findings_total", "Damaged copies of sealed segments that these found.")

    async def run(self) -> None:
        if not self._rate:
            return
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await self.round()
            self.rounds.add()

    async def round(self) -> None:
        """Look at everything once. Topics and segments come and go meanwhile."""
        self._told = {uid: told for uid, told in self._told.items() if self._node.completions.is_damaged(uid)}
        for topic in list(self._node.metadata.state.topics.values()):
            for segment in list(topic.segments):
                if self._node.member in segment.replicas and segment.is_sealed:
                    await self.check(topic.uid, segment.uid, self._rate)
            await asyncio.sleep(0)

    async def check(self, topic_uid: int, uid: int, bytes_per_second: int) -> bool:
        """Read a copy to its end; whether that was done, and nothing found."""
        place = self._place(topic_uid, uid)
        if place is None:
            return False
        try:
            finding = await self._scrub(place, bytes_per_second)
            if finding is not None:
                if finding.may_pass:
                    await asyncio.sleep(REPEAT_SECONDS)
                # A copy that was replaced or removed meanwhile was another file: what is there now counts.
                place = self._place(topic_uid, uid)
                finding = await self._scrub(place, bytes_per_second) if place is not None else None
        except (IsterError, OSError) as error:
            log.warning("a sealed segment was not checked: %s", error)
            return False
        place = self._place(topic_uid, uid)
        if place is None:
            return False
        if finding is None:
            self._told.pop(uid, None)
            self._node.completions.found_good(place)
            return True
        is_known = self._node.completions.is_damaged(uid)
        if not is_known:
            self.findings.add()
        damage = f"at offset {finding.offset}, byte {finding.position}: {finding.reason}"
        is_told = is_known and self._told.get(uid) == finding
        level = logging.DEBUG if is_told else logging.ERROR
        log.log(level, "the scrub found %s damaged %s", place.identity.key, damage)
        self._told[uid] = finding
        self._node.completions.suspect(place, f"{place.identity.key} is damaged {damage}")
        return False

    def _place(self, topic_uid: int, uid: int) -> Place | None:
        """The segment, if there is a copy here that is served."""
        place = self._node.copies.place(topic_uid, uid)
        if place is None or not place.segment.is_sealed or self._node.member not in place.segment.replicas:
            return None
        return None if self._node.completions.is_incomplete(uid) else place

    async def _scrub(self, place: Place, bytes_per_second: int) -> Finding | None:
        segment = place.segment
        assert segment.data_end is not None
        finding = await scrub_log(
            self._disk, self._clock, place.identity, segment.data_end, bytes_per_second=bytes_per_second
        )
        self.bytes.add(segment.end_position if finding is None else finding.position)
        return finding
