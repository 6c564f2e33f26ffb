"""What an audit found, as text and as one object for each topic, whose keys stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ister.cli.common import counted
from ister.cli.render import pairs, show_bytes, table
from ister.cli.render_pipeline import per_second
from ister.cli.terminal import Paint

if TYPE_CHECKING:
    from ister.spark.jobs.audit import Audited, AuditReport

FINDINGS_SHOWN: Final = 50
"""In the text; JSON and the page have all."""


class AuditView(NamedTuple):
    report: AuditReport
    page: str | None = None

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "job": "audit",
                "topic": topic.topic,
                "uid": topic.uid,
                "start_offset": topic.start_offset,
                "end_offset": topic.end_offset,
                "records": topic.records,
                "bytes": topic.bytes,
                "clean": topic.is_clean and self.report.is_complete,
                "complete": self.report.is_complete,
                "replicas_compared": topic.replicas_compared,
                "table": topic.table,
                "segments": [
                    {
                        "segment": segment.segment,
                        "base_offset": segment.base_offset,
                        "end_offset": segment.end_offset,
                        "sealed": segment.sealed,
                        "leader": segment.leader,
                        "replicas": segment.replicas,
                        "object": segment.object_name,
                        "records": segment.records,
                        "bytes": segment.bytes,
                        "clean": segment.is_clean,
                    }
                    for segment in topic.segments
                ],
                "findings": [found.to_object() for found in topic.findings],
                "notes": [note._asdict() for note in topic.notes],
                "orphans": [orphan._asdict() for orphan in topic.orphans],
                "seconds": round(self.report.seconds, 3),
            }
            for topic in self.report.topics
        ]

    def to_text(self, paint: Paint) -> str:
        report = self.report
        lines = []
        if len(report.topics) == 1:
            lines += [*self._one(report.topics[0], paint), ""]
        elif report.topics:
            rows = [
                [
                    paint("bold", topic.topic),
                    f"{topic.start_offset:,}",
                    f"{topic.end_offset:,}",
                    f"{topic.records:,}",
                    show_bytes(topic.bytes),
                    f"{len(topic.segments):,}",
                    verdict(topic.is_clean, paint),
                ]
                for topic in report.topics
            ]
            headings = ["TOPIC", "START", "END", "RECORDS", "BYTES", "SEGMENTS", "IS"]
            lines += [table(headings, "<>>>>><", rows, paint), ""]
        lines += _findings(report.topics, paint)
        if self.page is not None:
            lines.append(f"page written to {self.page}")
        return "\n".join([*lines, self._summary(paint)])

    def _one(self, topic: Audited, paint: Paint) -> list[str]:
        sealed = sum(segment.sealed for segment in topic.segments)
        facts = [
            ("offsets", f"{topic.start_offset:,} to {topic.end_offset:,}"),
            ("records", f"{topic.records:,}"),
            ("segments", f"{len(topic.segments):,}, {sealed:,} of them sealed"),
            (
                "read",
                f"{show_bytes(topic.bytes)}{per_second(topic.bytes, self.report.seconds)}",
            ),
        ]
        stored = sum(bool(segment.object_name) for segment in topic.segments)
        if stored:
            facts.append(("history", f"{counted(stored, 'object')}, read past the brokers"))
        if topic.replicas_compared:
            facts.append(("replicas", "compared"))
        if topic.table:
            facts.append(("table", f"{topic.table}: {verdict(not topic.table_findings, paint)}"))
        return [paint("bold", topic.topic), *pairs(facts, paint)]

    def _summary(self, paint: Paint) -> str:
        report = self.report
        what = report.topics[0].topic if len(report.topics) == 1 else counted(len(report.topics), "topic")
        if not report.is_complete:
            return paint("yellow", f"stopped: {what} was not looked at to the end")
        if report.is_clean:
            return f"{paint('green', 'clean')}: all of {what} holds ({report.seconds:.1f} s)"
        found = sum(len(topic.findings) for topic in report.topics)
        return f"{paint('red', 'NOT clean')}: {counted(found, 'finding')} ({report.seconds:.1f} s)"


def verdict(is_clean: bool, paint: Paint) -> str:
    return paint("green", "clean") if is_clean else paint("red", "NOT clean")


def _findings(topics: Sequence[Audited], paint: Paint) -> list[str]:
    lines = []
    for topic in topics:
        lines += [f"{paint('yellow', 'note')} {topic.topic}: {note.what}" for note in topic.notes]
    found = [(topic, finding) for topic in topics for finding in topic.findings]
    for topic, finding in found[:FINDINGS_SHOWN]:
        where = f"{topic.topic} segment {finding.segment}" if finding.segment else topic.topic
        lines.append(f"{paint('red', finding.check)} {where}: {finding.what}")
    if len(found) > FINDINGS_SHOWN:
        lines.append(f"and {len(found) - FINDINGS_SHOWN:,} more; --output json has them all")
    return [*lines, ""] if lines else []
