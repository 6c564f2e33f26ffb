"""The audit's task over the log: every frame of some shares, from brokers as any reader has them, or of an
object of the history (`auditing.objects`).

Frames come verified: header and body checksums hold. Nothing is decoded. A frame that lies across the end of
a share belongs to the one that it begins in; so each is counted once, and the driver joins the shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
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
from ister.spark.jobs.auditing.objects import ObjectChecks, is_object
from ister.spark.jobs.snapshot import Share
from ister.spark.ranges import Loss, OffsetRange

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
    found = []
    with ExitStack() as stack:
        brokers: BrokerFrames | None = None
        objects: ObjectChecks | None = None
        for share in shares:
            own = OwnFrames(share, bucket_us)
            if is_object(share.range):
                if objects is None:
                    objects = stack.enter_context(ObjectChecks(bootstrap))
                objects.check(own)
            else:
                if brokers is None:
                    brokers = stack.enter_context(BrokerFrames(bootstrap))
                own.take_from(brokers, share.range)
            found.append(own.finish())
    return found


class OwnFrames:
    """Follows the frames that begin in a share. Called for each frame: no more than sums and comparisons."""

    def __init__(self, share: Share, bucket_us: int, checked: Checked | None = None) -> None:
        self.share = share
        self.checked = checked or Checked()
        self._bucket_us = bucket_us
        self._rates: dict[int, list[int]] = defaultdict(lambda: [0, 0])

    def take_from(self, brokers: BrokerFrames, wanted: OffsetRange) -> None:
        """The frames of a range, as any reader of brokers has them."""
        checked, share = self.checked, self.share
        try:
            for frame in brokers.frames(wanted, _Reported(checked, share.segment)):
                self.take(frame.header)
        except CorruptFrame as error:
            # Good on the broker's disk, as far as that looked, and damaged on the way or in its memory.
            at = max(checked.next_offset, wanted.start)
            checked.missing.append((at, wanted.end))
            self.find(CHECKSUM, at, wanted.end, error.message)

    def take(self, header: FrameHeader) -> None:
        checked, base, time = self.checked, header.base_offset, header.append_time_us
        end = base + header.count
        if base < self.share.range.start:
            return  # it begins in another share
        if checked.first_offset < 0:
            checked.first_offset, checked.first_time_us = base, time
        else:
            if base != checked.next_offset and not is_told(checked.next_offset, base, checked.missing):
                self.find(CONTINUITY, checked.next_offset, base, f"the next frame begins at {base}")
            if time < checked.last_time_us:
                self.find(TIME, base, end, f"appended at {time} us, behind one of {checked.last_time_us} us")
        if header.segment & _UID != self.share.segment_uid:
            self.find(IDENTITY, base, end, f"the frame is of the segment with uid {header.segment & _UID}")
        checked.records += header.count
        checked.bytes += header.size
        checked.next_offset, checked.last_time_us = end, time
        rate = self._rates[time // self._bucket_us]
        rate[0] += header.count
        rate[1] += header.size

    def finish(self) -> Checked:
        self.checked.rates = {bucket: (records, size) for bucket, (records, size) in self._rates.items()}
        return self.checked

    def find(self, check: str, start: int, end: int, why: str) -> None:
        low, high = min(start, end), max(start, end)
        self.checked.findings.append(
            Finding(check, low, high, f"{shown(low, high)}: {why}", self.share.segment)
        )
