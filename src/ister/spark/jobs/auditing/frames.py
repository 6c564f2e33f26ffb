"""The audit's task over the log: every frame of some shares, read as any reader reads them.

Frames come verified: header and body checksums hold. Nothing is decoded. A frame that lies across the end of
a share belongs to the one that it begins in; so each is counted once, and the driver joins the shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ister.errors import CorruptFrame, CorruptSegment, IsterError, OffsetOutOfRange, RecordsLost, UnknownTopic
from ister.frame import FrameHeader
from ister.spark.frames import BrokerFrames
from ister.spark.jobs.auditing.findings import (
    CHECKSUM,
    CONTINUITY,
    IDENTITY,
    TIME,
    Checked,
    Finding,
    Note,
    is_told,
    shown,
)
from ister.spark.jobs.snapshot import Share
from ister.spark.ranges import Loss

_UID: Final = (1 << 40) - 1
"""The part of a frame's segment field that is the segment's uid."""


class _Reported(Loss):
    """What the reader of a share could not have."""

    checked: Checked
    segment: int

    def __new__(cls, checked: Checked, segment: int) -> _Reported:
        made = super().__new__(cls, False)
        made.checked, made.segment = checked, segment
        return made

    def report(
        self,
        topic: str,
        start: int,
        end: int | None,
        why: str,
        kind: type[IsterError] = OffsetOutOfRange,
    ) -> None:
        if kind is UnknownTopic or end is None:
            raise UnknownTopic(f"{topic}: {why}", hint="Audit it again: it is another topic now, or none.")
        self.checked.missing.append((start, end))
        if kind is RecordsLost:
            self.checked.notes.append(Note(start, end, f"{shown(start, end)}: {why}"))
        else:
            check = CHECKSUM if kind is CorruptSegment else CONTINUITY
            what = f"{shown(start, end)}: {why}"
            self.checked.findings.append(Finding(check, start, end, what, self.segment))


def check_shares(bootstrap: str, bucket_us: int, shares: Sequence[Share]) -> list[Checked]:
    with BrokerFrames(bootstrap) as store:
        return [_check(store, share, bucket_us) for share in shares]


def _check(store: BrokerFrames, share: Share, bucket_us: int) -> Checked:
    checked = Checked()
    own = _OwnFrames(checked, share, bucket_us)
    try:
        for frame in store.frames(share.range, _Reported(checked, share.segment)):
            header = frame.header
            if header.base_offset >= share.range.start:
                own.take(header)
    except CorruptFrame as error:
        # Good on the broker's disk, as far as that looked, and damaged on the way or in its memory.
        at = max(checked.next_offset, share.range.start)
        checked.missing.append((at, share.range.end))
        checked.findings.append(
            Finding(
                CHECKSUM, at, share.range.end, f"{shown(at, share.range.end)}: {error.message}", share.segment
            )
        )
    own.finish()
    return checked


class _OwnFrames:
    """Follows the frames that begin in a share. Called for each frame: no more than sums and comparisons."""

    def __init__(self, checked: Checked, share: Share, bucket_us: int) -> None:
        self._checked = checked
        self._share = share
        self._bucket_us = bucket_us
        self._rates: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    def take(self, header: FrameHeader) -> None:
        checked, base, time = self._checked, header.base_offset, header.append_time_us
        end = base + header.count
        if checked.first_offset < 0:
            checked.first_offset, checked.first_time_us = base, time
        else:
            if base != checked.next_offset and not is_told(checked.next_offset, base, checked.missing):
                self._find(CONTINUITY, checked.next_offset, base, f"the next frame begins at {base}")
            if time < checked.last_time_us:
                self._find(TIME, base, end, f"appended at {time} us, behind one of {checked.last_time_us} us")
        if header.segment & _UID != self._share.segment_uid:
            self._find(IDENTITY, base, end, f"the frame is of the segment with uid {header.segment & _UID}")
        checked.records += header.count
        checked.bytes += header.size
        checked.next_offset, checked.last_time_us = end, time
        rate = self._rates[time // self._bucket_us]
        rate[0] += header.count
        rate[1] += header.size

    def finish(self) -> None:
        self._checked.rates = {bucket: (records, size) for bucket, (records, size) in self._rates.items()}

    def _find(self, check: str, start: int, end: int, why: str) -> None:
        low, high = min(start, end), max(start, end)
        self._checked.findings.append(
            Finding(check, low, high, f"{shown(low, high)}: {why}", self._share.segment)
        )
