"""Bar charts as SVG, by hand: a few rectangles and words, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
ROW: Final = 34
TOP: Final = 56
LABELS: Final = 250
VALUES: Final = 170

STYLE: Final = """
    .ink { fill: #24292f; } .soft { fill: #57606a; }
    .own { fill: #2f8a45; } .other { fill: #9fb6cd; }
    @media (prefers-color-scheme: dark) {
      .ink { fill: #e6edf3; } .soft { fill: #9da7b1; }
      .own { fill: #5fc27a; } .other { fill: #4a627b; }
    }
"""


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    is_own: bool = False


def bar_chart(title: str, note: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars from zero, each with its value in words: nothing has to be read off an axis."""
    height = TOP + ROW * len(bars) + 16
    most = max((bar.value for bar in bars), default=0) or 1
    said = "; ".join(f"{bar.label}: {bar.shown}" for bar in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title description" font-family="system-ui, sans-serif" font-size="14">',
        f'  <title id="title">{escape(title)}</title>',
        f'  <desc id="description">{escape(said)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <text class="ink" x="20" y="24" font-weight="600">{escape(title)}</text>',
        f'  <text class="soft" x="20" y="44" font-size="12">{escape(note)}</text>',
    ]
    for place, bar in enumerate(bars):
        lines += _bar(bar, TOP + ROW * place, most)
    return "\n".join([*lines, "</svg>", ""])


def _bar(bar: Bar, top: int, most: float) -> list[str]:
    long = max(2.0, (WIDTH - LABELS - VALUES) * bar.value / most)
    kind, weight = ("own", ' font-weight="600"') if bar.is_own else ("other", "")
    middle = top + ROW // 2 + 3
    return [
        f'  <text class="ink" x="{LABELS - 12}" y="{middle}" text-anchor="end"{weight}>'
        f"{escape(bar.label)}</text>",
        f'  <rect class="{kind}" x="{LABELS}" y="{top + 3}" width="{long:.1f}" height="{ROW - 12}" rx="3"/>',
        f'  <text class="soft" x="{LABELS + long + 10:.1f}" y="{middle}">{escape(bar.shown)}</text>',
    ]
