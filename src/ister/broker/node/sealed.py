"""Sealed segments, open for reading: a bounded number of them, the least recently used closed first.

A file is closed when the last reader that was given it lets go. One whose segment is removed while it is
being opened is closed as soon as it is open, and those who wait for it are told.

Damage is `CorruptSegment`. An `OSError` goes through: what a read that failed says of this copy depends on
whether there are others (`ister.wal.read_faults`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection

from ister.errors import CorruptSegment, IsterError
from ister.io.disk import Disk, File
from ister.metadata.state import SegmentState
from ister.replication.copies.copying import read_frames
from ister.wal.opening import SegmentIdentity, recover
from ister.wal.reader import Found, first_offset_at_or_after, plan_read, plan_search
from ister.wal.side_file import SparseIndex

MAX_OPEN = 256


class _OpenFile:
    __slots__ = ("closing", "file", "index", "limit", "users")

    def __init__(self, file: File, index: SparseIndex, limit: int) -> None:
        self.file, self.index, self.limit = file, index, limit
        self.users = 0
        self.closing = False

    def release(self) -> None:
        self.users -= 1
        self.close_if_unused()

    def close_if_unused(self) -> None:
        if self.closing and self.users == 0:
            self.closing = False
            self.file.close()


class SealedSegments:
    """All sealed segments of a node, opened when first read."""

    def __init__(self, disk: Disk, *, max_open: int = MAX_OPEN) -> None:
        self._disk = disk
        self._max_open = max_open
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._unwanted: set[str] = set()
        """Those of `_opening` that are to be closed at once."""

    async def read(
        self, identity: SegmentIdentity, state: SegmentState, offset: int, max_bytes: int
    ) -> Found:
        opened = await self._get(identity, state)
        try:
            assert state.data_end is not None
            plan = plan_read(
                identity.key, opened.file, opened.index, opened.limit, state.data_end, offset, max_bytes
            )
            return await self._disk.run(plan.run_checked)
        finally:
            opened.release()

    async def read_checked(
        self, identity: SegmentIdentity, state: SegmentState, offset: int, max_bytes: int
    ) -> bytes:
        """For another replica: frames whose bodies were checked too."""
        opened = await self._get(identity, state)
        assert state.data_end is not None
        try:
            return await self._disk.run(
                lambda: read_frames(
                    opened.file,
                    opened.index,
                    identity.key,
                    opened.limit,
                    state.data_end or 0,
                    offset,
                    max_bytes,
                )
            )
        finally:
            opened.release()

    async def offset_at(self, identity: SegmentIdentity, state: SegmentState, time_us: int) -> int | None:
        opened = await self._get(identity, state)
        try:
            assert state.data_end is not None
            plan = plan_search(identity.key, opened.file, opened.index, opened.limit, state.data_end, time_us)
            return await self._disk.run(lambda: first_offset_at_or_after(plan, time_us))
        finally:
            opened.release()

    async def _get(self, identity: SegmentIdentity, state: SegmentState) -> _OpenFile:
        """The open file, with one more user: release it."""
        while True:
            found = self._files.get(identity.path)
            if found is not None:
                self._files.move_to_end(identity.path)
                found.users += 1
                return found
            task = self._opening.get(identity.path)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._open(identity, state))
                # Those who wait are told; if all of them have gone meanwhile, nobody needs to be.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._opening[identity.path] = task
            await asyncio.wait([task])
            error = task.exception()
            if isinstance(error, IsterError):
                raise error.again()
            if isinstance(error, OSError):
                raise OSError(error.errno, f"it cannot be opened: {error.strerror or error}") from error
            task.result()

    async def _open(self, identity: SegmentIdentity, state: SegmentState) -> None:
        path = identity.path
        try:
            recovered = await self._disk.run(
                lambda: recover(self._disk, identity, [], 0, sealed_end=state.data_end)
            )
            recovered.side.close()
            if path in self._unwanted:
                recovered.file.close()
                raise CorruptSegment(f"segment {identity.key} was removed while it was being opened")
            self._files[path] = _OpenFile(recovered.file, recovered.index, recovered.position)
            while len(self._files) > self._max_open:
                _let_go(self._files.popitem(last=False)[1])
        finally:
            del self._opening[path]
            self._unwanted.discard(path)

    def forget(self, prefix: str, *, keep: Collection[str] = ()) -> None:
        """Close those under a path but for some: their files are about to be removed."""
        for path in [path for path in self._files if path.startswith(prefix) and path not in keep]:
            _let_go(self._files.pop(path))
        self._unwanted |= {path for path in self._opening if path.startswith(prefix) and path not in keep}

    async def close(self) -> None:
        """Close all of them; none is being opened any more."""
        self.forget("")
        if self._opening:
            await asyncio.wait(list(self._opening.values()))


def _let_go(opened: _OpenFile) -> None:
    opened.closing = True
    opened.close_if_unused()
