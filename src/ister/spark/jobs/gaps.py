"""What a job does where offsets are not there: fail with what it can be told, or note them and go on."""

from __future__ import annotations

from typing import NamedTuple

from ister import sync
from ister.errors import CorruptSegment, IsterError, OffsetOutOfRange, RecordsLost
from ister.spark.ranges import Loss, OffsetRange


class Missing(NamedTuple):
    """Offsets from `start` to before `end` that are not there."""

    start: int
    end: int
    why: str
    kind: type[IsterError]


class AllThere(Loss):
    """Whatever is missing is an error that names the offsets."""

    hint = "--skip-missing goes on behind them, and notes the gap."

    def __new__(cls) -> AllThere:
        return super().__new__(cls, True)

    def report(
        self,
        topic: str,
        start: int,
        end: int | None,
        why: str,
        kind: type[IsterError] = OffsetOutOfRange,
    ) -> None:
        which = f"offsets from {start} on" if end is None else f"offsets {start} to {end - 1}"
        raise kind(
            f"{which} of {topic} are not there: {why}",
            hint=self.hint,
            offsets=(start, end) if end is not None else None,
        )


class Noted(Loss):
    """Keeps what it is told. The topic itself must be there, and be the same one."""

    found: list[Missing]

    def __new__(cls) -> Noted:
        made = super().__new__(cls, False)
        made.found = []
        return made

    def report(
        self,
        topic: str,
        start: int,
        end: int | None,
        why: str,
        kind: type[IsterError] = OffsetOutOfRange,
    ) -> None:
        if end is None or kind not in (OffsetOutOfRange, RecordsLost, CorruptSegment):
            AllThere().report(topic, start, end, why, kind)
        else:
            self.found.append(Missing(start, end, why, kind))

    def gaps(self, bootstrap: str, wanted: OffsetRange) -> tuple[tuple[int, int], ...]:
        """What a table may do without for good: trimmed, given up, damaged. Offsets that are merely not there
        yet, or not any more behind an end that fell back, will be other records'."""
        beyond = [each for each in self.found if each.kind is OffsetOutOfRange]
        if beyond:
            with sync.connect(bootstrap) as log:
                begins = log.describe_topic(wanted.topic).start_offset
            for each in beyond:
                if each.end > begins:
                    AllThere().report(wanted.topic, each.start, each.end, each.why)
        return tuple((each.start, each.end) for each in self.found)
