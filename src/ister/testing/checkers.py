"""What must hold of a history, whatever went wrong while it was made.

Each checker is a function over one `History`; it returns nothing and raises `Violation` with the offsets
and values that prove it. `check_history` runs them all. They judge only what clients saw, so the same ones
serve a simulation, a cluster under chaos, and a user's own tests. What an operator gave up (`History.lost`)
is readable to nobody, and its offsets are nobody else's: who was told of it reads on right behind it.

| checker | promise |
|---|---|
| acknowledged_is_readable | what was acknowledged is read in the end, at its offset |
| one_offset_one_value | an offset has one value for ever, whoever reads it and when |
| no_duplicates | a record sent with idempotence is at one offset at most |
| reads_are_gapless | a reader gets consecutive offsets, and so does the final read |
| sends_are_in_order | a producer's acknowledged records lie in the order in which it sent them |
| failed_never_appears | what was refused for good is nowhere |
| batches_are_whole | a frame is there from its first record to its last, or not at all |
| what_was_read_stays | a record that any reader got is in the final line, unless it was trimmed |
| append_time_never_falls | along a line |
| sequences_are_in_order | of one producer, along a line: each once, none skipped (A5) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ister.testing.history import History, Outcome, Read, Send


class Violation(AssertionError):
    """A promise was broken. `checker` names which."""

    def __init__(self, checker: str, message: str) -> None:
        super().__init__(f"{checker}: {message}")
        self.checker = checker


Checker = Callable[[History], None]


def check_history(history: History) -> None:
    """All checkers, what watchers saw in passing first."""
    if history.violations:
        more = f" (and {len(history.violations) - 1} more)" if len(history.violations) > 1 else ""
        raise Violation("invariant", history.violations[0] + more)
    for checker in CHECKERS:
        checker(history)


def acknowledged_is_readable(history: History) -> None:
    found = {line: dict(final.rows()) for line, final in history.finals.items()}
    for send in _sends(history, Outcome.ACKNOWLEDGED):
        final = history.finals.get(send.line)
        if final is None:
            continue  # the line was deleted
        values = found[send.line]
        for offset, value in zip(send.offsets, send.values, strict=True):
            if offset < final.start_offset or history.loss_at(send.line, offset):
                continue  # trimmed by retention, or given up
            if offset >= final.end_offset:
                raise Violation(
                    "acknowledged_is_readable",
                    f"{send.line} ends at {final.end_offset}, but {_shown(value)} of {send.session} was "
                    f"acknowledged at offset {offset}",
                )
            if values.get(offset) != value:
                raise Violation(
                    "acknowledged_is_readable",
                    f"{send.line} has {_shown(values.get(offset))} at offset {offset}, where "
                    f"{_shown(value)} of {send.session} was acknowledged",
                )


def one_offset_one_value(history: History) -> None:
    for line, rows in _rows_by_line(history).items():
        seen: dict[int, bytes | None] = {}
        for offset, value, where in rows:
            if seen.setdefault(offset, value) != value:
                raise Violation(
                    "one_offset_one_value",
                    f"offset {offset} of {line} was {_shown(seen[offset])}, is {_shown(value)} for {where}",
                )


def no_duplicates(history: History) -> None:
    twice_allowed = {
        value for send in history.sends if not send.idempotent for value in send.values
    }  # only asked for membership
    for line, rows in _rows_by_line(history).items():
        places: dict[bytes, int] = {}
        for offset, value, where in rows:
            if value is None or value in twice_allowed or history.loss_at(line, offset):
                continue  # who had sent what was given up may send it again
            if places.setdefault(value, offset) != offset:
                raise Violation(
                    "no_duplicates",
                    f"{_shown(value)} is at offset {places[value]} of {line}, again at {offset} for {where}",
                )


def reads_are_gapless(history: History) -> None:
    for read in _reads(history):
        expected = read.start_offset
        for place, frame in enumerate(read.frames):
            for start, end in read.told_lost:
                expected = end if start <= expected < end else expected
            first = place == 0 and frame.base_offset <= expected < frame.end_offset
            if frame.base_offset != expected and not first:
                raise Violation(
                    "reads_are_gapless",
                    f"{read.session} got offset {frame.base_offset} of {read.line} after {expected - 1}",
                )
            expected = frame.end_offset


def sends_are_in_order(history: History) -> None:
    last: dict[tuple[str, str], tuple[int, bytes]] = {}
    for send in _sends(history, Outcome.ACKNOWLEDGED):
        if not send.idempotent:
            continue
        for offset, value in zip(send.offsets, send.values, strict=True):
            before = last.get((send.session, send.line))
            if before is not None and offset <= before[0]:
                raise Violation(
                    "sends_are_in_order",
                    f"{send.session} sent {_shown(before[1])} before {_shown(value)}, but they lie at "
                    f"{before[0]} and {offset} of {send.line}",
                )
            last[send.session, send.line] = (offset, value)


def failed_never_appears(history: History) -> None:
    failed = {value: send for send in _sends(history, Outcome.FAILED) for value in send.values}
    for line, rows in _rows_by_line(history).items():
        for offset, value, where in rows:
            if value is not None and value in failed:
                raise Violation(
                    "failed_never_appears",
                    f"{_shown(value)} is at offset {offset} of {line} for {where}; its sender was told "
                    f"{failed[value].error}",
                )


def batches_are_whole(history: History) -> None:
    places: dict[str, dict[bytes, int]] = {
        line: {value: offset for offset, value in final.rows() if value is not None}
        for line, final in history.finals.items()
    }
    for send in history.sends:
        if not send.atomic or send.line in history.excused:
            continue
        found = [places.get(send.line, {}).get(value) for value in send.values]
        there = [offset for offset in found if offset is not None]
        if there and there != list(range(there[0], there[0] + len(send.values))):
            raise Violation(
                "batches_are_whole",
                f"the {len(send.values)} records that {send.session} sent to {send.line} are at {found}",
            )


def what_was_read_stays(history: History) -> None:
    for read in _reads(history):
        final = history.finals.get(read.line)
        if final is not None and read.end_offset > final.end_offset:
            raise Violation(
                "what_was_read_stays",
                f"{read.session} read up to offset {read.end_offset - 1} of {read.line}, which ends at "
                f"{final.end_offset} now",
            )


def append_time_never_falls(history: History) -> None:
    for read in _reads(history):
        last = 0
        for frame in read.frames:
            if frame.append_time_us < last:
                raise Violation(
                    "append_time_never_falls",
                    f"offset {frame.base_offset} of {read.line} was appended at {frame.append_time_us}, "
                    f"before the one in front of it ({last})",
                )
            last = frame.append_time_us


def sequences_are_in_order(history: History) -> None:
    for line, final in history.finals.items():
        if line in history.excused:
            continue
        following: dict[int, int] = {}
        gone = [lost.start_offset for lost in history.lost.get(line, ()) if lost.was_sealed]
        for frame in final.frames:
            if not frame.producer_id:
                continue
            expected = following.get(frame.producer_id, frame.sequence)
            whole_line = final.start_offset == 0 and frame.producer_id not in following
            if gone and frame.base_offset > gone[0] and frame.sequence > following.get(frame.producer_id, -1):
                expected, whole_line = frame.sequence, False  # some of its frames may be among those
            if frame.sequence != (0 if whole_line else expected):
                raise Violation(
                    "sequences_are_in_order",
                    f"producer {frame.producer_id:x} has sequence {frame.sequence} at offset "
                    f"{frame.base_offset} of {line}, where {0 if whole_line else expected} must be",
                )
            following[frame.producer_id] = frame.sequence + len(frame.values)


CHECKERS: tuple[Checker, ...] = (
    acknowledged_is_readable,
    one_offset_one_value,
    no_duplicates,
    reads_are_gapless,
    sends_are_in_order,
    failed_never_appears,
    batches_are_whole,
    what_was_read_stays,
    append_time_never_falls,
    sequences_are_in_order,
)


def _sends(history: History, outcome: Outcome) -> Iterator[Send]:
    return (send for send in history.sends if send.outcome is outcome and send.line not in history.excused)


def _reads(history: History) -> Iterator[Read]:
    return (read for read in history.reads if read.line not in history.excused)


def _rows_by_line(history: History) -> dict[str, list[tuple[int, bytes | None, str]]]:
    """Every (offset, value) that anybody was told of, with who was."""
    found: dict[str, list[tuple[int, bytes | None, str]]] = {}
    for send in _sends(history, Outcome.ACKNOWLEDGED):
        found.setdefault(send.line, []).extend(
            (offset, value, send.session) for offset, value in zip(send.offsets, send.values, strict=True)
        )
    for read in _reads(history):
        found.setdefault(read.line, []).extend((offset, value, read.session) for offset, value in read.rows())
    return found


def _shown(value: bytes | None) -> str:
    return repr(value if value is None or len(value) <= 40 else value[:37] + b"...")
