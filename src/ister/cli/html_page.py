"""A page for a browser, in one file that needs no network: figures, tables, and plots as inline SVG.

    page = Page("Audit", "clean", is_good=True)
    page.figures([("records", "1,200,000"), ...])
    page.section("Appends", columns_plot(points, unit="records", of=[...]))
    page.section("Segments", html_table(["segment", "records"], rows))
    Path("audit.html").write_text(page.to_html())

Colours follow the reader's light or dark scheme. A plot says its values in words too: each mark has a title,
which a browser shows under the mouse and a screen reader reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 1060
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6778; --line: #dfe3ea; --paper: #ffffff;
  --card: #f6f7f9; --mark: #2f6fde; --good: #1d7f4f; --bad: #c43131; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa5b5; --line: #303744;
  --paper: #14181f; --card: #1c222b; --mark: #6ea0ff; --good: #4cc38a; --bad: #ff7b72; --warn: #e0b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 32px 30px 60px; background: var(--paper); color:
var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0; display: flex; gap: 14px; align-items: center; }
h2 { font-size: 18px; margin: 36px 0 10px; }
.verdict { font-size: 14px; font-weight: 600; padding: 3px 12px; border-radius: 999px; color: var(--paper);
  background: var(--bad); }
.verdict.good { background: var(--good); color: var(--paper); }
.about { color: var(--soft); margin: 4px 0 22px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.figure { background: var(--card); border-radius: 8px; padding: 12px 16px; }
.figure b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.figure span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
th { text-align: left; color: var(--soft); font-weight: 500; font-size: 13px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th.number, td.number { text-align: right; padding-right: 22px; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .mark { fill: var(--mark); } svg .mark.good { fill: var(--good); } svg .mark.bad { fill: var(--bad); }
svg .line { fill: none; stroke: var(--mark); stroke-width: 2; stroke-linejoin: round; }
footer { margin-top: 44px; color: var(--soft); font-size: 13px; }
"""


class Page:
    def __init__(self, title: str, verdict: str, *, is_good: bool, about: str = "") -> None:
        self._title = title
        self._verdict = verdict
        self._is_good = is_good
        self._about = about
        self._parts: list[str] = []

    def figures(self, facts: Sequence[tuple[str, str]]) -> None:
        """A few numbers that matter most: what they are, and how they are said."""
        cards = "".join(
            f'<div class="figure"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for name, value in facts
        )
        self._parts.append(f'<div class="figures">{cards}</div>')

    def section(self, heading: str, *html: str) -> None:
        self._parts.append(f"<section><h2>{escape(heading)}</h2>{''.join(html)}</section>")

    def to_html(self) -> str:
        kind = "verdict good" if self._is_good else "verdict"
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}: {escape(self._verdict)}</title>"
            f"<style>{_STYLE}</style></head><body>"
            f'<h1>{escape(self._title)} <span class="{kind}">{escape(self._verdict)}</span></h1>'
            f'<p class="about">{escape(self._about)}</p>{"".join(self._parts)}'
            "<footer>Made by Ister. This page is one file and loads nothing.</footer></body></html>\n"
        )


class Cell(NamedTuple):
    """Of a table, where it is more than text."""

    text: str
    kind: str = ""
    """`good`, `bad` or `warn`."""


