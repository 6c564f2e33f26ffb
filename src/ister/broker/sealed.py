"""Sealed segments, open for reading: a bounded number of them, the least recently used closed first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ister.errors import CorruptSegment
from ister.io.disk import Disk, File
from ister.metadata.state import SegmentState
from ister.wal.reader import Found, first_offset_at_or_after, plan_read
from ister.wal.recovery import SegmentIdentity, recover
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
        self._opening: dict[str, asyncio.Task[_OpenFile]] = {}

    async def read(
        self, identity: SegmentIdentity, state: SegmentState, offset: int, max_bytes: int
    ) -> Found:
        opened = await self._get(identity, state)
        try:
            assert state.end_offset is not None
            plan = plan_read(
                identity.key, opened.file, opened.index, opened.limit, state.end_offset, offset, max_bytes
            )
            return await self._disk.run(plan.run)
        except OSError as error:
            raise CorruptSegment(f"{identity.key} cannot be read at offset {offset}: {error}") from error
        finally:
            opened.release()

    async def offset_at(self, identity: SegmentIdentity, state: SegmentState, time_us: int) -> int | None:
        opened = await self._get(identity, state)
        try:
            start = opened.index.position_for_time(time_us)
            return await self._disk.run(
                lambda: first_offset_at_or_after(identity.key, opened.file, start, opened.limit, time_us)
            )
        except OSError as error:
            raise CorruptSegment(f"{identity.key} cannot be read at time {time_us}: {error}") from error
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
                self._opening[identity.path] = task
            await asyncio.shield(task)

    async def _open(self, identity: SegmentIdentity, state: SegmentState) -> _OpenFile:
        try:
            recovered = await self._disk.run(
                lambda: recover(self._disk, identity, [], 0, sealed_end=state.end_offset)
            )
            recovered.side.close()
            opened = self._files[identity.path] = _OpenFile(
                recovered.file, recovered.index, recovered.position
            )
            while len(self._files) > self._max_open:
                _, oldest = self._files.popitem(last=False)
                oldest.closing = True
                oldest.close_if_unused()
            return opened
        except OSError as error:
            raise CorruptSegment(f"segment {identity.key} cannot be opened: {error}") from error
        finally:
            del self._opening[identity.path]

    def forget(self, prefix: str) -> None:
        """Close those under a path: their files are about to be removed."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            gone = self._files.pop(path)
            gone.closing = True
            gone.close_if_unused()
