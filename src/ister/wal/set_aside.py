"""The tail of a log whose segment was given up from an offset on (F6): kept aside, served by nobody.

    <segment path>.lost-<first offset>-<end offset>.log    the frames, byte for byte

A node that comes back may have records that an operator has given up. They are nobody's any more: producers
were told that they are unknown, readers that they are lost. But they may be worth a lot to a person, so they
are not cut.

Fault model: as of `recovery`; the process or the power may be lost at any step. Then the tail is where it
was, or aside, or both; doing it again gives the same. It leaves the log only when it is durable under its
other name. Damage in it costs nothing of it: it is set aside as it is, with reserved zeros behind it.
"""

from __future__ import annotations

import contextlib
import errno
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ister.errors import CorruptSegment
from ister.io.disk import Disk, File, parent
from ister.wal.opening import OpenedLog, SegmentIdentity, load, scan
from ister.wal.producers import ProducerTable
from ister.wal.side_file import SparseIndex

_CHUNK_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"\.lost-(\d+)-(\d+)\.log")


@dataclass(frozen=True)
class TailAside:
    """Records that are kept and not served."""

    from_offset: int
    end_offset: int
    """As far as they can be read; there may be damaged bytes behind that."""
    file: str
    is_new: bool = False
    """It was set aside just now."""


def set_aside(disk: Disk, identity: SegmentIdentity, lost_from: int) -> list[TailAside]:
    """Put what the log has from `lost_from` on under another name; returns all that lies aside. Blocking.

    Where nothing is to be kept, or what is to be kept is damaged, the log goes as a whole. Else the log
    stays as it is, for whoever cuts it at `lost_from`.
    """
    made: str | None = None
    if disk.exists(identity.path + ".log"):
        with ExitStack() as opened:
            made = _set_aside(disk, identity, lost_from, opened)
    return [replace(tail, is_new=tail.file == made) for tail in find_aside(disk, identity.path)]


def find_aside(disk: Disk, path: str) -> list[TailAside]:
    """What was set aside of a segment, by its files' names. Blocking."""
    directory, start = parent(path), path.rpartition("/")[2]
    found: list[TailAside] = []
    for name in disk.list(directory):
        match = _NAME.fullmatch(name.removeprefix(start)) if name.startswith(start) else None
        if match is not None:
            found.append(TailAside(int(match[1]), int(match[2]), f"{directory}/{name}"))
    return found


def _set_aside(disk: Disk, identity: SegmentIdentity, lost_from: int, opened: ExitStack) -> str | None:
    """The file that was made; None if there was nothing to keep."""
    file = disk.open(identity.path + ".log")
    opened.callback(file.close)
    side = disk.open(identity.path + ".side", create=True)
    opened.callback(side.close)
    try:
        kept, proven = load(file, side, identity, [], 0, lost_from)
        scan(kept, identity, lost_from, proven, is_follower=True)
        if not kept.cut_bytes:
            return None
    except CorruptSegment:
        kept = _nothing(file, side, identity.base_offset)
    target = f"{identity.path}.lost-{kept.end_offset}-{_end_of_frames(kept, identity)}.log"
    if kept.position == 0:
        _rename(disk, identity, target, has_checkpoints=side.size() > 0)
    else:
        # To the end of the file: a frame may end in zeros, which do not look as if they were in use.
        _copy(disk, file, kept.position, file.size() - kept.position, target)
    return target


def _nothing(file: File, side: File, offset: int, position: int = 0) -> OpenedLog:
    return OpenedLog(file, side, 0, SparseIndex(), ProducerTable(), position, offset, 0, "")


def _end_of_frames(kept: OpenedLog, identity: SegmentIdentity) -> int:
    """Where the frames end that follow what is kept; damage is an end here."""
    rest = _nothing(kept.file, kept.side, kept.end_offset, kept.position)
    scan(rest, identity, None, 0, is_follower=True)
    return rest.end_offset


def _rename(disk: Disk, identity: SegmentIdentity, target: str, *, has_checkpoints: bool) -> None:
    """The log and its checkpoints, which speak of nothing else."""
    # First the checkpoints: a log without them is slower to read, they without it would speak of another.
    if has_checkpoints:
        disk.rename(identity.path + ".side", target.removesuffix(".log") + ".side")
    else:
        disk.remove(identity.path + ".side")
    disk.rename(identity.path + ".log", target)
    disk.sync_directory(parent(target))


def _copy(disk: Disk, source: File, position: int, size: int, target: str) -> None:
    making = target + ".new"
    disk.remove(making)
    file = disk.open(making, create=True)
    try:
        done = 0
        while done < size:
            chunk = source.read(min(_CHUNK_BYTES, size - done), position + done)
            if not chunk:
                raise OSError(
                    errno.EIO, f"the log ends at {position + done}, and {size - done} bytes are missing"
                )
            file.write([chunk], done)
            done += len(chunk)
        file.sync()
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk must not stay so because of this
            disk.remove(making)
        raise
    finally:
        file.close()
    disk.rename(making, target)
    disk.sync_directory(parent(target))
