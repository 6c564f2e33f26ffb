"""What a log remembers of its producers, so that a retry is recognised (A5).

For each producer the last frames it appended: sequence, count, offset, append time. The table equals the
fold of the log: replaying the frames of a segment over the table carried in by the seal before it gives
exactly the table that `rows` gives. It therefore changes in two ways only: `record`, once per appended
frame, and `expired`, at seals.

In memory each producer has twice as many frames as it is remembered by, and at most half of them may be
uncommitted: if those are refused by the disk, the table without them is still exact.

Who is dropped at a seal is forgotten, and its first frame, sent again, looks like one that was never sent.
What tells them apart is when it was sent for the first time. So the metadata keeps, with each open segment,
the uid that the last seal which dropped anybody has opened (`forgot_at`; it holds for as long as the segment
is open, and need not be in its checkpoints), and a first frame says which metadata its sender knew of before
it was sent at all. If that is older, the log cannot know.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from ister.errors import DuplicateSequence, OutOfSequence, Overloaded, UnknownProducer

FRAMES_REMEMBERED = 8
PRODUCERS_CARRIED = 1000


class Appended(NamedTuple):
    """One frame of one producer, as it stands in the log."""

    sequence: int
    count: int  # type: ignore[assignment]
    base_offset: int
    append_time_us: int


ProducerRow = tuple[int, list[tuple[int, int, int, int]]]
"""A producer and its frames, as they travel in seals and checkpoints."""


class ProducerTable:
    def __init__(self, rows: list[ProducerRow] | None = None) -> None:
        self._frames: dict[int, deque[Appended]] = {
            producer: deque((Appended._make(frame) for frame in frames), 2 * FRAMES_REMEMBERED)
            for producer, frames in rows or []
        }

        self.lost_end = 0
        """Offsets before this were lost at some time (F6): what a producer that was not heard of since had
        in them is not known, and more of it may have been acknowledged than is known here."""

        self.forgot_at = 0
        """The metadata index of the last seal that dropped a producer; 0 if none has."""

    def __len__(self) -> int:
        return len(self._frames)

    def check(
        self, producer: int, sequence: int, count: int, committed_end: int, told_index: int = 0
    ) -> Appended | None:
        """None if the frame is the producer's next; the original if it is an exact repeat; else raises.

        A first frame was never sent before its sender was told of `told_index`."""
        frames = self._frames.get(producer)
        if frames is None:
            if sequence == 0 and told_index >= self.forgot_at:
                return None
            raise self._unknown(producer, sequence, told_index)
        last = frames[-1]
        expected = last.sequence + last.count
        if sequence == expected:
            if len(frames) >= FRAMES_REMEMBERED and frames[-FRAMES_REMEMBERED].base_offset >= committed_end:
                raise Overloaded(
                    f"producer {producer:x} has {FRAMES_REMEMBERED} batches that are not committed yet",
                    hint=f"Keep at most {FRAMES_REMEMBERED} batches in flight (max_in_flight).",
                )
            return None
        if sequence > expected and last.base_offset < self.lost_end:
            raise UnknownProducer(
                f"producer {producer:x} sent sequence {sequence}, {expected} is next as far as is known: "
                f"what came between may be among the records lost before offset {self.lost_end}",
                hint="Some of what it sent may be lost. Open a new producer, and send what is missing again.",
            )
        if sequence > expected:
            raise OutOfSequence(f"producer {producer:x} sent sequence {sequence}, {expected} is next")
        for frame in reversed(frames):
            if frame.sequence == sequence and frame.count == count:
                return frame
        raise DuplicateSequence(
            f"producer {producer:x} sent {count} records from sequence {sequence} again, "
            f"which is no frame among its last {len(frames)}; {expected} is next"
        )

    def _unknown(self, producer: int, sequence: int, told_index: int) -> UnknownProducer:
        if sequence:
            return UnknownProducer(
                f"producer {producer:x} starts at sequence {sequence}, and is not known here"
            )
        return UnknownProducer(
            f"producer {producer:x} may have sent its first batch from metadata index {told_index} on, and "
            f"producers were forgotten here at {self.forgot_at}: it may be one of them",
            hint="Was it never sent before? Then send it with the index of this answer as told_index; the "
            "client does that by itself.",
            index=self.forgot_at,
        )

    def record(self, producer: int, sequence: int, count: int, base_offset: int, append_time_us: int) -> None:
        frames = self._frames.get(producer)
        if frames is None:
            frames = self._frames[producer] = deque(maxlen=2 * FRAMES_REMEMBERED)
        frames.append(Appended(sequence, count, base_offset, append_time_us))

    def rows(self) -> list[ProducerRow]:
        """All of it, in the order of producers' ids: the same table always gives the same rows."""
        return [(producer, _row(self._frames[producer])) for producer in sorted(self._frames)]

    def expired(self, before_us: int) -> ProducerTable:
        """The table to carry in a seal: without producers last heard of before then, at most 1,000."""
        kept = [
            (frames[-1].append_time_us, producer)
            for producer, frames in self._frames.items()
            if frames[-1].append_time_us >= before_us
        ]
        kept.sort()
        survivors = {producer for _, producer in kept[-PRODUCERS_CARRIED:]}
        return ProducerTable([row for row in self.rows() if row[0] in survivors])

    def without_records_past(self, end_offset: int) -> ProducerTable:
        """The table after the uncommitted frames past `end_offset` were refused: the fold of what is left."""
        kept = ProducerTable()
        for producer, frames in self._frames.items():
            good = [frame for frame in frames if frame.base_offset + frame.count <= end_offset]
            if good:
                kept._frames[producer] = deque(good, 2 * FRAMES_REMEMBERED)
        return kept


def _row(frames: deque[Appended]) -> list[tuple[int, int, int, int]]:
    last = list(frames)[-FRAMES_REMEMBERED:]
    return [(frame.sequence, frame.count, frame.base_offset, frame.append_time_us) for frame in last]
