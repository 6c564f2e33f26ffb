"""What clients saw in a run: every send with its outcome, every read, and the final state of each line.

A history is recorded while the run goes on, by the code that plays the clients, and judged afterwards by
`ister.testing.checkers`. It knows nothing of brokers: whatever can append and read can be judged by it.

A line is one incarnation of a topic: name and uid, so that a topic deleted and made again is another line
(I3). Values must be unique within a run: a value is the identity of its record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """What the sender knows in the end."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    FAILED = "failed"
    """Refused for good, before it could take effect: it must never appear."""
    UNKNOWN = "unknown"
    """Nobody told: it may appear once, or not at all."""


@dataclass
class Send:
    """Records that were handed to a client as one unit."""

    number: int
    session: str
    """One producer: its sends take effect in their order."""
    line: str
    values: tuple[bytes, ...]
    atomic: bool
    """One frame: all of it appears, end to end, or nothing does."""
    idempotent: bool = True
    outcome: Outcome = Outcome.PENDING
    offsets: Sequence[int] = ()
    error: str = ""

    def acknowledged(self, offsets: Sequence[int]) -> None:
        self.outcome, self.offsets = Outcome.ACKNOWLEDGED, offsets

    def failed(self, error: BaseException) -> None:
        self.outcome, self.error = Outcome.FAILED, f"{type(error).__name__}: {error}"

    def unknown(self, error: BaseException) -> None:
        self.outcome, self.error = Outcome.UNKNOWN, f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class SeenFrame:
    """A frame as a reader got it."""

    base_offset: int
    values: tuple[bytes | None, ...]
    append_time_us: int
    producer_id: int
    sequence: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.values)

    def rows(self) -> Iterator[tuple[int, bytes | None]]:
        return enumerate(self.values, self.base_offset)


@dataclass
class Read:
    """One session of reading: from `start_offset`, everything that it was given, in order."""

    session: str
    line: str
    start_offset: int
    frames: list[SeenFrame] = field(default_factory=list)
    is_final: bool = False
    told_lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets of which it was told that they are lost, and behind which it went on."""

    @property
    def end_offset(self) -> int:
        return self.frames[-1].end_offset if self.frames else self.start_offset

    def rows(self) -> Iterator[tuple[int, bytes | None]]:
        """What was asked for: a first frame may begin before it."""
        return (row for frame in self.frames for row in frame.rows() if row[0] >= self.start_offset)


class Lost(NamedTuple):
    """Offsets that an operator gave up (F6): nobody gets their records, and no other record gets them."""

    start_offset: int
    end_offset: int
    was_sealed: bool = False
    """What producers had sent is known all the same: they go on behind the loss."""


class History:
    """Everything that the clients of one run did and saw."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.reads: list[Read] = []
        self.finals: dict[str, Read] = {}
        self.excused: dict[str, str] = {}
        self.lost: dict[str, list[Lost]] = {}
        """By line: what was given up, in the order of offsets."""
        self.violations: list[str] = []

    def sending(
        self,
        session: str,
        line: str,
        values: Sequence[bytes],
        *,
        atomic: bool = True,
        idempotent: bool = True,
    ) -> Send:
        send = Send(len(self.sends), session, line, tuple(values), atomic, idempotent)
        self.sends.append(send)
        return send

    def reading(self, session: str, line: str, start_offset: int) -> Read:
        read = Read(session, line, start_offset)
        self.reads.append(read)
        return read

    def final(self, line: str, start_offset: int) -> Read:
        """The read at the end of the run that every promise is measured by."""
        read = Read("final", line, start_offset, is_final=True)
        self.finals[line] = read
        self.reads.append(read)
        return read

    def excuse(self, line: str, why: str) -> None:
        """Judge this line no more: its topic was told to be weak, and power was lost (P6)."""
        self.excused.setdefault(line, why)

    def loss_at(self, line: str, offset: int) -> Lost | None:
        """The offsets that were given up, if this is one of them."""
        ranges = self.lost.get(line, ())
        return next((lost for lost in ranges if lost.start_offset <= offset < lost.end_offset), None)

    def violated(self, what: str) -> None:
        """Something that a watcher saw in passing and that must never be."""
        self.violations.append(what)

    @property
    def operation_count(self) -> int:
        return len(self.sends) + len(self.reads)

    def digest(self) -> str:
        """One line of text for all that happened: two runs of one seed have the same."""
        found = hashlib.blake2b(digest_size=16)
        for send in self.sends:
            found.update(
                repr((send.session, send.line, send.values, send.outcome.value, list(send.offsets))).encode()
            )
        for read in self.reads:
            found.update(repr((read.session, read.line, read.start_offset, read.frames)).encode())
        return found.hexdigest()
