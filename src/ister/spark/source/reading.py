"""One task's share of a topic as Arrow record batches, complete or said not to be.

Memory is bounded, however large the share: by what the reader has fetched ahead (three fetches of
`FETCH_BYTES`, or three frames where those are larger), and by one batch, which is handed on as soon as its
records take `BATCH_BYTES` unpacked, or one frame where that is larger.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from ister.arrow import to_record_batch
from ister.columns import Flags
from ister.frame import Frame
from ister.spark.ranges import UNION, Loss, OffsetRange
from ister.spark.schema import APPEND_TIME, EVENT_TIME
from ister.spark.union import UnionFrames

BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of frames before compression: what their columns take in memory."""

_TIMES: Final = int(Flags.TIMES)
"""A plain number: some topics have a frame for each record."""
_FROM_FRAMES: Final = ("key", "value", "offset", "timestamp", "headers")


def read_range(
    bootstrap: str,
    wanted: OffsetRange,
    schema: pa.Schema,
    loss: Loss,
    *,
    tier: str = UNION,
    verify: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The records of the range, as batches of exactly this schema."""
    _spare_what_is_loaded()
    build = _Builder(wanted, schema)
    with UnionFrames(bootstrap, tier=tier, verify=verify) as store:
        for frame in store.frames(wanted, loss):
            build.add(frame)
            if build.is_full:
                yield build.finish()
    if build.frames:
        yield build.finish()


def _spare_what_is_loaded() -> None:
    """Spark's worker looks through all objects for garbage after each task, and most of them are what was
    imported: a fifth of the time of a task of a million records, once for each process if it is told."""
    if not gc.get_freeze_count():
        gc.freeze()


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
        self._bytes += frame.unpacked_size

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
        kinds = [EVENT_TIME if frame.header.flags & _TIMES else APPEND_TIME for frame in frames]
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
