"""How far a job is, on the standard error: one line that moves on a terminal, plain lines in a pipe.

The rate is that of the last seconds, so that the time left follows what is true now. A terminal is written to
twice a second, also while nothing ends, so that a person sees that it lives; a pipe every ten seconds.
Scripts that asked for JSON get nothing in a pipe.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ister.cli.terminal import Terminal
from ister.io.clock import monotonic

TERMINAL_SECONDS: Final = 0.5
PIPE_SECONDS: Final = 10.0
RATE_SECONDS: Final = 10.0
_BAR_CELLS: Final = 24
_PARTS: Final = " ▏▎▍▌▋▊▉"

_CLEAR_LINE: Final = "\r\x1b[2K"


class Stretch:
    """One stretch of work, and how fast it goes."""

    def __init__(self, what: str, records: int, size: int, now: float) -> None:
        self.what = what
        self.records_wanted = records
        self.bytes_wanted = size
        self.records = 0
        self.bytes = 0
        self.began = now
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def advance(self, records: int, size: int, now: float) -> None:
        self.records += records
        self.bytes += size
        self._marks.append((now, self.bytes))
        while len(self._marks) > 2 and self._marks[1][0] < now - RATE_SECONDS:
            self._marks.popleft()

    @property
    def part(self) -> float:
        """How much of it is done, 0 to 1."""
        if not self.bytes_wanted:
            return 1.0 if not self.records_wanted else min(1.0, self.records / self.records_wanted)
        return min(1.0, self.bytes / self.bytes_wanted)

    def rate(self, now: float) -> float:
        """Bytes a second."""
        (since, before), seconds = self._marks[0], now - self._marks[0][0]
        return (self.bytes - before) / seconds if seconds > 0 and now > since else 0.0

    def seconds_left(self, now: float) -> float | None:
        rate = self.rate(now)
        return (self.bytes_wanted - self.bytes) / rate if rate and self.bytes_wanted >= self.bytes else None


class ProgressLine:
    """A `Watch` for people."""

    def __init__(self, terminal: Terminal, now: Callable[[], float] = monotonic) -> None:
        self._terminal = terminal
        self._now = now
        self._stretch: Stretch | None = None
        self._moves = terminal.errors_to_terminal
        self._said = False
        self._next = 0.0
        # What a job tells comes from its thread, and the clock's turns from another.
        self._lock = threading.RLock()

    def begins(self, what: str, records: int, size: int) -> None:
        with self._lock:
            self.ends()
            now = self._now()
            self._stretch = Stretch(what, records, size, now)
            self._next = now if self._moves else now + PIPE_SECONDS
            self.show()

    def advances(self, records: int, size: int) -> None:
        with self._lock:
            if self._stretch is not None:
                self._stretch.advance(records, size, self._now())
                self.show()

    def ends(self) -> None:
        with self._lock:
            if self._said and self._moves:
                self._write(_CLEAR_LINE)
            self._said, self._stretch = False, None

    def tells(self, message: str) -> None:
        if self._terminal.wants_json:
            return
        with self._lock:
            if self._said and self._moves:
                self._write(_CLEAR_LINE)
            self._terminal.tell(self._terminal.paint_errors("yellow", message))
            if self._moves:
                self._next = 0.0
                self.show()

    def show(self) -> None:
        """Now, if it is time to."""
        with self._lock:
            stretch, now = self._stretch, self._now()
            if stretch is None or now < self._next or (not self._moves and self._terminal.wants_json):
                return
            self._next = now + (TERMINAL_SECONDS if self._moves else PIPE_SECONDS)
            self._said = True
            if self._moves:
                width = shutil.get_terminal_size().columns
                self._write(_CLEAR_LINE + moving_line(stretch, now, width, self._terminal))
            else:
                self._terminal.tell(plain_line(stretch, now))

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


@contextmanager
def show_progress(terminal: Terminal) -> Iterator[ProgressLine]:
    line, over = ProgressLine(terminal), threading.Event()

    def turn() -> None:
        while not over.wait(TERMINAL_SECONDS):
            line.show()

    clock = threading.Thread(target=turn, name="ister-progress", daemon=True)
    clock.start()
    try:
        yield line
    finally:
        over.set()
        clock.join()
        line.ends()


def moving_line(stretch: Stretch, now: float, width: int, terminal: Terminal) -> str:
    """`tier orders  ████▌   42%  1,200,000 records  240.0 MiB  251.3 MB/s  0:12 left`, as it fits."""
    paint = terminal.paint_errors
    if not stretch.records_wanted and not stretch.bytes_wanted:
        return paint("dim", f"{stretch.what} ... {show_seconds(now - stretch.began)}"[: max(1, width - 1)])
    pieces = [
        (stretch.what, "bold"),
        (bar(stretch.part), "cyan"),
        (f"{stretch.part:4.0%}", ""),
        *((text, "") for text in figures(stretch, now)),
    ]
    shown: list[str] = []
    room = width - 1
    for text, style in pieces:
        room -= len(text) + 2
        if room < 0 and shown:
            break
        shown.append(paint(style, text) if style else text)
    return "  ".join(shown)


def plain_line(stretch: Stretch, now: float) -> str:
    if not stretch.records_wanted and not stretch.bytes_wanted:
        return f"{stretch.what} ..."
    return ", ".join([f"{stretch.what}: {stretch.part:.0%}", *figures(stretch, now)])


def figures(stretch: Stretch, now: float) -> list[str]:
    from ister.cli.render import show_bytes

    if not stretch.records and not stretch.bytes:
        return [show_seconds(now - stretch.began)]  # the first tasks have not ended: it lives, and no more
    said = [f"{stretch.records:,} records", show_bytes(stretch.bytes), f"{stretch.rate(now) / 1e6:.1f} MB/s"]
    left = stretch.seconds_left(now)
    return said if left is None else [*said, f"{show_seconds(left)} left"]


def bar(part: float) -> str:
    eighths = int(part * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    cells = "█" * full + (_PARTS[rest] if rest else "")
    return cells.ljust(_BAR_CELLS, "·")


def show_seconds(seconds: float) -> str:
    """`0:07`, `3:20`, `1:02:03`."""
    whole = int(seconds + 0.5)
    minutes, hours = whole // 60, whole // 3600
    return f"{hours}:{minutes % 60:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