def html_table(headings: Sequence[str], sides: str, rows: Sequence[Sequence[str | Cell]]) -> str:
    """`<` left or `>` right for each column, as in the terminal's tables."""

    def row(cells: Sequence[str | Cell], tag: str) -> str:
        made = []
        for side, cell in zip(sides, cells, strict=True):
            found = cell if isinstance(cell, Cell) else Cell(cell)
            classes = " ".join(filter(None, ("number" if side == ">" else "", found.kind)))
            opened = f'{tag} class="{classes}"' if classes else tag
            made.append(f"<{opened}>{escape(found.text)}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f'<div class="wide"><table><thead>{row(headings, "th")}</thead><tbody>{body}</tbody></table></div>'


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


# Plots.


class Mark(NamedTuple):
    """One value: where it lies, how wide it is, how high, and what it is in words."""

    start: float
    end: float
    height: float
    title: str
    kind: str = ""
    """`good` or `bad`."""


def columns_plot(
    marks: Sequence[Mark], *, label: str, ends: tuple[str, str], height: int = 200, top: str | None = None
) -> str:
    """Columns side by side over a stretch of time or offsets; `ends` are what its two ends are called."""
    if not marks:
        return paragraph("There is nothing to plot.")
    left, right, over, under = 64, WIDTH - 8, 14, height - 26
    low, high = min(mark.start for mark in marks), max(mark.end for mark in marks)
    highest = max(mark.height for mark in marks) or 1.0
    scale = (right - left) / ((high - low) or 1.0)
    parts = [_axis(left, over, left, under), _axis(left, under, right, under)]
    for mark in marks:
        x = left + (mark.start - low) * scale
        wide = max(
            1.0, (mark.end - mark.start) * scale - (1.0 if (mark.end - mark.start) * scale > 4 else 0.0)
        )
        tall = (under - over) * mark.height / highest
        parts.append(
            f'<rect class="mark {mark.kind}" x="{x:.1f}" y="{under - tall:.1f}" width="{wide:.1f}" '
            f'height="{max(tall, 0.5):.1f}"><title>{escape(mark.title)}</title></rect>'
        )
    parts += [
        _text(left - 8, over + 4, top or f"{highest:,.0f}", "end"),
        _text(left - 8, under, "0", "end"),
        _text(left, height - 8, ends[0], "start"),
        _text(right, height - 8, ends[1], "end"),
    ]
    return _svg(height, label, parts)


def strip_plot(marks: Sequence[Mark], *, label: str, ends: tuple[str, str], height: int = 62) -> str:
    """A line of offsets as one strip, its pieces side by side."""
    if not marks:
        return paragraph("There is nothing to plot.")
    left, right = 0, WIDTH
    low, high = min(mark.start for mark in marks), max(mark.end for mark in marks)
    scale = (right - left) / ((high - low) or 1.0)
    parts = []
    for mark in marks:
        x, wide = left + (mark.start - low) * scale, (mark.end - mark.start) * scale
        parts.append(
            f'<rect class="mark {mark.kind}" x="{x:.2f}" y="6" width="{max(1.0, wide - 1.5):.2f}" '
            f'height="28" rx="2"><title>{escape(mark.title)}</title></rect>'
        )
    parts += [_text(left, height - 8, ends[0], "start"), _text(right, height - 8, ends[1], "end")]
    return _svg(height, label, parts)


def line_plot(
    points: Sequence[tuple[float, float]], *, label: str, ends: tuple[str, str], height: int = 200
) -> str:
    """One value over time, such as how far a reader is behind."""
    if len(points) < 2:
        return paragraph("There is nothing to plot.")
    left, right, over, under = 64, WIDTH - 8, 14, height - 26
    low, high = points[0][0], points[-1][0]
    highest = max(value for _, value in points) or 1.0
    scale = (right - left) / ((high - low) or 1.0)
    path = " ".join(
        f"{left + (at - low) * scale:.1f},{under - (under - over) * value / highest:.1f}"
        for at, value in points
    )
    parts = [
        _axis(left, over, left, under),
        _axis(left, under, right, under),
        f'<polyline class="line" points="{path}"/>',
        _text(left - 8, over + 4, f"{highest:,.0f}", "end"),
        _text(left - 8, under, "0", "end"),
        _text(left, height - 8, ends[0], "start"),
        _text(right, height - 8, ends[1], "end"),
    ]
    return _svg(height, label, parts)


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _axis(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="axis" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def show_time(time_us: int) -> str:
    """To the second, in UTC."""
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
