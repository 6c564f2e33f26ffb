"""`ister lag --watch`: the same again and again, with rates, and when each reader will have caught up.

A rate is what happened between this look and the oldest one of the last half minute: a cursor is stored every
few seconds, and moves in steps. Who catches up needs what is left, by how much faster it is than the topic's
writers; who is not faster never does, as things are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ister.cli.lag import ReaderLags, show_seconds
from ister.errors import IsterError
from ister.io.clock import monotonic

if TYPE_CHECKING:
    from ister.cli.terminal import Paint, Terminal

WINDOW_SECONDS: Final = 30.0
Key = tuple[str, int, str]
"""What it is, the topic's uid, its own name."""


class Place(NamedTuple):
    """Where one of them is, at one look."""

    key: Key
    topic: str
    end: int
    behind: int
    seconds: float | None


class Speed(NamedTuple):
    """What lay between two looks, in records a second."""

    read: float
    written: float

    def catch_up_s(self, behind: int) -> float | None:
        """None: never, as things are."""
        if not behind:
            return 0.0
        gain = self.read - self.written
        return behind / gain if gain > 0 else None


class Shown(NamedTuple):
    place: Place
    speed: Speed | None
    """None at the first look."""

    def to_object(self, timestamp: str) -> dict[str, Any]:
        place, speed = self.place, self.speed
        kind, _, name = place.key
        return {
            "timestamp": timestamp,
            kind: name,
            "topic": place.topic,
            "end_offset": place.end,
            "records_behind": place.behind,
            "seconds_behind": place.seconds,
            "records_per_second": round(speed.read, 3) if speed else None,
            "written_per_second": round(speed.written, 3) if speed else None,
            "catches_up_s": _rounded(speed.catch_up_s(place.behind)) if speed else None,
        }

    def to_row(self, paint: Paint) -> list[str]:
        place, speed = self.place, self.speed
        kind, _, name = place.key
        return [
            paint("bold", name),
            kind,
            place.topic,
            f"{place.behind:,}",
            show_seconds(place.seconds),
            f"{speed.read:,.0f}/s" if speed else "?",
            f"{speed.written:,.0f}/s" if speed else "?",
            self.catches_up,
        ]

    def to_line(self) -> str:
        place, speed = self.place, self.speed
        kind, _, name = place.key
        rates = f"{speed.read:,.0f}/s read, {speed.written:,.0f}/s written" if speed else "first look"
        behind = f"{place.behind:,} records, {show_seconds(place.seconds)} behind"
        return f"{kind} {name} of {place.topic}: {behind}; {rates}; catches up: {self.catches_up}"

    @property
    def catches_up(self) -> str:
        if self.speed is None:
            return "?" if self.place.behind else "now"
        seconds = self.speed.catch_up_s(self.place.behind)
        if seconds is None:
            return "never at this rate"
        return f"in {show_seconds(seconds)}" if seconds else "now"


class Looks:
    """The looks of the last half minute."""

    def __init__(self) -> None:
        self._before: dict[Key, deque[tuple[float, Place]]] = {}

    def add(self, at: float, places: list[Place]) -> list[Shown]:
        there = {place.key for place in places}
        self._before = {key: looks for key, looks in self._before.items() if key in there}
        return [Shown(place, self._speed(at, place)) for place in places]

    def _speed(self, at: float, place: Place) -> Speed | None:
        looks = self._before.setdefault(place.key, deque())
        looks.append((at, place))
        while len(looks) > 2 and at - looks[1][0] >= WINDOW_SECONDS:
            looks.popleft()
        since, before = looks[0]
        if at <= since:
            return None
        written = (place.end - before.end) / (at - since)
        left = (before.behind - place.behind) / (at - since)
        return Speed(max(0.0, written + left), max(0.0, written))


def places_of(found: ReaderLags) -> list[Place]:
    """A topic that was deleted meanwhile has no lag, and is left out."""
    subscriptions = [
        Place(
            ("subscription", one.subscription.topic_uid, one.subscription.name),
            one.subscription.topic,
            one.lag.end,
            one.records or 0,
            one.lag.seconds,
        )
        for one in found.subscriptions
        if one.lag is not None
    ]
    readers = [
        Place(("reader", pin.topic_uid, pin.name), pin.topic, lag.end, lag.records, lag.seconds)
        for pin, lag, _ in found.readers
        if lag is not None
    ]
    return subscriptions + readers


def watch_lag(
    terminal: Terminal, look: Callable[[], ReaderLags], interval_s: float, count: int | None
) -> None:
    """Until Ctrl-C, or so many looks. A broker that does not answer is told of, and not the end."""
    looks, drawn = Looks(), 0
    for number in _numbers(count):
        if number:
            time.sleep(interval_s)
        try:
            found = look()
        except IsterError as error:
            if not error.retriable:
                raise
            terminal.tell(f"nobody answers: {error.message}")
            drawn = 0
            continue
        shown = looks.add(monotonic(), places_of(found))
        if terminal.wants_json:
            timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            terminal.write_objects([one.to_object(timestamp) for one in shown])
        elif terminal.is_terminal:
            drawn = _draw(terminal, shown, found, drawn)
        else:
            for one in shown:
                terminal.say(f"{time.strftime('%H:%M:%S')} {one.to_line()}")


def _numbers(count: int | None) -> Iterator[int]:
    number = 0
    while count is None or number < count:
        yield number
        number += 1


def _draw(terminal: Terminal, shown: list[Shown], found: ReaderLags, drawn: int) -> int:
    """Over what was drawn last; returns how many lines there are now."""
    from shutil import get_terminal_size

    from ister.cli.render import table

    headings = ["NAME", "KIND", "TOPIC", "BEHIND", "TIME BEHIND", "READ", "WRITTEN", "CATCHES UP"]
    rows = [one.to_row(terminal.paint) for one in shown]
    text = table(headings, "<<<>>>><", rows, terminal.paint) if rows else found.to_text(terminal.paint)
    stamp = terminal.paint("dim", time.strftime("%H:%M:%S"))
    lines = [stamp, *text.splitlines()]
    height = get_terminal_size().lines - 1
    if len(lines) > height:
        lines = [*lines[: height - 1], f"... {len(lines) - height + 1} more: name a topic, or use a pipe"]
    back = f"\x1b[{drawn}F\x1b[J" if drawn else ""
    terminal.say(back + "\n".join(lines))
    return len(lines)


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 3) if seconds is not None else None
