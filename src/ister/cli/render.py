"""What commands return, and how it looks: here, and in `render_cluster` for what is about a cluster.

Each kind of result knows itself as JSON objects and as text. Text may change from version to version; the
JSON keys are for scripts, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from ister.cli.common import counted
from ister.cli.terminal import Paint, Terminal
from ister.protocol.messages import CopyDescription, SegmentDescription, TopicDescription, TopicSettings
from ister.settings import TOPIC_SETTINGS, Kind, show

NOTE_WIDTH: Final = 48
_NOT_KNOWN: Final = ("down", "unknown")
"""Copies that may be whole: nobody said."""


class Result(Protocol):
    def to_objects(self) -> Sequence[dict[str, Any]]: ...

    def to_text(self, paint: Paint) -> str: ...


def render(result: Result, terminal: Terminal) -> None:
    if terminal.wants_json:
        terminal.write_objects(result.to_objects())
        return
    text = result.to_text(terminal.paint)
    if text:
        terminal.say(text)


class Done(NamedTuple):
    """Something was done: a sentence for people, an object for scripts."""

    entry: dict[str, Any]
    text: str

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [self.entry]

    def to_text(self, paint: Paint) -> str:
        return self.text


class TopicListing(NamedTuple):
    topics: list[TopicDescription]
    prefix: str = ""

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [topic_object(found) for found in self.topics]

    def to_text(self, paint: Paint) -> str:
        if not self.topics:
            what = f"No topic starts with {self.prefix!r}." if self.prefix else "There are no topics yet."
            return f"{what} {paint('dim', 'ister topic create NAME makes one.')}"
        rows = [
            [
                paint("bold", found.topic),
                grouped(found.start_offset),
                at_least(found, grouped(found.end_offset)),
                at_least(found, grouped(found.end_offset - found.start_offset - found.lost)),
                at_least(found, show_bytes(found.bytes)),
                found.settings.fsync,
                paint("yellow", shortened("; ".join(found.notes))),
            ]
            for found in self.topics
        ]
        return table(["TOPIC", "START", "END", "RECORDS", "SIZE", "FSYNC", "NOTES"], "<>>>><<", rows, paint)


class TopicDetail(NamedTuple):
    topic: TopicDescription

    def to_objects(self) -> Sequence[dict[str, Any]]:
        entry = topic_object(self.topic)
        entry["segments"] = [segment_object(segment) for segment in self.topic.segments]
        return [entry]

    def to_text(self, paint: Paint) -> str:
        found = self.topic
        records = found.end_offset - found.start_offset - found.lost
        facts = [
            ("offsets", f"{grouped(found.start_offset)} to {at_least(found, grouped(found.end_offset))}"),
            ("records", at_least(found, grouped(records))),
            ("size", at_least(found, show_bytes(found.bytes))),
            ("producers", grouped(found.producers)),
            ("uid", str(found.uid)),
        ]
        if found.resumed:
            facts.append(("resumed", found.resumed))
        lines = [paint("bold", found.topic), *pairs(facts, paint), "", paint("bold", "Settings")]
        lines += pairs(settings_with_copies(found), paint)
        if found.notes:
            lines += ["", paint("bold", "Notes"), *(f"  {paint('yellow', note)}" for note in found.notes)]
        lines += ["", paint("bold", "Segments"), segments_table(found.segments, paint)]
        return "\n".join(lines)


def topic_object(found: TopicDescription) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "uid": found.uid,
        "start_offset": found.start_offset,
        "end_offset": found.end_offset,
        "end_is_known": found.end_is_known,
        "records": found.end_offset - found.start_offset - found.lost,
        "lost": found.lost,
        "bytes": found.bytes,
        "producers": found.producers,
        "settings": {name: getattr(found.settings, name) for name in TOPIC_SETTINGS},
        "notes": found.notes,
        "resumed": found.resumed,
    }


def segment_object(segment: SegmentDescription) -> dict[str, Any]:
    return {
        "segment": segment.segment,
        "uid": segment.uid,
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "end_is_known": segment.end_is_known,
        "records": records_in(segment),
        "lost": segment.lost,
        "bytes": segment.bytes,
        "leader": segment.leader,
        "sealed": segment.sealed,
        "state": segment.state,
        "first_append_time_us": segment.first_append_time_us,
        "last_append_time_us": segment.last_append_time_us,
        "replicas": segment.replicas,
        "behind": segment.behind,
        "copies": [
            {"node": copy.node, "state": copy.state, "lacks": copy.lacks, "why": copy.why}
            for copy in segment.copies
        ],
    }


def settings_with_copies(found: TopicDescription) -> list[tuple[str, str]]:
    """Beside how many replicas are wanted: how many the segment has that has fewest. Sealed ones without a
    record, such as were given up as a whole, have nothing to copy."""
    shown = dict(settings_shown(found.settings))
    counted_in = [
        segment
        for segment in found.segments
        if not segment.sealed or (segment.replicas and records_in(segment))
    ]
    if counted_in:
        had = min(len(segment.replicas) - missing_copies(segment) for segment in counted_in)
        unknown = any(copy.state in _NOT_KNOWN for segment in counted_in for copy in segment.copies)
        shown["replicas"] += f" wanted, {had}{' or more' if unknown else ''} had"
    return list(shown.items())


def records_in(segment: SegmentDescription) -> int:
    return segment.end_offset - segment.base_offset - segment.lost


def at_least(found: TopicDescription | SegmentDescription, figure: str) -> str:
    """A figure that grows with the end: the least that it can be, if the end is not known."""
    return figure if found.end_is_known else f"at least {figure}"


def missing_copies(segment: SegmentDescription) -> int:
    """Without those that follow, and lack no more than what is under way to them."""
    return sum(copy.state != "behind" or bool(copy.why) for copy in segment.copies)


def settings_shown(settings: TopicSettings) -> list[tuple[str, str]]:
    return [(name, show_setting(spec.kind, getattr(settings, name))) for name, spec in TOPIC_SETTINGS.items()]


def show_setting(kind: Kind, value: int | str) -> str:
    return grouped(value) if kind is Kind.COUNT and isinstance(value, int) else show(kind, value)


def segments_table(segments: Sequence[SegmentDescription], paint: Paint) -> str:
    rows = [
        [
            str(segment.segment),
            grouped(segment.base_offset),
            at_least(segment, grouped(segment.end_offset)),
            at_least(segment, grouped(records_in(segment))),
            at_least(segment, show_bytes(segment.bytes)),
            str(segment.leader),
            ", ".join(map(str, segment.replicas)) or "-",
            paint(
                {"open": "green", "sealed": "dim", "in history": "dim"}.get(segment.state, "red"),
                segment.state,
            ),
            paint("yellow", "; ".join(map(copy_shown, segment.copies))),
        ]
        for segment in segments
    ]
    headings = ["SEGMENT", "BASE", "END", "RECORDS", "BYTES", "LEADER", "REPLICAS", "STATE", "NOT WHOLE"]
    return table(headings, ">>>>>><<<", rows, paint, indent="  ")


def copy_shown(copy: CopyDescription) -> str:
    """`3 lacks 12 records (not connected)`, `2 down`."""
    if copy.state != "behind":
        return f"{copy.node} {copy.state}"
    lacks = f"lacks {counted(copy.lacks, 'record')}" if copy.lacks else "does not follow"
    said = f"{copy.node} {lacks}"
    return f"{said} ({copy.why})" if copy.why else said


def pairs(facts: Sequence[tuple[str, str]], paint: Paint) -> list[str]:
    width = max((len(name) for name, _ in facts), default=0)
    return [f"  {paint('dim', name.ljust(width))}  {value}" for name, value in facts]


def table(
    headings: Sequence[str], sides: str, rows: Sequence[Sequence[str]], paint: Paint, *, indent: str = ""
) -> str:
    """Aligned columns, `<` left or `>` right; a last column that is empty throughout is left out."""
    if rows and not any(row[-1] for row in rows):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    widths = [
        max(len(heading), *(visible_width(row[place]) for row in rows)) if rows else len(heading)
        for place, heading in enumerate(headings)
    ]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, side, width in zip(cells, sides, widths, strict=False):
            gap = " " * (width - visible_width(cell))
            padded.append(cell + gap if side == "<" else gap + cell)
        return indent + "  ".join(padded).rstrip()

    return "\n".join([paint("dim", line(headings)), *(line(row) for row in rows)])


def visible_width(cell: str) -> int:
    """Its width on the screen: colours take none."""
    import re

    return len(re.sub(r"\x1b\[[0-9;]*m", "", cell))


def shortened(text: str) -> str:
    """For a list; the description has it in full."""
    return text if len(text) <= NOTE_WIDTH else f"{text[: NOTE_WIDTH - 3]}..."


def grouped(number: int) -> str:
    return f"{number:,}"


def show_bytes(size: int) -> str:
    """About how large: three digits are enough for a person; JSON has them all."""
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
