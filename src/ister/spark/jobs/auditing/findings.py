"""What an audit found: each thing that does not hold, with the exact offsets that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CHECKSUM: Final = "checksum"
CONTINUITY: Final = "continuity"
COUNT: Final = "count"
END: Final = "end"
TIME: Final = "time"
IDENTITY: Final = "identity"
OBJECT: Final = "object"
REPLICA: Final = "replica"
TABLE: Final = "table"

CHECKS: Final = {
    CHECKSUM: "every frame is there, and its checksums hold",
    CONTINUITY: "each frame begins where the one before it ended",
    COUNT: "records and bytes are as many as the metadata says",
    END: "the last frame ends where the segment does",
    TIME: "append times never fall, and are those of the metadata",
    IDENTITY: "each frame bears the segment's own uid",
    OBJECT: "each object of the history is what its descriptor says, to its last byte",
    REPLICA: "all replicas have the same bytes, and the object of the history too",
    TABLE: "the table has each record once, with the same contents",
}


class Finding(NamedTuple):
    """Something that does not hold, of offsets from `start` to before `end`."""

    check: str
    start: int
    end: int
    what: str
    segment: int = 0
    node: int = 0

    def to_object(self) -> dict[str, Any]:
        return self._asdict()


class Note(NamedTuple):
    """What a person should know of these offsets, and that is no fault: given up, trimmed meanwhile."""

    start: int
    end: int
    what: str


@dataclass
class Checked:
    """What the task for one share saw."""

    records: int = 0
    bytes: int = 0
    first_offset: int = -1
    """Where the first frame begins that is the share's own; -1 if none does."""
    next_offset: int = -1
    """Where the last one of them ends."""
    first_time_us: int = 0
    last_time_us: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """What nobody could read, and what is told by a finding or a note of its own."""
    rates: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Records and bytes by time of append, for the plot."""


def runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending offsets as ranges, the end behind the last one: [3, 4, 5, 9] is 3 to 6, 9 to 10."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def shown(start: int, end: int) -> str:
    """`offset 7`, `offsets 7 to 12`."""
    return f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"


def is_told(start: int, end: int, told: Sequence[tuple[int, int]]) -> bool:
    """Whether a finding or note of its own says of all of these offsets that they are missing."""
    if start > end:
        return False  # they overlap, and nothing is missing
    for low, high in sorted(told):
        if low <= start < high:
            start = high
    return start >= end
