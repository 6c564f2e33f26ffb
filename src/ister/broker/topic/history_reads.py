"""Reading a topic's sealed segments from the history, where no node is asked for them.

A store that cannot be asked is a retriable error of that read alone. An object that is missing or damaged is
`CorruptSegment`, with what it is of; what was trimmed or deleted while it was read is said to be that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.sealed_reads import out_of_range
from ister.errors import ConfigError, CorruptSegment, IsterError, ObjectNotFound
from ister.history.exporting import exported
from ister.history.reading import HistoryReader, Wanted
from ister.metadata.state import SegmentState
from ister.wal.reader import Found

log = logging.getLogger("ister.history")

T = TypeVar("T")


class HistoryReads:
    def __init__(self, topic: KnownTopic, storage: Storage, end_offset: Callable[[], int]) -> None:
        self._topic = topic
        self._storage = storage
        self._end_offset = end_offset

    async def read(self, segment: SegmentState, offset: int, max_bytes: int) -> Found:
        reader = self._reader()
        return await self._told(segment, offset, lambda wanted: reader.read(wanted, offset, max_bytes))

    async def offset_at(self, segment: SegmentState, time_us: int) -> int | None:
        """None if the segment was trimmed while it was being read."""
        reader = self._reader()
        found = await self._told(
            segment, segment.base_offset, lambda wanted: reader.offset_at(wanted, time_us)
        )
        return found if segment in self._topic.state.segments else None

    def _reader(self) -> HistoryReader:
        history = self._storage.history
        if history is None:
            raise ConfigError(
                f"topic {self._topic.state.name} has segments in the history, and node "
                f"{self._storage.node_id} has no store: its storage_mode is local",
                hint="Start this node with the storage_mode and storage_url of the others.",
            )
        return history.reader

    def _wanted(self, segment: SegmentState) -> Wanted:
        topic, history = self._topic.state, self._storage.history
        assert segment.history is not None and history is not None
        return Wanted(topic.key_of(segment), exported(history.cluster_id(), topic, segment), segment.history)

    async def _told(self, segment: SegmentState, offset: int, work: Callable[[Wanted], Awaitable[T]]) -> T:
        topic, wanted = self._topic, self._wanted(segment)
        try:
            return await work(wanted)
        except (CorruptSegment, ObjectNotFound) as error:
            if segment.history is not None and segment.history.name != wanted.object.name:
                return await self._told(segment, offset, work)  # replaced while it was read
            if topic.is_deleted:
                raise topic.deleted() from None
            if offset < topic.state.start_offset:
                raise out_of_range(topic, offset, self._end_offset()) from None
            log.error("the history of %s: %s", topic.state.key_of(segment), error.message)
            if self._storage.history is not None:
                self._storage.history.suspecting.add(topic.state.uid, segment.uid)
            if error.offsets is not None:
                raise
            raise self._missing(segment, error) from error

    def _missing(self, segment: SegmentState, error: IsterError) -> CorruptSegment:
        start, end = segment.base_offset, segment.data_end
        assert end is not None
        return CorruptSegment(
            f"offsets {start} to {end - 1} of topic {self._topic.state.name} cannot be read: {error.message}",
            hint=f"Put the object back, from a copy of the store; or read on from offset {end}.",
            offsets=(start, end),
        )
