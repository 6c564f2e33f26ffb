"""One attempt of a task, or whoever makes frames: puts them onto a stage, and says where they are.

An attempt is a producer of its own, with an id by chance: what it sends again after a broken connection is
recognised (A5), and what another attempt of the same task stages is never taken for it. It hands back runs
only of what was acknowledged; whatever else it left there, nobody names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import ister
from ister.client.batch import Batch
from ister.client.log import Log
from ister.client.sequencer import Sequencer
from ister.errors import ConnectionFailed, InvalidTopicName
from ister.frame import Frame, reidentified
from ister.names import is_system, normalise_topic
from ister.spark.sink.origin import find_stage
from ister.spark.sink.sending import Sending

if TYPE_CHECKING:
    import pyarrow as pa

RUN_BYTES: Final = 4 * 1024 * 1024
"""About how much of a stage is fetched at once when it is appended to its target."""


class StagedRun(NamedTuple):
    """Neighbouring frames on a stage, for one target."""

    topic: str
    start: int
    end: int
    size: int
    producer_id: int


@dataclass(frozen=True)
class Staged:
    """What one attempt staged, in its order. It travels to the driver, or anywhere else."""

    stage: str
    uid: int
    runs: tuple[StagedRun, ...]
    largest: dict[str, int] = field(default_factory=dict)
    """The bytes of the largest frame for each target."""
    cluster: str = ""
    """The id of the cluster that the stage is on (I1)."""

    @property
    def counts(self) -> dict[str, int]:
        return count_by_topic((self,))


def count_by_topic(staged: Iterable[Staged]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in staged:
        for run in part.runs:
            counts[run.topic] = counts.get(run.topic, 0) + run.end - run.start
    return counts


class Stager:
    """Stages frames, a few in flight; `finish` says what it staged. Made by `open_stager`."""

    def __init__(self, stage: str, uid: int, cluster: str, sequencer: Sequencer) -> None:
        self._stage = stage
        self._uid = uid
        self._cluster = cluster
        self._sequencer = sequencer
        self._sending = Sending(self._appended)
        self._runs: list[StagedRun] = []
        self._largest: dict[str, int] = {}
        self._names: dict[str, str] = {}

    async def put_rows(self, topic: str, rows: pa.RecordBatch) -> None:
        """Arrow columns for a target, as one frame."""
        from ister.arrow import encode_record_batch

        await self._put(
            topic,
            lambda producer_id, sequence: encode_record_batch(
                rows, producer_id=producer_id, sequence=sequence
            ),
            rows.num_rows,
        )

    async def put_frame(self, topic: str, frame: Frame) -> None:
        """A frame for a target, as it is."""
        await self._put(
            topic,
            lambda producer_id, sequence: reidentified(frame, producer_id, sequence),
            frame.header.count,
        )

    async def _put(self, topic: str, make: Callable[[int, int], bytes], count: int) -> None:
        name = self._names.get(topic) or self._target(topic)
        batch = self._sequencer.put_made(make, count)
        self._largest[name] = max(self._largest.get(name, 0), batch.held_bytes)
        await self._sending.put((name, self._sequencer.producer_id), batch)

    def _target(self, topic: str) -> str:
        name = normalise_topic(topic)
        if is_system(name):
            raise InvalidTopicName(
                f"{name} is one of Ister's own topics", hint="Choose a name that does not begin with _."
            )
        self._names[topic] = name
        return name

    def _appended(self, what: tuple[str, int], batch: Batch, offset: int) -> None:
        topic, producer = what
        end, size, runs = offset + batch.count, batch.held_bytes, self._runs
        if runs:
            last = runs[-1]
            goes_on = last.end == offset and last.topic == topic and last.producer_id == producer
            if goes_on and last.size + size <= RUN_BYTES:
                runs[-1] = last._replace(end=end, size=last.size + size)
                return
        runs.append(StagedRun(topic, offset, end, size, producer))

    async def finish(self) -> Staged:
        """Wait until all of it is acknowledged."""
        await self._sending.finish()
        return Staged(self._stage, self._uid, tuple(self._runs), self._largest, self._cluster)

    def close(self) -> None:
        self._sequencer.close(
            ConnectionFailed("the task ended before its rows were staged", hint="See its first error.")
        )


async def stage_rows(
    bootstrap: str, stage: str, topic: str | None, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """All rows of a task, for `topic` or each for the one that it names. No rows need no broker."""
    from ister.spark.sink.rows import frames_of

    frames = frames_of(batches, topic)
    first = await anext(frames, None)
    if first is None:
        return Staged(stage, 0, ())
    async with ister.connect(bootstrap) as log:
        stager = await open_stager(log, stage)
        try:
            await stager.put_rows(*first)
            async for name, rows in frames:
                await stager.put_rows(name, rows)
            return await stager.finish()
        finally:
            stager.close()


async def open_stager(log: Log, stage: str) -> Stager:
    """On a query's stage, which is made if it is not there; or on a job's, which its driver has made."""
    there = await find_stage(log, stage)
    return Stager(there.topic, there.uid, log.cluster_id, log.sequencer(there.topic))
