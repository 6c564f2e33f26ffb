"""`audit`: whether all of a topic is there, whole and the same everywhere, and a table's rows are its
records.

Up to the ends that the topics have when it starts, open segments included. Executors look at every frame
(`auditing.frames`); the driver joins what they saw into segments and holds that against the metadata.
Replicas and tables are compared by tasks of their own (`auditing.copies`, `auditing.against`).

What is found is data, not an error: all of it is told, with exact offsets. Errors are what keeps an audit
from looking: no broker answers, a topic is deleted meanwhile. What retention trims meanwhile is a note.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ister import sync
from ister.addresses import Address
from ister.errors import ConfigError
from ister.io.clock import monotonic
from ister.names import normalise_topic
from ister.spark.jobs.auditing.findings import Checked, Finding, Note, shown
from ister.spark.jobs.auditing.segments import AuditedSegment, join_checked, segments_of
from ister.spark.jobs.running import Stop, parallelism, run_tasks
from ister.spark.jobs.snapshot import Share, Snapshot, shares, take_snapshot
from ister.spark.jobs.watching import Unwatched, Watch
from ister.spark.ranges import HOT, Piece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ister.spark.jobs.auditing.objects import Orphan
    from ister.spark.jobs.auditing.tables import TableLook
    from ister.spark.jobs.lake.opening import Target

SHARE_BYTES: Final = 64 * 1024 * 1024
TASK_BYTES: Final = 32 * 1024 * 1024
"""Small shares go together until they have this much, and no more than `TASK_SHARES` of them."""
TASK_SHARES: Final = 200
_BUCKETS: Final = 200


@dataclass
class Audited:
    """What an audit of one topic saw."""

    topic: str
    uid: int
    start_offset: int
    end_offset: int
    segments: list[AuditedSegment] = field(default_factory=list)
    table: str = ""
    """The one that was held against it."""
    table_findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    rates: list[tuple[int, int, int]] = field(default_factory=list)
    """Time in microseconds, records and bytes appended from then to the next one."""
    bucket_us: int = 1
    replicas_compared: bool = False
    orphans: list[Orphan] = field(default_factory=list)
    """Objects of the history that no descriptor names."""

    @property
    def findings(self) -> list[Finding]:
        return [*(found for segment in self.segments for found in segment.findings), *self.table_findings]

    @property
    def is_clean(self) -> bool:
        return not self.findings

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


@dataclass
class AuditReport:
    topics: list[Audited]
    seconds: float = 0.0
    is_complete: bool = True
    """False if it was stopped before the end."""

    @property
    def is_clean(self) -> bool:
        return self.is_complete and all(topic.is_clean for topic in self.topics)


def audit(
    spark: SparkSession,
    topics: str | Sequence[str] | None = None,
    *,
    bootstrap: str = "127.0.0.1:9091",
    replicas: bool = False,
    against: str | None = None,
    to: str | None = None,
    catalog: str | None = None,
    catalog_properties: Mapping[str, str] | None = None,
    table: str | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> AuditReport:
    """Check one topic, several, or all of them (None). `against` is the path of a table of one topic; which
    format it has is found there, unless `to` says it."""
    started = monotonic()
    job = _AuditJob(spark, bootstrap, watch or Unwatched(), stop or Stop())
    with sync.connect(bootstrap) as log:
        if topics is None:
            names = [found.topic for found in log.list_topics()]
        else:
            given = [topics] if isinstance(topics, str) else topics
            names = list(dict.fromkeys(normalise_topic(name) for name in given))
        if against is not None or catalog is not None:
            # Before the topic is looked at, and a wrong path is told before an hour of work.
            if len(names) != 1:
                raise ConfigError(
                    f"a table is held against one topic, and {len(names)} are named", hint="Name one."
                )
            target = _target(against, to, catalog, catalog_properties or {}, table)
            job.against = _look_at_table(bootstrap, target, names[0])
        job.snapshots = [take_snapshot(log, name) for name in names]
        nodes = log.cluster().nodes
    job.nodes = {node.node_id: Address(node.client_host, node.client_port) for node in nodes}
    if job.against is not None:
        job.against.check_topic(job.snapshots[0])
    report = job.run(replicas)
    report.seconds = monotonic() - started
    return report


def _target(
    path: str | None, to: str | None, catalog: str | None, properties: Mapping[str, str], table: str | None
) -> Target:
    from ister.spark.jobs.lake.opening import Target, format_at

    return Target(
        to or ("iceberg" if catalog else format_at(path or "")), path, catalog, dict(properties), table
    )


def _look_at_table(bootstrap: str, target: Target, topic: str) -> TableLook:
    """Imported here: whoever audits no table needs none of its libraries."""
    from ister.spark.jobs.auditing.tables import look_at_table

    return look_at_table(bootstrap, target, topic)


class _AuditJob:
    def __init__(self, spark: SparkSession, bootstrap: str, watch: Watch, stop: Stop) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._watch = watch
        self._stop = stop
        self._at_once = 0
        self.snapshots: list[Snapshot] = []
        self.nodes: dict[int, Address] = {}
        self.against: TableLook | None = None

    def run(self, replicas: bool) -> AuditReport:
        self._at_once = parallelism(self._spark)
        report = AuditReport([self._begun(snapshot) for snapshot in self.snapshots])
        self._check_frames(report)
        self._find_orphans(report)
        if replicas:
            self._compare_replicas(report)
        self._note_trimmed(report)
        if self.against is not None and not self._stop.is_asked:
            self._compare_table(report.topics[0], self.against)
        report.is_complete = not self._stop.is_asked
        return report

    def _begun(self, snapshot: Snapshot) -> Audited:
        audited = Audited(snapshot.topic, snapshot.uid, snapshot.start, snapshot.end)
        audited.segments = segments_of(snapshot)
        first = min((part.first_append_time_us for part in snapshot.there.segments if part.bytes), default=0)
        last = max((part.last_append_time_us for part in snapshot.there.segments), default=0)
        audited.bucket_us = max(1_000_000, (last - first) // _BUCKETS)
        return audited

    # Every frame.

    def _check_frames(self, report: AuditReport) -> None:
        for audited, snapshot, seen in zip(
            report.topics, self.snapshots, self._looked_at(report), strict=True
        ):
            rates: Counter[tuple[int, str]] = Counter()
            for bucket, (records, size) in (item for checked in seen for item in checked.rates.items()):
                rates[bucket, "records"] += records
                rates[bucket, "bytes"] += size
            buckets = sorted({bucket for bucket, _ in rates})
            audited.rates = [
                (bucket * audited.bucket_us, rates[bucket, "records"], rates[bucket, "bytes"])
                for bucket in buckets
            ]
            cut = self._cut(snapshot)
            by_segment: defaultdict[int, list[Checked]] = defaultdict(list)
            for share, checked in zip(cut, seen, strict=False):
                by_segment[share.segment].append(checked)
            last_time, complete = 0, len(seen) == len(cut)
            for segment, (part, _) in zip(audited.segments, snapshot.segments(), strict=True):
                own = by_segment[segment.segment]
                last_time = join_checked(segment, part, own, last_time, complete)
                audited.notes += [note for checked in own for note in checked.notes]

    def _looked_at(self, report: AuditReport) -> list[list[Checked]]:
        """What the tasks saw, for each topic's shares in their order."""
        from ister.spark.jobs.auditing.frames import check_shares

        found: list[list[Checked]] = [[] for _ in self.snapshots]
        if all(snapshot.start == snapshot.end for snapshot in self.snapshots):
            return found
        self._watch.begins(
            f"audit {_named(self.snapshots)}",
            sum(snapshot.end - snapshot.start for snapshot in self.snapshots),
            sum(snapshot.size_between(snapshot.start, snapshot.end) for snapshot in self.snapshots),
        )
        tasks = [
            (topic, partial(check_shares, self._bootstrap, report.topics[topic].bucket_us), together)
            for topic, snapshot in enumerate(self.snapshots)
            for together in _together(self._cut(snapshot))
        ]
        results: dict[int, list[Checked]] = {}
        for number, seen in run_tasks(
            self._spark,
            _run_bound,
            [(work, together) for _, work, together in tasks],
            at_once=self._at_once,
            stop=self._stop,
        ):
            results[number] = seen
            self._watch.advances(sum(each.records for each in seen), sum(each.bytes for each in seen))
        self._watch.ends()
        for number in range(len(tasks)):
            if number not in results:
                break  # stopped: what follows was not looked at
            found[tasks[number][0]] += results[number]
        return found

    def _cut(self, snapshot: Snapshot) -> list[Share]:
        """Each object of the history by itself, the rest by size."""
        cut: list[Share] = []
        pieces = snapshot.lives or (Piece(0, snapshot.start, snapshot.end, HOT, (), False),)
        for is_stored, run in groupby(pieces, lambda piece: piece.descriptor is not None):
            if is_stored:
                cut += [share for piece in run for share in shares(snapshot, piece.start, piece.end, 1 << 62)]
            else:
                together = list(run)
                cut += shares(snapshot, together[0].start, together[-1].end, SHARE_BYTES)
        return cut

    # Objects that nobody names.

    def _find_orphans(self, report: AuditReport) -> None:
        from ister.spark.jobs.auditing.objects import Place, find_orphans

        places = [
            (place, Place(snapshot.location, snapshot.cluster, snapshot.topic))
            for place, snapshot in enumerate(self.snapshots)
            if snapshot.location
        ]
        work = partial(find_orphans, self._bootstrap)
        for number, orphans in run_tasks(
            self._spark, work, [where for _, where in places], at_once=self._at_once, stop=self._stop
        ):
            audited = report.topics[places[number][0]]
            audited.orphans = orphans
            hint = (
                f"brokers delete it by and by, or when `ister history sweep {audited.topic}` asks them to; "
                "what a compaction has replaced stays for an hour in any case"
            )
            for name, size in orphans:
                what = f"no descriptor names the object {name} of {size} bytes; {hint}"
                audited.notes.append(Note(audited.start_offset, audited.start_offset, what))

    # Replicas.

    def _compare_replicas(self, report: AuditReport) -> None:
        from ister.spark.jobs.auditing.copies import compare_shares

        for audited, snapshot in zip(report.topics, self.snapshots, strict=True):
            together = list(_together(list(shares(snapshot, snapshot.start, snapshot.end, SHARE_BYTES))))
            self._watch.begins(
                f"compare replicas of {snapshot.topic}",
                snapshot.end - snapshot.start,
                snapshot.size_between(snapshot.start, snapshot.end),
            )
            work = partial(compare_shares, self.nodes)
            by_segment = {segment.segment: segment for segment in audited.segments}
            for number, findings in run_tasks(
                self._spark, work, together, at_once=self._at_once, stop=self._stop
            ):
                for share, found in zip(together[number], findings, strict=True):
                    by_segment[share.segment].findings += found
                    self._watch.advances(share.range.count, share.size)
            self._watch.ends()
            audited.replicas_compared = not self._stop.is_asked

    # A table.

    def _compare_table(self, audited: Audited, look: TableLook) -> None:
        from ister.spark.jobs.auditing.against import compare_table
        from ister.spark.jobs.auditing.tables import check_reach, windows

        audited.table, covered = look.name, look.covered
        audited.table_findings += check_reach(look, audited.start_offset, audited.end_offset)
        if covered is None:
            return
        parts = list(windows(self.snapshots[0], look, covered))
        self._watch.begins(
            f"compare {audited.table}",
            sum(part.share.range.count for part in parts if part.in_log),
            sum(part.share.size for part in parts),
        )
        work = partial(compare_table, look.plan, covered.gaps)
        for number, findings in run_tasks(
            self._spark, work, [[part] for part in parts], at_once=self._at_once, stop=self._stop
        ):
            audited.table_findings += [found for each in findings for found in each]
            self._watch.advances(parts[number].share.range.count, parts[number].share.size)
        self._watch.ends()
        audited.table_findings.sort()

    # What has changed meanwhile.

    def _note_trimmed(self, report: AuditReport) -> None:
        """Records that retention dropped while they were looked for are no fault."""
        if report.is_clean:
            return
        with sync.connect(self._bootstrap) as log:
            for audited in report.topics:
                if audited.is_clean:
                    continue
                begins = log.describe_topic(audited.topic).start_offset
                for segment in audited.segments:
                    if segment.findings and segment.end_offset <= begins:
                        segment.findings = []
                        which = shown(segment.base_offset, segment.end_offset)
                        what = f"{which}: trimmed while they were audited"
                        audited.notes.append(Note(segment.base_offset, segment.end_offset, what))


def _run_bound(task: tuple[Any, Any]) -> Any:
    """Of tasks that are not all of one function."""
    work, together = task
    return work(together)


def _named(snapshots: Sequence[Snapshot]) -> str:
    return snapshots[0].topic if len(snapshots) == 1 else f"{len(snapshots)} topics"


def _together(cut: Sequence[Share]) -> Iterator[list[Share]]:
    """Small shares of one topic in one task."""
    gathered: list[Share] = []
    size = 0
    for share in cut:
        if gathered and (size + share.size > TASK_BYTES or len(gathered) >= TASK_SHARES):
            yield gathered
            gathered, size = [], 0
        gathered.append(share)
        size += share.size
    if gathered:
        yield gathered
