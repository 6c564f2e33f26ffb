"""The sweeper: deletes objects that no descriptor names, and that none ever will.

They are left by exports that were cut short or done twice, by topics that were deleted, and by retention:
what is trimmed has no descriptor any more.

Fault model: what is listed may be published a moment later, by a node whose upload took long; what this node
knows of the metadata may be old. So each name is abandoned through the metadata first, which makes a later
publish of it fail, and refuses where it is published; only then the object is deleted (E3). A crash in
between leaves an object that the next round finds again. An export of a segment that is not published yet is
left alone, whatever its attempt: whoever exports it adopts it, or passes it over.

The node that leads the metadata sweeps every so often. It deletes what it found a round ago already, so that
a reader that was just about to read it is done. Objects that a merged one has replaced stay for
`REPLACED_SECONDS`, also if somebody has the topic swept at once: longer than a reader takes that holds an old
descriptor (E5). One that takes longer asks for the new one, so a wrong clock costs a reader a request, and no
record: what is swept is abandoned first, whatever the time is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ister.errors import IsterError
from ister.history.names import ObjectName, parse_name
from ister.io.object_store import ObjectStore, list_all
from ister.metadata.commands import AbandonObject, Result
from ister.metadata.copies import find_segment
from ister.metadata.history import object_from
from ister.metadata.store import MetadataStore
from ister.metadata.topics import HistoryObject
from ister.metrics import Counter

log = logging.getLogger("ister.history")

SWEEP_SECONDS = 600.0
REPLACED_SECONDS = 3600.0
"""So long what was replaced can be read."""
MAX_REMEMBERED = 100_000
"""Names that wait for their second round; more of them wait for a later one."""


class Sweeping:
    def __init__(
        self,
        metadata: MetadataStore,
        store: ObjectStore,
        *,
        now_us: Callable[[], int],
        cluster_id: Callable[[], str],
    ) -> None:
        """`now_us` is the time by most clocks of the cluster, if not by this node's."""
        self._metadata = metadata
        self._store = store
        self._now_us = now_us
        self._cluster_id = cluster_id
        self._found: set[str] = set()
        """By the last round, of those that nobody names."""
        self.deleted = Counter("swept_objects_total", "Objects of the history that this node has deleted.")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if not self._metadata.is_leader:
                self._found.clear()
                continue
            try:
                await self._round()
            except (IsterError, OSError) as error:
                log.warning("the history was not swept, the next round tries again: %s", error)

    async def _round(self) -> None:
        before, self._found = self._found, set()
        async for info in list_all(self._store, f"{self._cluster_id()}/"):
            name = parse_name(info.name)
            if name is None or not self._is_orphan(name):
                continue
            if info.name in before:
                await self._delete(name)
            elif len(self._found) < MAX_REMEMBERED:
                self._found.add(info.name)

    async def sweep(self, topic: str) -> list[str]:
        """At once, of a topic and of those that had its name before; what was deleted."""
        deleted: list[str] = []
        async for info in list_all(self._store, f"{self._cluster_id()}/{topic}-"):
            name = parse_name(info.name)
            if (
                name is not None
                and name.topic == topic
                and self._is_orphan(name)
                and await self._delete(name)
            ):
                deleted.append(info.name)
        return deleted

    def _is_orphan(self, name: ObjectName) -> bool:
        """Whether nobody will want it, as far as is known here. The metadata decides."""
        if name.cluster_id != self._cluster_id():
            return False
        state = self._metadata.state
        topic = state.topic_by_uid(name.topic_uid)
        segment = find_segment(topic, name.segment_uid) if topic is not None else None
        found = object_from(topic, name.segment_uid) if topic is not None else None
        if found is not None and found.name == str(name):
            return False
        if segment is None and max(name.topic_uid, name.segment_uid) > state.applied_index:
            return False
        if segment is not None and segment.history is None:
            return False
        return found is None or not found.is_part or self._seconds_since(found) >= REPLACED_SECONDS

    def _seconds_since(self, found: HistoryObject) -> float:
        return (self._now_us() - found.published_at_us) / 1e6

    async def _delete(self, name: ObjectName) -> bool:
        command = AbandonObject(name.topic_uid, name.segment_uid, name.attempt, str(name))
        outcome = await self._metadata.propose(command)
        if outcome.result not in (Result.APPLIED, Result.STALE):
            log.info("an object stays: %s", outcome.detail, extra={"fields": {"object": str(name)}})
            return False
        await self._store.delete(str(name))
        self.deleted.add()
        log.info("deleted an object that nobody names", extra={"fields": {"object": str(name)}})
        return True
