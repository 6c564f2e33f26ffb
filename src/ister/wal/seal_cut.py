"""Cutting a log at its segment's sealed end (F3): nothing past it was acknowledged, or comes back.

Fault model: as of `recovery`; the process or the power may be lost at any step. Then the log is as it was or
cut, and doing it again gives the same.

What holds: a log that was found complete is durable up to the sealed end, and has nothing past it. Nothing is
cut below what this replica knows to be committed: then the seal is wrong, and an error says so before harm is
done.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ister.errors import InvariantBroken
from ister.io.disk import Disk
from ister.wal.opening import (
    OpenedLog,
    SegmentIdentity,
    has_frames_behind,
    load,
    make_durable,
    scan,
)
from ister.wal.producers import ProducerRow, ProducerTable
from ister.wal.side_file import SparseIndex


@dataclass(frozen=True)
class SealCut:
    """What a log is like at its segment's seal."""

    end_offset: int
    end_position: int
    is_complete: bool
    """It reaches the sealed end. One that does not was left as it is, for a copy to bring it there."""
    cut_records: int = 0
    cut_bytes: int = 0
    has_frames_behind: bool = False
    """Of one that does not: it ends at damage, and intact frames lie behind that."""


def cut_at_seal(
    disk: Disk,
    identity: SegmentIdentity,
    sealed_end: int,
    *,
    known_commit: int,
    carried: list[ProducerRow] | None = None,
    last_append_time_us: int = 0,
) -> SealCut:
    """Cut at `sealed_end`, durably, but never below `known_commit`. Blocking; nobody else uses the log.

    Damage past the last checkpoint is an end that is short; below it, `CorruptSegment`. `carried` and
    `last_append_time_us` are as of `recover`; where they are not known any more, a log without a checkpoint
    gets none, and is scanned each time it is opened.
    """
    check_end(disk, identity, sealed_end, known_commit)
    with ExitStack() as opened:
        try:
            file = disk.open(identity.path + ".log")
        except FileNotFoundError:
            return SealCut(identity.base_offset, 0, is_complete=sealed_end == identity.base_offset)
        opened.callback(file.close)
        side = disk.open(identity.path + ".side", create=True)
        opened.callback(side.close)
        state, proven = load(file, side, identity, carried or [], last_append_time_us, sealed_end)
        checkpointed = state.position
        scan(state, identity, sealed_end, proven, is_follower=True)
        if state.end_offset < sealed_end:
            behind = state.cut_bytes > 0 and has_frames_behind(state, identity)
            return SealCut(state.end_offset, state.position, is_complete=False, has_frames_behind=behind)
        cut_records = _records_past(state, identity)
        make_durable(disk, identity, state, checkpointed, gives_back_space=True)
        if state.position > checkpointed and (checkpointed or carried is not None):
            state.checkpoint()
        return SealCut(state.end_offset, state.position, True, cut_records, state.cut_bytes)


def _records_past(state: OpenedLog, identity: SegmentIdentity) -> int:
    """How many records whole frames have past the end that is kept."""
    rest = OpenedLog(
        state.file, state.side, 0, SparseIndex(), ProducerTable(), state.position, state.end_offset, 0, ""
    )
    scan(rest, identity, None, 0, is_follower=True)
    return rest.end_offset - state.end_offset


def check_end(disk: Disk, identity: SegmentIdentity, sealed_end: int, known_commit: int) -> None:
    """What is known to be committed lies before the end of its segment, or nothing is cut or removed (F3)."""
    if sealed_end < known_commit:
        raise InvariantBroken(
            f"segment {identity.key} was sealed at {sealed_end}, but offsets below {known_commit} are known "
            f"to be committed: nothing was cut from {disk.location}/{identity.path}.log",
            hint="This is a defect in Ister. Keep this data directory, and report it with the broker's log.",
        )
