"""What `ister pipeline lag` found: as text, as objects for scripts, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ister.cli.lag import show_seconds
from ister.cli.render import grouped, table
from ister.cli.terminal import Paint

if TYPE_CHECKING:
    from ister.spark.jobs.lag import Follower, LagReport


class LagView(NamedTuple):
    report: LagReport
    page: str | None

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "kind": one.kind,
                "name": one.name,
                "topic": one.topic,
                "topic_uid": one.uid,
                "offset": one.offset,
                "end_offset": one.lag.end if one.lag else None,
                "records_behind": one.lag.records if one.lag else None,
                "records_trimmed": one.lag.lost if one.lag else None,
                "seconds_behind": one.lag.seconds if one.lag else None,
                "records_per_second": round(one.rate, 3),
                "is_running": one.is_running,
                "note": one.note,
            }
            for one in self.report.followers
        ]

    def to_text(self, paint: Paint) -> str:
        if not self.report.followers:
            return "Nobody follows a topic: no query has a pin. Name checkpoints and tables to see theirs."
        rows = [
            [
                one.kind,
                paint("bold", one.name),
                one.topic,
                grouped(one.offset),
                grouped(one.lag.end) if one.lag else "-",
                grouped(one.lag.records) if one.lag else "-",
                show_seconds(one.lag.seconds if one.lag else None),
                paint("yellow" if one.lag is None or one.lag.lost else "dim", said_of_follower(one)),
            ]
            for one in self.report.followers
        ]
        headings = ["", "WHO", "TOPIC", "OFFSET", "END", "BEHIND", "TIME BEHIND", "NOTES"]
        listed = table(headings, "<<<>>>><", rows, paint)
        return f"{listed}\npage written to {self.page}" if self.page else listed


def said_of_follower(one: Follower) -> str:
    notes = [one.note] if one.note else []
    if one.is_running is not None:
        notes.insert(0, "running" if one.is_running else "does not run")
    if one.lag is not None and one.lag.lost:
        notes.append(f"{one.lag.lost:,} records that it needs are trimmed")
    return "; ".join(notes)


def lag_page(report: LagReport) -> str:
    """How far each is behind, side by side, and how the queries got where they are."""
    from ister.cli.html_page import Mark, Page, columns_plot, html_table, line_plot, paragraph, show_time

    measured = [one for one in report.followers if one.lag is not None]
    lost = sum(1 for one in report.followers if one.lag is None or one.lag.lost)
    most = max((one.lag.records for one in measured if one.lag), default=0)
    verdict = f"{lost} can't go on" if lost else "all can go on"
    page = Page("Lag", verdict, is_good=not lost, about=f"As of {show_time(report.at_us)} UTC.")
    page.figures([("followers", grouped(len(report.followers))), ("most records behind", grouped(most))])
    marks = [
        Mark(
            place, place + 0.8, one.lag.records, f"{one.name} {one.topic}: {one.lag.records:,} records behind"
        )
        for place, one in enumerate(measured)
        if one.lag is not None
    ]
    if most:
        ends = (measured[0].name, measured[-1].name if len(measured) > 1 else "")
        page.section("Records behind", columns_plot(marks, label="records behind", ends=ends))
    elif measured:
        page.section("Records behind", paragraph("None: everybody has all there is.", "good"))
    rows = [
        [
            one.kind,
            one.name,
            one.topic,
            grouped(one.offset),
            grouped(one.lag.end) if one.lag else "-",
            grouped(one.lag.records) if one.lag else "-",
            show_seconds(one.lag.seconds if one.lag else None),
            said_of_follower(one),
        ]
        for one in report.followers
    ]
    headings = ["", "who", "topic", "offset", "end", "behind", "time behind", "notes"]
    page.section("Followers", html_table(headings, "<<<>>>><", rows))
    for one in report.followers:
        if len(one.steps) > 1:
            ends = show_time(one.steps[0][0] * 1000), show_time(one.steps[-1][0] * 1000)
            points = [(float(at), float(offset)) for at, offset in one.steps]
            page.section(
                f"Batches of {one.name}", line_plot(points, label=f"offsets of {one.topic}", ends=ends)
            )
    return page.to_html()
