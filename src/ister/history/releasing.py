"""Release: copies on nodes go once their segment is in the history, and they are old, too many, or on a node
that is drained.

The node that leads a topic looks after it. A segment's object is read to its last byte once more, and only
then the metadata is told that no node is to have a copy any more (E1, C3). Each node removes its files after
that, when it has seen for itself that the object is there (C4, `replication.copies.leaving`).

Fault model: the object may be missing or rotten by now: then that is reported, and the copies stay. Two nodes
that take themselves for the leader do it twice, and the second time changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from ister.errors import CorruptSegment, IsterError, ObjectNotFound
from ister.history.exporting import Exporting, exported
from ister.metadata.commands import ReleaseCopies, ReportObject, Result
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.metrics import Counter

log = logging.getLogger("ister.history")

LOOK_SECONDS = 10.0


def due(topic: TopicState, now_us: int, drained: Collection[int] = ()) -> list[SegmentState]:
    """Segments whose copies may go: in the history, and past what nodes are to keep, or on a member that is
    drained. The oldest first."""
    settings = topic.settings
    there = [segment for segment in topic.segments if segment.is_sealed and segment.replicas]
    size = sum(segment.end_position for segment in there)
    found: list[SegmentState] = []
    for segment in there:
        is_old = 0 < settings.local_retention_ms * 1000 <= now_us - segment.last_append_time_us
        is_too_much = 0 < settings.local_retention_bytes < size
        if not (is_old or is_too_much or any(member in drained for member in segment.replicas)):
            continue
        size -= segment.end_position
        if segment.history is not None and not segment.history.damaged:
            found.append(segment)
    return found


class Releasing:
    def __init__(
        self,
        metadata: MetadataStore,
        exporting: Exporting,
        *,
        cluster_id: Callable[[], str],
        led: Callable[[], Iterable[TopicState]],
        now_us: Callable[[], int],
    ) -> None:
        """`led` are the topics that this node looks after."""
        self._metadata = metadata
        self._exporting = exporting
        self._cluster_id = cluster_id
        self._led = led
        self._now_us = now_us
        self.released = Counter(
            "released_segments_total", "Segments whose copies this node had released to the history."
        )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for topic in list(self._led()):
                for segment in due(topic, self._now_us(), self._metadata.state.drains.members):
                    try:
                        await self.release(topic, segment)
                    except (IsterError, OSError) as error:
                        log.warning("the copies of %s stay for now: %s", topic.key_of(segment), error)
                        break

    async def release(self, topic: TopicState, segment: SegmentState) -> bool:
        """Let the copies of a segment go, if its object is what it should be; whether they go."""
        found, expected = segment.history, segment.replicas
        if found is None:
            return False
        try:
            verified = await self._exporting.verify(found.name, exported(self._cluster_id(), topic, segment))
            if (verified.size, verified.crc) != (found.size, found.crc):
                raise CorruptSegment(f"object {found.name} is not the one that was published")
        except (CorruptSegment, ObjectNotFound) as error:
            log.error("an object of the history is no good, the copies on nodes stay: %s", error.message)
            await self._metadata.propose(ReportObject(topic.uid, segment.uid, found.name, True))
            return False
        outcome = await self._metadata.propose(ReleaseCopies(topic.uid, segment.uid, found.name, expected))
        fields = {"segment": topic.key_of(segment), "object": found.name, "result": str(outcome.result)}
        log.info("released", extra={"fields": fields})
        if outcome.result is Result.APPLIED:
            self.released.add()
        return outcome.ok
