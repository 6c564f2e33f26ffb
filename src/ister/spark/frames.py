"""The frames of these offsets of this topic: the one way by which tables, streams and jobs get data.

What can fail: the range is trimmed before or while it is read, the topic is deleted or made again under its
name, a stored segment is damaged, records were given up by an operator. Each is reported with the exact
offsets that are missing (promise 5): an error, or with failOnDataLoss=false a warning, after which reading
goes on behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final, Protocol, Self

from ister import sync
from ister.errors import CorruptSegment, IsterError, OffsetOutOfRange, RecordsLost, UnknownTopic
from ister.frame import Frame
from ister.protocol.messages import TopicDescription
from ister.spark.locating import descriptor_of, locate
from ister.spark.ranges import Descriptor, Loss, OffsetRange, Piece

FETCH_BYTES: Final = 2 * 1024 * 1024


class FrameStore(Protocol):
    """Whatever holds frames: brokers, the store of what they exported, and both together."""

    def frames(self, wanted: OffsetRange, loss: Loss) -> Iterator[Frame]:
        """Verified frames, in order, that have all records of the range, or `loss` is told which they lack.
        The first and the last may reach beyond it."""


class BrokerFrames:
    """Frames from brokers, to be used in a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self._log = sync.connect_in_turns(bootstrap)

    def __enter__(self) -> Self:
        self._log.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()

    def frames(self, wanted: OffsetRange, loss: Loss) -> Iterator[Frame]:
        return _RangeReader(self._log, wanted, loss).frames()

    def locate(self, topic: str, uid: int, start: int, end: int) -> tuple[Piece, ...]:
        return locate(self._log, topic, uid, start, end)

    def listed_now(
        self, wanted: OffsetRange, found: Descriptor, at: int
    ) -> tuple[Descriptor | None, list[int]] | None:
        """The descriptor of an object's segment as it is by now, and the nodes that have copies; None if it
        is not there any more."""
        try:
            listed = self._log.history(wanted.topic, at, at + 1)
        except UnknownTopic:
            return None
        entry = next((one for one in listed.entries if one.uid == found.segment.segment_uid), None)
        if entry is None or listed.topic_uid != wanted.uid:
            return None
        return descriptor_of(listed, entry, found.segment.cluster_id), entry.replicas


class _RangeReader:
    """Goes along the range, and around what is missing in it."""

    def __init__(self, found: sync.Log, wanted: OffsetRange, loss: Loss) -> None:
        self._found = found
        self._wanted = wanted
        self._loss = loss
        self._offset = wanted.start

    def frames(self) -> Iterator[Frame]:
        end = self._wanted.end
        while self._offset < end:
            there = self._describe()
            if there is None:
                return
            if there.start_offset > self._offset:
                self._skip_to(there.start_offset, f"the topic begins at {there.start_offset} now")
            if there.end_is_known and there.end_offset < end:
                end = max(self._offset, there.end_offset)
                self._report(end, self._wanted.end, f"the topic ends at {there.end_offset}")
            yield from self._frames_to(end, there)

    def _frames_to(self, end: int, there: TopicDescription) -> Iterator[Frame]:
        before = self._offset
        topic, uid = self._wanted.topic, self._wanted.uid
        reader = self._found.read(topic, start=before, end=end, max_bytes=FETCH_BYTES, uid=uid)
        try:
            for frame in reader.frames():
                yield frame
                self._offset = frame.header.end_offset
        except UnknownTopic as error:
            # Each fetch carries the uid: another topic with this name is not read for a single frame (I3).
            self._skip_to(self._wanted.end, error.message, UnknownTopic)
            return
        except OffsetOutOfRange as error:
            # Trimmed a moment ago, most likely: the next look at the topic says where it begins now.
            if self._offset == before:
                self._skip_to(min(self._describe_start(), end), error.message)
            return
        except RecordsLost as error:
            self._skip_to(error.offsets[1] if error.offsets else end, error.message, RecordsLost)
            return
        except CorruptSegment as error:
            first, behind = error.offsets or (end, end)
            later = [part.base_offset for part in there.segments if part.base_offset > self._offset]
            if first <= self._offset < behind:
                later = [behind]  # else nobody says how much of the segment is damaged
            self._skip_to(min([*later, end]), error.message, CorruptSegment)
            return
        if self._offset < end:
            self._skip_to(end, "the broker returned nothing there")

    def _describe(self) -> TopicDescription | None:
        """The topic as it is now; None if it is no longer the one that the range was planned on (I3)."""
        wanted = self._wanted
        try:
            there = self._found.describe_topic(wanted.topic)
        except UnknownTopic:
            self._skip_to(wanted.end, "the topic was deleted after the table was planned", UnknownTopic)
            return None
        if there.uid != wanted.uid:
            why = "the topic was deleted and made again after the table was planned"
            self._skip_to(wanted.end, why, UnknownTopic)
            return None
        return there

    def _describe_start(self) -> int:
        there = self._describe()
        # A broker that says both "not there" and "begins before" would have us ask for ever.
        return self._wanted.end if there is None or there.start_offset <= self._offset else there.start_offset

    def _skip_to(self, offset: int, why: str, kind: type[IsterError] = OffsetOutOfRange) -> None:
        offset = min(offset, self._wanted.end)
        self._report(self._offset, offset, why, kind)
        self._offset = max(self._offset, offset)

    def _report(self, start: int, end: int, why: str, kind: type[IsterError] = OffsetOutOfRange) -> None:
        if start < end:
            self._loss.report(self._wanted.topic, start, end, why, kind)
