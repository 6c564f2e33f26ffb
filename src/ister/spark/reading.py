"""One task's share of a topic as Arrow record batches, complete or said not to be.

What can fail: the range is trimmed before or while it is read, the topic is deleted or made again under its
name, a stored segment is damaged, records were given up by an operator. Each is reported with the exact
offsets that are missing (promise 5): an error, or with failOnDataLoss=false a warning, after which reading
goes on behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from ister import sync
from ister.arrow import to_record_batch
from ister.columns import Flags
from ister.errors import CorruptSegment, IsterError, OffsetOutOfRange, RecordsLost, UnknownTopic
from ister.frame import Frame
from ister.protocol.messages import TopicDescription
from ister.spark.planning import Loss, OffsetRange
from ister.spark.schema import APPEND_TIME, EVENT_TIME

log = logging.getLogger("ister.spark")

BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024
FETCH_BYTES: Final = 2 * 1024 * 1024

_FROM_FRAMES: Final = ("key", "value", "offset", "timestamp", "headers")


def read_range(
    bootstrap: str, wanted: OffsetRange, schema: pa.Schema, loss: Loss
) -> Iterator[pa.RecordBatch]:
    """The records of the range, as batches of exactly this schema."""
    build = _Builder(wanted, schema)
    with sync.connect(bootstrap) as found:
        for frame in _RangeReader(found, wanted, loss).frames():
            build.add(frame)
            if build.is_full:
                yield build.finish()
    if build.frames:
        yield build.finish()


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
        topic = self._wanted.topic
        try:
            for frame in self._found.read(topic, start=before, end=end, max_bytes=FETCH_BYTES).frames():
                yield frame
                self._offset = frame.header.end_offset
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
            self._skip_to(wanted.end, "the topic was deleted after the table was planned")
            return None
        if there.uid != wanted.uid:
            self._skip_to(wanted.end, "the topic was deleted and made again after the table was planned")
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


class _Builder:
    """Gathers frames until they make a batch worth sending: Spark pays for each batch, not for each frame."""

    def __init__(self, wanted: OffsetRange, schema: pa.Schema) -> None:
        self._wanted = wanted
        self._schema = schema
        self._columns = [name for name in schema.names if name in _FROM_FRAMES]
        self._constants = {
            "topic": _Constant(pa.scalar(wanted.topic, pa.string())),
            "partition": _Constant(pa.scalar(0, pa.int32())),
        }
        self._time_types = {
            kind: _Constant(pa.scalar(kind, pa.int32())) for kind in (EVENT_TIME, APPEND_TIME)
        }
        self._start()

    def _start(self) -> None:
        self.frames: list[Frame] = []
        self._count = 0
        self._bytes = 0

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._count += frame.header.count
        self._bytes += frame.header.size

    @property
    def is_full(self) -> bool:
        return self._count >= BATCH_RECORDS or self._bytes >= BATCH_BYTES

    def finish(self) -> pa.RecordBatch:
        frames = self.frames
        made = to_record_batch(
            frames, columns=self._columns, first_offset=self._wanted.start, end_offset=self._wanted.end
        )
        count = sum(self._share(frame) for frame in frames)
        self._start()
        arrays = [self._column(field, made, frames, count) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _share(self, frame: Frame) -> int:
        """How many of a frame's records are within the range."""
        header = frame.header
        return min(header.end_offset, self._wanted.end) - max(header.base_offset, self._wanted.start)

    def _column(self, field: pa.Field, made: pa.RecordBatch, frames: list[Frame], count: int) -> Any:
        if field.name in self._constants:
            return self._constants[field.name].repeated(count)
        if field.name == "timestampType":
            return self._time_type(frames, count)
        array = made.column(field.name)
        # Spark calls the inside of a list by another name, and counts that as another type.
        return array if array.type == field.type else array.cast(field.type)

    def _time_type(self, frames: list[Frame], count: int) -> Any:
        kinds = [EVENT_TIME if frame.header.flags & Flags.TIMES else APPEND_TIME for frame in frames]
        if len(set(kinds)) == 1:
            return self._time_types[kinds[0]].repeated(count)
        runs = zip(kinds, map(self._share, frames), strict=True)
        return pa.concat_arrays([self._time_types[kind].repeated(share) for kind, share in runs])


class _Constant:
    """A column that says the same in every row; made once, and cut to length."""

    def __init__(self, scalar: pa.Scalar) -> None:
        self._scalar = scalar
        self._array = pa.repeat(scalar, BATCH_RECORDS)

    def repeated(self, count: int) -> Any:
        if count > len(self._array):
            self._array = pa.repeat(self._scalar, 2 * count)
        return self._array.slice(0, count)
