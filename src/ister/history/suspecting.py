"""Suspects: objects that somebody could not read, or did not find. Each is read to its end, and what it is
then is told to the metadata (`ReportObject`).

No copy is released for the sake of an object that is reported damaged, and whoever has a whole copy exports
the segment again under another name (`exporting`). Where no node has one, `ister cluster health` names it,
until somebody puts the object back and `ister history verify` has read it.

Fault model: a read may fail for reasons that are none of the object's; so nothing is reported that a second
look does not confirm. A store that is down says nothing about its objects: they are looked at again later.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.errors import CorruptSegment, IsterError, ObjectNotFound
from ister.history.exporting import exported
from ister.io.clock import monotonic
from ister.metadata.commands import ReportObject
from ister.metadata.copies import find_segment
from ister.metadata.state import SegmentState, TopicState

if TYPE_CHECKING:
    from ister.history.history import History

log = logging.getLogger("ister.history")

PAUSE_SECONDS = 10.0
"""Before a store that could not be asked is asked again."""
FRESH_SECONDS = 60.0
"""So long what a node itself has read to its end, and found good, is as good as read now."""
MAX_SUSPECTS = 1000
"""More of them are looked at when they are read the next time."""


class Suspecting:
    def __init__(self, history: History) -> None:
        self._history = history
        self._suspects: dict[int, int] = {}
        """Segments, and their topics."""
        self._found_good: dict[tuple[int, str], float] = {}
        """Segments and their objects that were read to the end, and when, of the last `FRESH_SECONDS`."""
        self._woken = asyncio.Event()

    def add(self, topic_uid: int, segment_uid: int) -> None:
        if len(self._suspects) < MAX_SUSPECTS:
            self._suspects[segment_uid] = topic_uid
            self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._suspects:
                segment_uid, topic_uid = next(iter(self._suspects.items()))
                topic = self._history.metadata.state.topic_by_uid(topic_uid)
                segment = find_segment(topic, segment_uid) if topic is not None else None
                try:
                    if topic is not None and segment is not None:
                        await self.look_at(topic, segment)
                except (IsterError, OSError) as error:
                    log.debug("an object that is suspected is looked at again: %s", error)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                del self._suspects[segment_uid]

    def has_just_read(self, segment: SegmentState) -> bool:
        """Whether this node has read its object to the end in the last minute, and it was good."""
        found = segment.history
        at = self._found_good.get((segment.uid, found.name)) if found is not None else None
        return at is not None and monotonic() - at < FRESH_SECONDS

    async def look_at(self, topic: TopicState, segment: SegmentState) -> str:
        """Read a published object to its end, and report what is news; what is wrong with it, in words."""
        found = segment.history
        assert found is not None
        try:
            wanted = exported(self._history.cluster_id(), topic, segment)
            await self._history.exporting.verify_published(found, wanted)
            problem = ""
        except (CorruptSegment, ObjectNotFound) as error:
            problem = error.message
            self._found_good.pop((segment.uid, found.name), None)
        else:
            since = monotonic() - FRESH_SECONDS
            self._found_good = {each: at for each, at in self._found_good.items() if at > since}
            self._found_good[segment.uid, found.name] = monotonic()
        if bool(problem) != found.damaged:
            if problem:
                log.error("an object of the history is no good: %s", problem)
            command = ReportObject(topic.uid, segment.uid, found.name, bool(problem))
            await self._history.metadata.propose(command)
        return problem
