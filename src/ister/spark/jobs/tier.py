"""`tier`: a topic as a table of its own that goes on where it ended.

The driver cuts what is new into shares, executors write them to files, and the driver commits the files of
finished shares in the order of their offsets, with how far the table then is, in one commit of the table's
own.

What can fail, and what happens then: `lake.table` has the promises. A job that dies before a commit leaves
files that no commit names, and the next one starts where the last commit ended. Of two jobs at once, the one
whose commit comes second finds the table further on than it knew: its files stay unnamed, and it goes on from
there. Dead letters are committed before the records beside them; since their table says by itself how far it
is, a job that dies in between repeats none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ister import sync
from ister.errors import ConfigError, OffsetOutOfRange, TableMismatch
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.spark.jobs.lake.opening import Target, open_table
from ister.spark.jobs.lake.table import (
    DEAD_LETTERS,
    PARTITION_COLUMNS,
    Coverage,
    DataFile,
    LakeTable,
    Origin,
    joined_gaps,
)
from ister.spark.jobs.running import Stop, parallelism, run_tasks
from ister.spark.jobs.snapshot import Share, Snapshot, take_snapshot
from ister.spark.jobs.tiering.cutting import Cutting
from ister.spark.jobs.tiering.gathering import Gathered
from ister.spark.jobs.watching import Unwatched, Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.spark.jobs.tiering.decoding import Decoding
    from ister.spark.jobs.tiering.plan import WritePlan
    from ister.spark.jobs.tiering.writing import Written

FILE_BYTES: Final = 128 * 1024 * 1024
COMMIT_BYTES: Final = 8 * 1024 * 1024 * 1024
"""So much of the log is committed at once, if there is so much: what a job that dies has to do again."""


@dataclass
class Tiered:
    """What a tier job did."""

    topic: str
    uid: int
    to: str
    table: str
    """Its path, or its name in the catalog."""
    start_offset: int
    """Where the table was before."""
    next_offset: int
    """Where it is now."""
    end_offset: int
    """Where the topic ended when the job began."""
    records: int = 0
    log_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    dead_letters: int = 0
    commits: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that were not there, and that it was told to do without."""
    optimized: tuple[int, int] = (0, 0)
    """Files that went into larger ones, and how many these are."""
    expired: int = 0
    """Old versions of the table that are forgotten, as far as its format counts them."""
    vacuumed: int = 0
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        return self.next_offset >= self.end_offset


