"""A checksum of what records say, whatever frames they lie in.

Fed column by column, lengths and bytes apart: where a batch ends changes nothing, and no record is looked at
by itself. Offsets, keys, values, headers and times are in it, nulls are told from what is empty.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_compute: Any = pc
_NULL: Final = -1


class ContentHash:
    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        self._first: int | None = None
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Of `ister.arrow.RECORD_SCHEMA`, in the order of the offsets."""
        if not batch.num_rows:
            return
        if self._first is None:
            self._first = batch.column("offset")[0].as_py()
        self.records += batch.num_rows
        self._fixed("time", batch.column("timestamp").cast(pa.int64()))
        for name in ("key", "value"):
            self._binary(name, batch.column(name))
        self._headers(batch.column("headers"))

    def hexdigest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        whole.update(b"%d %d" % (-1 if self._first is None else self._first, self.records))
        for name in sorted(self._columns):
            whole.update(name.encode() + self._columns[name].digest())
        return whole.hexdigest()

    def _of(self, name: str) -> Any:
        if name not in self._columns:
            self._columns[name] = hashlib.blake2b(digest_size=16)
        return self._columns[name]

    def _fixed(self, name: str, numbers: pa.Array) -> None:
        width = numbers.type.bit_width // 8
        data = memoryview(numbers.buffers()[1])
        start = numbers.offset * width
        self._of(name).update(data[start : start + len(numbers) * width])

    def _binary(self, name: str, values: pa.Array) -> None:
        lengths = _compute.fill_null(_compute.binary_length(values), _NULL)
        self._fixed(f"{name} lengths", lengths)
        if values.null_count:
            values = values.drop_null()  # what lies under a null is nobody's
        if len(values):
            ends = values.buffers()[1]
            marks = memoryview(ends).cast("i")[values.offset : values.offset + len(values) + 1]
            data = values.buffers()[2]
            if data is not None and marks[-1] > marks[0]:
                self._of(name).update(memoryview(data)[marks[0] : marks[-1]])

    def _headers(self, lists: pa.Array) -> None:
        counts = _compute.fill_null(_compute.list_value_length(lists), _NULL)
        self._fixed("header counts", counts.cast(pa.int32()))
        flat = lists.flatten()
        if len(flat):
            keys, values = flat.flatten()
            self._binary("header keys", keys.cast(pa.binary()))
            self._binary("header values", values)
