"""An audit as a page for a browser: the verdict, what was found, and each topic's line, segments and
appends."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ister.cli.common import counted
from ister.cli.html_page import (
    Cell,
    Mark,
    Page,
    columns_plot,
    html_table,
    paragraph,
    show_time,
    strip_plot,
)
from ister.cli.render import show_bytes

if TYPE_CHECKING:
    from ister.spark.jobs.audit import Audited, AuditReport
    from ister.spark.jobs.auditing.segments import AuditedSegment


def audit_page(report: AuditReport) -> str:
    topics = report.topics
    verdict = "clean" if report.is_clean else "not clean" if report.is_complete else "stopped before the end"
    title = f"Audit of {topics[0].topic}" if len(topics) == 1 else f"Audit of {counted(len(topics), 'topic')}"
    about = "Up to the ends that the topics had when the audit began, open segments included."
    page = Page(title, verdict, is_good=report.is_clean, about=about)
    size, seconds = sum(topic.bytes for topic in topics), report.seconds
    page.figures(
        [
            ("records", f"{sum(topic.records for topic in topics):,}"),
            ("read", show_bytes(size)),
            ("segments", f"{sum(len(topic.segments) for topic in topics):,}"),
            ("findings", f"{sum(len(topic.findings) for topic in topics):,}"),
            ("took", f"{seconds:.1f} s"),
            ("rate", f"{size / seconds / 1e6:,.0f} MB/s" if seconds else "-"),
        ]
    )
    _checks(page, report)
    _found(page, report)
    for topic in topics:
        _topic(page, topic, alone=len(topics) == 1)
    return page.to_html()


def _checks(page: Page, report: AuditReport) -> None:
    from ister.spark.jobs.auditing.findings import CHECKS, REPLICA, TABLE

    asked = {
        **dict.fromkeys(CHECKS, True),
        REPLICA: any(topic.replicas_compared for topic in report.topics),
        TABLE: any(topic.table for topic in report.topics),
    }
    otherwise: dict[bool, str | Cell] = {
        True: Cell("holds", "good") if report.is_complete else Cell("not looked at to the end", "warn"),
        False: "not asked for",
    }
    found = Counter(finding.check for topic in report.topics for finding in topic.findings)
    rows: list[list[str | Cell]] = [
        [
            check,
            about,
            Cell(counted(found[check], "finding"), "bad") if found[check] else otherwise[asked[check]],
        ]
        for check, about in CHECKS.items()
    ]
    page.section("Checks", html_table(["check", "that", "and"], "<<<", rows))


def _found(page: Page, report: AuditReport) -> None:
    rows: list[list[str | Cell]] = [
        [
            topic.topic,
            Cell(found.check, "bad"),
            f"{found.start:,}",
            f"{found.end - 1:,}",
            str(found.segment or ""),
            found.what,
        ]
        for topic in report.topics
        for found in topic.findings
    ]
    if rows:
        headings = ["topic", "check", "first offset", "last offset", "segment", "what"]
        page.section("Findings", html_table(headings, "<<>>><", rows))
    else:
        page.section("Findings", paragraph("None: all that was checked holds.", "good"))
    notes = [f"{topic.topic}: {note.what}" for topic in report.topics for note in topic.notes]
    if notes:
        page.section("Notes", *(paragraph(note, "warn") for note in notes))


def _topic(page: Page, topic: Audited, *, alone: bool) -> None:
    name = "" if alone else f"{topic.topic}: "
    ends = (f"offset {topic.start_offset:,}", f"{topic.end_offset:,}")
    line = [
        Mark(
            segment.base_offset,
            segment.end_offset,
            1,
            f"segment {segment.segment}: offsets {segment.base_offset:,} to {segment.end_offset - 1:,}, "
            f"{show_bytes(segment.bytes)}, {'clean' if segment.is_clean else 'not clean'}",
            "good" if segment.is_clean else "bad",
        )
        for segment in topic.segments
        if segment.end_offset > segment.base_offset
    ]
    line += [Mark(found.start, found.end, 1, found.what, "bad") for found in topic.findings]
    line = [mark for mark in line if mark.end <= topic.end_offset and mark.start >= topic.start_offset]
    page.section(f"{name}The line", strip_plot(line, label="segments of the topic", ends=ends))
    rates = [
        Mark(
            time_us,
            time_us + topic.bucket_us,
            records * 1e6 / topic.bucket_us,
            f"{show_time(time_us)}: {records:,} records, {show_bytes(size)}",
        )
        for time_us, records, size in topic.rates
    ]
    if rates:
        plot_ends = (show_time(int(rates[0].start)), f"{show_time(int(rates[-1].end))} UTC")
        plot = columns_plot(rates, label="records appended a second", ends=plot_ends)
        page.section(f"{name}Records appended a second", plot)
    page.section(f"{name}Segments", _segments(topic))


def _segments(topic: Audited) -> str:
    headings = ["segment", "base", "end", "records", "bytes", "leader", "replicas", "last append, UTC", "is"]
    return html_table(headings, ">>>>>><<<", [_segment(segment) for segment in topic.segments])


def _segment(segment: AuditedSegment) -> list[str | Cell]:
    state = "sealed" if segment.sealed else "open"
    return [
        str(segment.segment),
        f"{segment.base_offset:,}",
        f"{segment.end_offset:,}",
        f"{segment.records:,}",
        show_bytes(segment.bytes),
        str(segment.leader),
        ", ".join(map(str, segment.replicas)),
        show_time(segment.last_time_us) if segment.records else "",
        Cell(f"{state}, clean", "good") if segment.is_clean else Cell(f"{state}, not clean", "bad"),
    ]