def tier(
    spark: SparkSession,
    topic: str,
    *,
    to: str,
    path: str | None = None,
    bootstrap: str = "127.0.0.1:9091",
    partition_by: str = "date",
    decode: str | None = None,
    schema: str | None = None,
    nested: bool = False,
    file_bytes: int = FILE_BYTES,
    skip_missing: bool = False,
    catalog: str | None = None,
    catalog_properties: Mapping[str, str] | None = None,
    table: str | None = None,
    optimize: bool = False,
    expire_older_than_s: float | None = None,
    vacuum_older_than_s: float | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> Tiered:
    """Bring a table up to where the topic ends now; it is made if it is not there.

    `decode` is `json` or `avro`, `schema` the text of the schema then. With `skip_missing`, offsets that are
    not there (trimmed, given up, damaged) become gaps of the table; without, they are an error that names
    them. Afterwards, small files go into large ones (`optimize`), versions of the table that are older than
    so many seconds are forgotten (`expire_older_than_s`), and files that no commit names are removed.
    """
    target = Target(to, path, catalog, dict(catalog_properties or {}), table)
    target.check()
    if partition_by not in PARTITION_COLUMNS:
        raise ConfigError(
            f"there is no partitioning {partition_by!r}", hint=f"Choose {', '.join(PARTITION_COLUMNS)}."
        )
    if (decode is None) != (schema is None):
        raise ConfigError("decoding needs a kind and a schema", hint="Give --decode and --schema.")
    started = monotonic()
    decoding = _decoding(decode, schema, nested)
    with sync.connect(bootstrap) as log:
        snapshot = take_snapshot(log, normalise_topic(topic))
    job = _TierJob(
        spark, bootstrap, snapshot, target, partition_by, decoding, file_bytes, skip_missing,
        watch or Unwatched(), stop or Stop(),
    )  # fmt: skip
    job.check_not_ahead()
    done = job.run()
    if optimize:
        done.optimized = job.optimize()
    if expire_older_than_s is not None:
        done.expired = job.expire(expire_older_than_s)
    if vacuum_older_than_s is not None:
        done.vacuumed = job.vacuum(vacuum_older_than_s)
    done.seconds = monotonic() - started
    return done


def tier_range(
    spark: SparkSession,
    snapshot: Snapshot,
    start: int,
    end: int,
    *,
    to: str,
    path: str | None,
    bootstrap: str,
    partition_by: str = "date",
    catalog: str | None = None,
    catalog_properties: Mapping[str, str] | None = None,
    table: str | None = None,
    watch: Watch,
    stop: Stop,
) -> Tiered:
    """Offsets from `start` to before `end` as a table of their own, which has nothing before and behind."""
    target = Target(to, path, catalog, dict(catalog_properties or {}), table)
    target.check()
    job = _TierJob(
        spark, bootstrap, replace(snapshot, end=end), target, partition_by, None, FILE_BYTES, False, watch,
        stop,
    )  # fmt: skip
    job.begin_at(start)
    return job.run()


def _decoding(decode: str | None, schema: str | None, nested: bool) -> Decoding | None:
    if decode is None or schema is None:
        return None
    from ister.spark.jobs.tiering.decoding import make_decoding

    return make_decoding(decode, schema, nested)


class _TierJob:
    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        snapshot: Snapshot,
        target: Target,
        partition_by: str,
        decoding: Decoding | None,
        file_bytes: int,
        skip_missing: bool,
        watch: Watch,
        stop: Stop,
    ) -> None:
        from ister.spark.jobs.tiering.plan import dead_letter_schema, table_schema

        self._spark = spark
        self._bootstrap = bootstrap
        self._snapshot = snapshot
        self._target = target
        self._decoding = decoding
        self._file_bytes = file_bytes
        self._skip_missing = skip_missing
        self._watch = watch
        self._stop = stop
        self._schema = table_schema(decoding)
        self._origin = Origin(
            snapshot.cluster,
            snapshot.topic,
            snapshot.uid,
            partition_by=partition_by,
            decode="none" if decoding is None else decoding.kind,
            schema="" if decoding is None else decoding.text,
            nested=decoding is not None and decoding.nested,
        )
        self._table: LakeTable = open_table(target, self._origin, self._schema)
        self._dead: LakeTable | None = None
        self._dead_covered: Coverage | None = None
        """How far the dead letters were when the tasks were told which to leave out, and by our commits."""
        if decoding is not None:
            self._dead = open_table(target, replace(self._origin, holds=DEAD_LETTERS), dead_letter_schema())
        self._begins = 0
        covered = self._table.coverage()
        begins = 0 if covered is None else covered.next
        self._done = Tiered(
            snapshot.topic,
            snapshot.uid,
            target.to,
            target.name_of(self._origin),
            begins,
            begins,
            snapshot.end,
        )

    def check_not_ahead(self) -> None:
        """A table never has what its topic has not: a log that has lost its end, which only weaker promises
        than fsync on a quorum allow, gives those offsets to other records."""
        covered, topic = self._table.coverage(), self._snapshot.topic
        if covered is None or covered.next <= self._snapshot.end:
            return
        with sync.connect(self._bootstrap) as log:
            end = take_snapshot(log, topic).end  # another job may have gone on since we looked
        if covered.next > end:
            raise TableMismatch(
                f"{self._done.table} goes up to offset {covered.next - 1}, and {topic} ends at {end}: the "
                f"records from {end} on are not in the log any more",
                hint="Tier the topic into a new table. `ister pipeline audit --against` compares this one.",
            )

    def begin_at(self, offset: int) -> None:
        """A table that is new begins with this offset; one with other offsets is another range's."""
        covered, end = self._table.coverage(), self._snapshot.end
        if covered is not None and covered.next > end:
            raise TableMismatch(
                f"{self._done.table} has offsets up to {covered.next - 1} of {self._snapshot.topic}, "
                f"not up to {end - 1}"
            )
        if covered is not None and covered.first != offset:
            raise TableMismatch(
                f"{self._done.table} begins with offset {covered.first} of {self._snapshot.topic}, "
                f"not with {offset}"
            )
        self._begins = offset
        self._done.start_offset = self._done.next_offset = offset if covered is None else covered.next

    def run(self) -> Tiered:
        at_once = 0
        while True:
            covered = self._table.coverage()
            begun = self._begin(covered)
            if covered is not None:
                self._done.next_offset = covered.next
                if covered.next >= self._snapshot.end and begun == covered:
                    return self._done
            if begun.next >= self._snapshot.end:
                # Nothing to write; an empty topic's table says that it has come to its end, too.
                self._dead_covered = None if self._dead is None else self._dead.coverage()
                if self._commit([], [], covered, begun):
                    return self._done
                continue
            at_once = at_once or parallelism(self._spark)
            if self._round(covered, begun, at_once) or self._stop.is_asked:
                return self._done

    def optimize(self) -> tuple[int, int]:
        from ister.spark.jobs.tiering.optimizing import RewritePlan, optimize_table
        from ister.spark.jobs.tiering.plan import dead_letter_schema

        removed = added = 0
        for table in self._tables:
            is_dead = table is self._dead
            plan = RewritePlan(
                table.location,
                dead_letter_schema() if is_dead else self._schema,
                self._origin.partition_by,
                self._file_bytes,
                self._decoding is not None and not is_dead,
            )
            at_once = parallelism(self._spark)
            gone, come = optimize_table(self._spark, table, plan, at_once=at_once, stop=self._stop)
            removed, added = removed + gone, added + come
        return removed, added

    def expire(self, older_than_s: float) -> int:
        return sum(table.expire(older_than_s) for table in self._tables)

    def vacuum(self, older_than_s: float) -> int:
        return sum(len(table.vacuum(older_than_s)) for table in self._tables)

    @property
    def _tables(self) -> list[LakeTable]:
        return [self._table] if self._dead is None else [self._table, self._dead]

    def _begin(self, covered: Coverage | None) -> Coverage:
        """Where the next offset is to come from; behind what was trimmed, if that is allowed."""
        begun = covered or Coverage(self._begins, self._begins)
        start = self._snapshot.start
        if begun.next >= start:
            return begun
        if not self._skip_missing:
            raise OffsetOutOfRange(
                f"offsets {begun.next} to {start - 1} of {self._snapshot.topic} are not there: "
                f"the topic begins at {start} now",
                hint="--skip-missing goes on at the topic's beginning, and notes the gap in the table.",
                offsets=(begun.next, start),
            )
        self._note_gap(begun.next, start)
        return replace(begun, next=start, gaps=joined_gaps((*begun.gaps, (begun.next, start))))

    def _round(self, covered: Coverage | None, begun: Coverage, at_once: int) -> bool:
        """From there to the end of the snapshot. False if another job has committed meanwhile."""
        snapshot, size = self._snapshot, self._snapshot.size_between(begun.next, self._snapshot.end)
        self._watch.begins(f"tier {snapshot.topic}", snapshot.end - begun.next, size)
        work = partial(_write, self._write_plan(begun))
        cutting = Cutting(snapshot, begun.next, self._file_bytes, size, at_once)
        cut, gathered = cutting.cut, Gathered(covered, begun)
        finished: dict[int, Written] = {}
        try:
            for number, written in run_tasks(
                self._spark, work, cutting.shares(), at_once=at_once, stop=self._stop
            ):
                self._watch.advances(written.records, cut[number].size)
                finished[number] = written
                cutting.learn(cut[number], written.files)
                while gathered.taken in finished:
                    gathered.take(cut[gathered.taken], finished.pop(gathered.taken))
                if gathered.log_bytes >= COMMIT_BYTES and not self._commit_gathered(gathered):
                    return False
            return self._commit_gathered(gathered)
        except BaseException:
            # What is whole is kept: the next run begins behind it.
            self._commit_gathered(gathered)
            raise
        finally:
            self._watch.ends()

    def _write_plan(self, begun: Coverage) -> WritePlan:
        from ister.spark.jobs.tiering.plan import WritePlan

        self._dead_covered = covered = None if self._dead is None else self._dead.coverage()
        return WritePlan(
            self._bootstrap,
            self._table.location,
            self._schema,
            self._origin.partition_by,
            self._file_bytes,
            self._skip_missing,
            self._decoding,
            "" if self._dead is None else self._dead.location,
            begun.next if covered is None else covered.next,
        )

    def _commit_gathered(self, gathered: Gathered) -> bool:
        if not gathered.has_news:
            return True
        if not self._commit(gathered.files, gathered.dead_files, gathered.before, gathered.after):
            return False
        for start, end in gathered.gaps:
            self._note_gap(start, end)
        self._done.records += gathered.records
        self._done.log_bytes += gathered.log_bytes
        gathered.start_anew()
        return True

    def _commit(
        self, files: list[DataFile], dead_files: list[DataFile], before: Coverage | None, after: Coverage
    ) -> bool:
        if self._dead is not None and not self._commit_dead_letters(dead_files, after):
            return False
        if not self._table.commit(files, before, after):
            self._watch.tells(
                f"another job has brought {self._done.table} further meanwhile; this one goes on from there"
            )
            return False
        self._done.commits += 1
        self._done.files += len(files)
        self._done.file_bytes += sum(file.size for file in files)
        self._done.next_offset = after.next
        return True

    def _commit_dead_letters(self, files: list[DataFile], after: Coverage) -> bool:
        """As far as their table has not got them: it may be ahead of the other one by one commit."""
        assert self._dead is not None
        covered = self._dead_covered
        if covered is not None and covered.next >= after.next:
            return True  # the tasks left out what is there already
        if not self._dead.commit(files, covered, after):
            return False
        self._dead_covered = after
        self._done.dead_letters += sum(file.records for file in files)
        return True

    def _note_gap(self, start: int, end: int) -> None:
        if (start, end) in self._done.gaps:
            return
        self._done.gaps.append((start, end))
        self._watch.tells(
            f"offsets {start} to {end - 1} of {self._snapshot.topic} are not there; the table goes on behind"
        )


def _write(plan: WritePlan, share: Share) -> Written:
    """On the executor, where the rest is imported."""
    from ister.spark.jobs.tiering.writing import write_share

    return write_share(plan, share)
