"""A kill as a picture: how long a request took that was begun at each moment around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
HEIGHT: Final = 400
LEFT: Final = 64
RIGHT: Final = 20
TOP: Final = 96
BOTTOM: Final = 44
LOWEST_MS: Final = 0.1
HIGHEST_MS: Final = 10_000.0
LABELS: Final = {0.1: "0.1 ms", 1.0: "1 ms", 10.0: "10 ms", 100.0: "100 ms", 1000.0: "1 s", 10_000.0: "10 s"}

STYLE: Final = """
    .ink { fill: #24292f; } .soft { fill: #57606a; }
    .append { fill: #2f8a45; } .other-append { fill: #86c795; } .write { fill: #c2571a; }
    .outage { fill: #c2571a; fill-opacity: 0.10; }
    .grid { stroke: #d0d7de; stroke-width: 1; } .mark { stroke: #57606a; stroke-width: 1.5; }
    @media (prefers-color-scheme: dark) {
      .ink { fill: #e6edf3; } .soft { fill: #9da7b1; }
      .append { fill: #5fc27a; } .other-append { fill: #2c6b3c; } .write { fill: #f0883e; }
      .outage { fill: #f0883e; fill-opacity: 0.14; }
      .grid { stroke: #30363d; } .mark { stroke: #9da7b1; }
    }
"""


@dataclass(frozen=True)
class Series:
    """Dots of one kind: for each bin of time the longest that a request took, 0 for none."""

    kind: str
    """`append`, `other-append` or `write`."""
    words: str
    milliseconds: Sequence[float]


@dataclass(frozen=True)
class Picture:
    title: str
    said: str
    """For those who cannot see it."""
    start_s: float
    bin_s: float
    outage_s: float
    outage_words: str
    series: Sequence[Series]


def draw_timeline(timeline: dict[str, Any]) -> str:
    """An election, as `bench.cluster.election` keeps it."""
    writable = float(timeline["writable_s"])
    kinds = zip(("append", "other-append"), timeline["appends_ms"].items(), strict=False)
    return draw_picture(
        Picture(
            title=f"kill -9 of node {timeline['killed_node']}, which leads the metadata",
            said=f"Appends to the other nodes go on; metadata can be changed again after {writable:.2f} s.",
            start_s=float(timeline["start_s"]),
            bin_s=float(timeline["bin_s"]),
            outage_s=writable,
            outage_words=f"metadata writable again after {writable:.2f} s",
            series=[
                *(
                    Series(kind, f"append to a topic of {name}", numbers(text))
                    for kind, (name, text) in kinds
                ),
                Series("write", "making a topic (metadata)", numbers(timeline["writes_ms"])),
            ],
        )
    )


def draw_picture(picture: Picture) -> str:
    """Time from left to right, the kill at 0; upwards, on a scale of tens, what a request took."""
    start, step = picture.start_s, picture.bin_s
    end = start + step * max(len(series.milliseconds) for series in picture.series)
    across = _Scale(start, end, LEFT, WIDTH - RIGHT)
    note = (
        f"Each dot: the longest that a request begun in those {step * 1000:.0f} ms took, on a scale of tens."
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="14">',
        f'  <title id="title">{escape(picture.title)}</title>',
        f'  <desc id="description">{escape(picture.said)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <text class="ink" x="20" y="24" font-weight="600">{escape(picture.title)}</text>',
        f'  <text class="soft" x="20" y="44" font-size="12">{escape(note)}</text>',
        *_legend(picture.series),
        *_grid(across, start, end),
        *_outage(across, picture.outage_s, picture.outage_words),
    ]
    for series in picture.series:
        lines += _dots(series.kind, series.milliseconds, across, start, step)
    return "\n".join([*lines, "</svg>", ""])


class _Scale:
    def __init__(self, low: float, high: float, left: float, right: float) -> None:
        self._low, self._left = low, left
        self._per_unit = (right - left) / (high - low)

    def __call__(self, value: float) -> float:
        return self._left + (value - self._low) * self._per_unit


def height_of(milliseconds: float) -> float:
    """Where a duration lies in the picture; what is off the scale lies at its edge."""
    within = min(max(milliseconds, LOWEST_MS), HIGHEST_MS)
    part = math.log10(within / LOWEST_MS) / math.log10(HIGHEST_MS / LOWEST_MS)
    return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP)


def numbers(series: str) -> list[float]:
    return [float(number) for number in series.split()]


def _legend(entries: Sequence[Series]) -> Iterator[str]:
    x = 24.0
    for series in entries:
        yield f'  <circle class="{series.kind}" cx="{x:.0f}" cy="64" r="4"/>'
        yield f'  <text class="ink" x="{x + 10:.0f}" y="68" font-size="12">{escape(series.words)}</text>'
        x += 26 + 6.6 * len(series.words)


def _grid(across: _Scale, start: float, end: float) -> Iterator[str]:
    for value, words in LABELS.items():
        y = height_of(value)
        yield f'  <line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield (
            f'  <text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" font-size="12" '
            f'text-anchor="end">{words}</text>'
        )
    bottom = HEIGHT - BOTTOM
    for half in range(math.ceil(start * 2), math.floor(end * 2) + 1):
        words = f"{half / 2:g} s" if half else "the kill"
        yield (
            f'  <text class="soft" x="{across(half / 2):.1f}" y="{bottom + 20}" font-size="12" '
            f'text-anchor="middle">{words}</text>'
        )


def _outage(across: _Scale, seconds: float, words: str) -> Iterator[str]:
    """From the kill on."""
    left, right, bottom = across(0.0), across(seconds), HEIGHT - BOTTOM
    yield (
        f'  <rect class="outage" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
        f'height="{bottom - TOP}"/>'
    )
    for x in (left, right):
        yield f'  <line class="mark" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>'
    yield (f'  <text class="ink" x="{right + 8:.1f}" y="{TOP + 30}" font-size="12">{escape(words)}</text>')


def _dots(kind: str, series: Sequence[float], across: _Scale, start: float, step: float) -> Iterator[str]:
    for place, value in enumerate(series):
        if value > 0:
            x = across(start + (place + 0.5) * step)
            yield f'  <circle class="{kind}" cx="{x:.1f}" cy="{height_of(value):.1f}" r="2"/>'
