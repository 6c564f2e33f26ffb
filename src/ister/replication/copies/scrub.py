"""A look at every byte of a sealed segment's log, at a rate: bit rot is found while there are other copies.

Fault model: stored bytes may change, disappear, or not be readable at all. Each of these is a `Finding`, and
never an end: the log must have every frame from its base to the sealed end, intact and without a gap. What
the disk could not read may be readable later: whoever looks asks twice before it is called damage. A read
that failed for want of memory or the like is `StorageFailed`: nothing was found (`ister.wal.read_faults`).
Bytes past the sealed end, and the side file, which is rebuilt from the log, are nobody's loss.

The log must not be cut or replaced meanwhile: then what is found is of a file that is not there any more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from ister.errors import StorageFailed
from ister.frame import HEADER_SIZE
from ister.io.clock import Clock
from ister.io.disk import Disk, File
from ister.replication.sharing import Throttle, run_to_end
from ister.wal.checking import Run, check_run
from ister.wal.opening import SegmentIdentity
from ister.wal.read_faults import is_medium_error, read_failed

CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """From here on the log cannot be read."""

    offset: int
    position: int
    reason: str
    may_pass: bool = False
    """The disk could not read it, this time."""


async def scrub_log(
    disk: Disk, clock: Clock, identity: SegmentIdentity, sealed_end: int, *, bytes_per_second: int
) -> Finding | None:
    """The first damage, or None if the log is whole up to its end. May be cancelled after any chunk."""
    try:
        file = await run_to_end(disk, lambda: disk.open(identity.path + ".log"), File.close)
    except FileNotFoundError:
        if sealed_end == identity.base_offset:
            return None
        return Finding(identity.base_offset, 0, "there is no log")
    except OSError as error:
        raise StorageFailed(f"the log of segment {identity.key} cannot be opened: {error}") from error
    scrub = _Scrub(file, identity, sealed_end)
    throttle = Throttle(bytes_per_second)
    try:
        while scrub.offset < sealed_end:
            started = scrub.position
            finding = await run_to_end(disk, scrub.check_chunk)
            if finding is not None:
                return finding
            await throttle.passed(scrub.position - started)
        return None
    finally:
        with suppress(OSError):
            file.close()


class _Scrub:
    """How far it is; `check_chunk` blocks."""

    def __init__(self, file: File, identity: SegmentIdentity, sealed_end: int) -> None:
        self._file = file
        self._identity = identity
        self._sealed_end = sealed_end
        self.offset = identity.base_offset
        self.position = 0

    def check_chunk(self) -> Finding | None:
        """Check the next frames: those that lie in a chunk, or the next one if that is larger."""
        try:
            data = self._file.read(CHUNK_BYTES, self.position)
            run = self._check(data)
            while not run.headers and not run.wrong:
                missing = run.missing or HEADER_SIZE
                longer = self._file.read(len(data) + missing, self.position)
                if len(longer) == len(data):
                    return self._finding(f"the file ends {missing} bytes early")
                data = longer
                run = self._check(data)
        except OSError as error:
            if not is_medium_error(error):
                raise read_failed(self._identity.key, f"offset {self.offset}", error) from error
            return replace(self._finding(f"it cannot be read: {error}"), may_pass=True)
        self.position += run.size
        self.offset = run.end_offset
        if run.wrong and self.offset < self._sealed_end:
            return self._finding(run.wrong)
        return None  # the rest of one that is not there in full is in the next chunk

    def _check(self, data: bytes) -> Run:
        return check_run(data, self._identity.uid, self.offset, self._sealed_end)

    def _finding(self, reason: str) -> Finding:
        return Finding(self.offset, self.position, reason)
