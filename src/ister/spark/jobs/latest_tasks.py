"""The tasks of `compact --latest-by-key`: records as rows, and each key's latest onto the stage.

What is told of a range beside its records, a gap that was skipped or the error that ended the reading, is a
row of its own, and travels with the others to a task of the stage, and from there to the driver: Spark would
pass on no more of an error than its text.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.types import BinaryType, StructField, StructType

import ister
from ister.errors import IsterError
from ister.spark.jobs.gaps import AllThere, Noted
from ister.spark.ranges import OffsetRange
from ister.spark.schema import COLUMNS, arrow_schema
from ister.spark.sink.rows import bounded
from ister.spark.sink.staging import Staged, Stager, open_stager
from ister.spark.source.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa

_RECORD: Final = StructType(
    [StructField(name, COLUMNS[name]) for name in ("key", "value", "offset", "timestamp", "headers")]
)
ROWS: Final = StructType([*_RECORD, StructField("told", BinaryType())])
"""`told` is null of a record; else a pickled gap, or error."""


# Reading.


def read_parts(
    bootstrap: str, parts: Sequence[OffsetRange], skip_missing: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of the parts with these numbers."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from _read(bootstrap, parts[number], skip_missing)


def _read(bootstrap: str, wanted: OffsetRange, skip_missing: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    loss = Noted() if skip_missing else AllThere()
    try:
        for rows in read_range(bootstrap, wanted, arrow_schema(_RECORD), loss):
            yield rows.append_column("told", pa.nulls(rows.num_rows, pa.binary()))
        gaps = loss.gaps(bootstrap, wanted) if isinstance(loss, Noted) else ()
    except IsterError as error:
        yield _told(wanted.start, error.again())
    else:
        for gap in gaps:
            yield _told(gap[0], gap)


def _told(offset: int, what: IsterError | tuple[int, int]) -> pa.RecordBatch:
    import pyarrow as pa

    row: dict[str, Any] = {"offset": offset, "told": pickle.dumps(what)}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(ROWS))


# Staging.


class Made(NamedTuple):
    """Of one share."""

    share: int
    staged: Staged
    deleted: int
    without_key: int
    gaps: list[tuple[int, int]]
    """Of the source, that were skipped."""


def stage_shares(
    bootstrap: str, stage: str, topic: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On the executor: rows come in the order of their offsets, so share after share."""
    import pyarrow as pa

    made: Sequence[Made | IsterError]
    try:
        made = asyncio.run(_stage_all(bootstrap, stage, topic, batches))
    except IsterError as error:
        made = [error.again()]
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(one) for one in made], pa.binary())], ["made"])


def made_of(results: Iterable[bytes]) -> Iterator[Made]:
    """On the driver; an error of a task is raised here, as what it is."""
    for result in results:
        one = pickle.loads(result)
        if isinstance(one, IsterError):
            raise one
        assert isinstance(one, Made)
        yield one


async def _stage_all(bootstrap: str, stage: str, topic: str, batches: Iterator[pa.RecordBatch]) -> list[Made]:
    made: list[Made] = []
    async with ister.connect(bootstrap) as log:
        staging: _Staging | None = None
        # In a thread: while Spark prepares the next rows, answers to the last ones must not wait.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for share, rows in _by_share(batch):
                if staging is not None and share != staging.share:
                    made.append(await staging.finish())
                    staging = None
                if staging is None:
                    staging = _Staging(share, topic, await open_stager(log, stage))
                await staging.put(rows)
        if staging is not None:
            made.append(await staging.finish())
    return made


class _Staging:
    """One share, on its way to the stage."""

    def __init__(self, share: int, topic: str, stager: Stager) -> None:
        self.share = share
        self._topic = topic
        self._stager = stager
        self._deleted = self._without_key = 0
        self._gaps: list[tuple[int, int]] = []

    async def put(self, rows: pa.RecordBatch) -> None:
        told = rows.column("told")
        for what in map(pickle.loads, told.drop_null().to_pylist()):
            if isinstance(what, IsterError):
                raise what
            self._gaps.append(what)
        rows = rows.filter(told.is_null())
        keys = rows.column("key")
        if keys.null_count:
            nobodys = rows.filter(keys.is_null())
            self._without_key += sum(nobodys.column("count").to_pylist())
            rows = rows.filter(keys.is_valid())
        self._deleted += rows.column("value").null_count
        for part in bounded(rows.select(["key", "value", "timestamp", "headers"])):
            await self._stager.put_rows(self._topic, part)

    async def finish(self) -> Made:
        staged = await self._stager.finish()
        self._stager.close()
        return Made(self.share, staged, self._deleted, self._without_key, self._gaps)


def _by_share(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    shares, start = batch.column("share").to_pylist(), 0
    for at in range(1, len(shares) + 1):
        if at == len(shares) or shares[at] != shares[start]:
            yield shares[start], batch.slice(start, at - start)
            start = at
