"""The disk seam: files under one root directory, and a way to wait for them off the event loop.

Fault model, which the simulated disk (`ister.testing.disk`) plays out in full:
- What was written and not synced may be lost, wholly or in part, in any order, at a crash.
- A file that was created or renamed is only there for good after `sync_directory` of its parent.
- Any call may raise `OSError`: full, failing, read-only. After a failed `sync` nothing is known of
  what was written since the last good one (P1); calling it again proves nothing.
- Stored bytes may rot; reads then return other bytes without an error.

Paths are relative to the root, with `/`; the seam refuses to leave it. Files are used by one owner at
a time: the seam has no locks of its own.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """An open file. Every write says its position: there is no cursor to get wrong."""

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        """Write all of the buffers, end to end, from `position`; or raise, with any part written."""
        ...

    def read(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Make everything written durable, the size included. Not again after it failed (P1)."""
        ...

    def allocate(self, size: int) -> None:
        """Reserve space up to `size`, reading as zeros; never shrinks. Raises ENOSPC now, not later."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    @property
    def location(self) -> str:
        """For people: where this disk is."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make it if it is not there."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is no such directory."""
        ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents, durably, if they are not there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces `target`. Durable after `sync_directory` of the parent."""
        ...

    def remove(self, path: str) -> None:
        """A file, or a directory with all that is in it. Not an error if it is not there."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def lock(self, path: str) -> bool:
        """Take an exclusive lock for as long as this process lives; False if another one has it."""
        ...

    async def run(self, work: Callable[[], T]) -> T:
        """Do blocking work on this disk without stopping the event loop."""
        ...

    def close(self) -> None: ...


def read_whole(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file atomically and durably: written aside, synced, renamed, directory synced."""
    aside = path + ".new"
    disk.remove(aside)
    file = disk.open(aside, create=True)
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(aside, path)
    disk.sync_directory(parent(path))


def parent(path: str) -> str:
    return path.rpartition("/")[0]


class _LocalFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        if len(buffers) > 64:
            # Below this many, the kernel gathers; above, one join is cheaper than the iovec.
            buffers = [b"".join(buffers)]
        expected = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position)
        if written != expected:
            self._write_rest(b"".join(buffers), written, position)

    def _write_rest(self, data: bytes, written: int, position: int) -> None:
        view = memoryview(data)
        while written < len(data):
            step = os.pwrite(self._fd, view[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "the disk accepted no bytes")
            written += step

    def read(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length:
            return data
        parts = [data]
        got = len(data)
        while data and got < length:
            data = os.pread(self._fd, length - got, position + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, size: int) -> None:
        current = os.fstat(self._fd).st_size
        if size > current:
            os.posix_fallocate(self._fd, current, size - current)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class LocalDisk:
    """A directory on a real filesystem."""

    def __init__(self, root: Path, *, threads: int = 4) -> None:
        self._root = root.absolute()
        _make_durably(self._root)
        self._durable_directories = {""}
        self._locks: list[int] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ister-disk")

    @property
    def location(self) -> str:
        return str(self._root)

    def _resolve(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"path {path!r} would leave the data directory")
        return os.path.join(self._root, path)  # noqa: PTH118 (hot enough, and strings throughout)

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _LocalFile(os.open(self._resolve(path), flags, 0o640))

    def exists(self, path: str) -> bool:
        return Path(self._resolve(path)).exists()

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._resolve(path)))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        # One that is there may be of a process that was killed before it synced the parent.
        if path not in self._durable_directories:
            self.make_directory(parent(path))
            if not self.exists(path):
                Path(self._resolve(path)).mkdir(exist_ok=True)
            self.sync_directory(parent(path))
            self._durable_directories.add(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(self._resolve(source), self._resolve(target))  # noqa: PTH105
        if source in self._durable_directories:
            moved = source + "/"
            self._durable_directories = {
                path for path in self._durable_directories if path != source and not path.startswith(moved)
            }

    def remove(self, path: str) -> None:
        whole = Path(self._resolve(path))
        self._durable_directories.discard(path)
        if whole.is_dir():
            for name in self.list(path):
                self.remove(f"{path}/{name}")
            whole.rmdir()
        else:
            whole.unlink(missing_ok=True)

    def sync_directory(self, path: str) -> None:
        _sync_path(self._resolve(path))

    def free_bytes(self) -> int:
        stats = os.statvfs(self._root)
        return stats.f_bavail * stats.f_frsize

    def lock(self, path: str) -> bool:
        fd = os.open(self._resolve(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._locks.append(fd)
        return True

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()


def _sync_path(directory: str | Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_durably(directory: Path) -> None:
    """The directory and all above it that are not there, each one's name synced."""
    if not directory.is_dir():
        _make_durably(directory.parent)
        directory.mkdir(exist_ok=True)
        _sync_path(directory.parent)
