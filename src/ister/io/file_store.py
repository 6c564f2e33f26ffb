"""Objects as files under a directory, for one machine or a shared filesystem.

An upload streams into a file of its own, `.unfinished/<owner>/<number>`, which is synced and then linked to
the object's name. The link fails where the name is taken, on every POSIX filesystem, so the first one wins,
and a reader never sees half an object. File and directories are synced before a put returns.

What can fail, and what then holds:
- Killed, or power lost, in an upload: its file stays, under this owner, and is no object. `sweep_unfinished`
  of the owner's next life removes it. (Of a node that never returns, anybody may: a store made with its
  name.)
- Killed between the link and the sync of its directory: the object can be read, and a power cut may take it
  away. So whoever finds the name taken syncs the directory before it says so (E2).
- A failed sync: this upload is nothing, and never synced again (P1). The next one writes a file anew.
- The answer to a link got lost (NFS sends it again, and is told that the name is taken): a look says whose it
  is.

Work is done in threads of the store's own: a mount that hangs takes those, and nothing else of the broker.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import threading
from collections.abc import AsyncIterable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ister.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from ister.io.clock import SystemClock
from ister.io.object_store import ObjectInfo, Page, check_name, in_pieces

T = TypeVar("T")

UNFINISHED = ".unfinished"
"""No object's name has a part that starts with a dot, so this directory is none of theirs."""


class FilesystemStore:
    """One owner's way to the objects under `root`. Of one owner only one lives at a time, or each sweeps by
    age."""

    def __init__(self, root: Path, owner: str, *, threads: int = 4) -> None:
        check_name(owner)
        if "/" in owner:
            raise ValueError(f"{owner!r} is no owner's name: it has a slash")
        self._root = root.absolute()
        self._directories = _DurableDirectories(self._root)
        self._unfinished = self._root / UNFINISHED / owner
        self._under_way: set[Path] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ister-store")

    @property
    def location(self) -> str:
        return f"file://{self._root}"

    @property
    def is_there(self) -> bool:
        """Whether its directory is: a mount may be missing."""
        return self._root.is_dir()

    async def put_if_absent(self, name: str, data: bytes | AsyncIterable[bytes]) -> None:
        path = self._path(name)
        upload = _Upload(self._unfinished / secrets.token_hex(8))
        self._under_way.add(upload.path)
        try:
            await self._run("put", name, lambda: self._begin(upload))
            async for piece in in_pieces(data):
                await self._run("put", name, lambda piece=piece: upload.write(piece))  # type: ignore[misc]
            placed = await self._run("put", name, lambda: self._finish(upload, path))
        finally:
            # In a thread, behind a write that may still be at work there when this task was cancelled.
            self._pool.submit(upload.abandon).add_done_callback(
                lambda _: self._under_way.discard(upload.path)
            )
        if not placed:
            raise ObjectExists(f"object {name} is already in {self.location}")

    def _begin(self, upload: _Upload) -> None:
        self._directories.make(upload.path.parent)
        upload.open()

    def _finish(self, upload: _Upload, path: Path) -> bool:
        self._directories.make(path.parent)
        placed = upload.place(path)
        _sync_directory(path.parent)  # also of another's object: it may not have come to that (E2)
        return placed

    async def get(self, name: str, start: int, length: int) -> bytes:
        path = self._path(name)
        return await self._run("get", name, lambda: _read(path, start, length))

    async def head(self, name: str) -> ObjectInfo:
        path = self._path(name)
        return ObjectInfo(name, await self._run("head", name, lambda: path.stat().st_size))

    async def list_page(self, prefix: str, after: str | None, limit: int) -> Page:
        return await self._run("list", prefix, lambda: self._list(prefix, after, limit))

    def _list(self, prefix: str, after: str | None, limit: int) -> Page:
        found: list[ObjectInfo] = []
        for name, entry in _in_order(self._root, "", prefix, after or ""):
            if len(found) == limit:
                return Page(tuple(found), found[-1].name)
            try:
                found.append(ObjectInfo(name, entry.stat().st_size))
            except FileNotFoundError:
                pass  # deleted while the list was made
        return Page(tuple(found), None)

    async def delete(self, name: str) -> None:
        path = self._path(name)
        await self._run("delete", name, lambda: _remove(path))

    async def sweep_unfinished(self, older_than_s: float = 0.0) -> int:
        return await self._run("sweep", self._unfinished.name, lambda: self._sweep(older_than_s))

    def _sweep(self, older_than_s: float) -> int:
        if not self._unfinished.is_dir():
            return 0
        left = [
            path
            for path in self._unfinished.iterdir()
            if path not in self._under_way and (not older_than_s or _age_s(path) >= older_than_s)
        ]
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._root.joinpath(*name.split("/"))

    async def _run(self, operation: str, name: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if operation in ("get", "head"):
                raise ObjectNotFound(f"object {name} is not in {self.location}") from error
            raise self._unavailable(operation, name, error) from error
        except OSError as error:
            raise self._unavailable(operation, name, error) from error

    def _unavailable(self, operation: str, name: str, error: OSError) -> StoreUnavailable:
        reason = error.strerror or str(error)
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) and operation == "put":
            reason += "; objects are put in place by a hard link: does this filesystem have those?"
        return StoreUnavailable(f"{operation} of {name} in {self.location} failed: {reason}")


class _Upload:
    """A file that is on its way to be an object. One thread at a time is at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._lock = threading.Lock()
        self._ended = False

    def open(self) -> None:
        with self._lock:
            if not self._ended:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)

    def write(self, piece: bytes) -> None:
        with self._lock:
            view = memoryview(piece)
            while view and self._fd is not None:
                view = view[os.write(self._fd, view) :]

    def place(self, path: Path) -> bool:
        """Give it its name, if nobody has it; False if somebody has."""
        with self._lock:
            if self._fd is None:
                raise OSError(errno.ECANCELED, "the upload was given up")
            os.fsync(self._fd)
            try:
                os.link(self.path, path)
            except FileExistsError:
                return os.path.samestat(os.fstat(self._fd), path.stat())
            return True

    def abandon(self) -> None:
        """End it: the file's own name goes. An object that it became keeps its own."""
        with self._lock:
            self._ended = True
            fd, self._fd = self._fd, None
            if fd is None:
                return
            try:
                os.close(fd)
            finally:
                self.path.unlink(missing_ok=True)


class _DurableDirectories:
    """Directories of which this process knows that a power cut takes none away (P2)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: set[Path] = set()

    def make(self, directory: Path) -> None:
        # One that is there may be of a process that was killed before it synced the parent.
        if directory in self._known:
            return
        if directory == self._root:
            if not directory.is_dir():
                self._make_above(directory)
        else:
            self.make(directory.parent)
            directory.mkdir(exist_ok=True)
            _sync_directory(directory.parent)
        self._known.add(directory)

    def _make_above(self, directory: Path) -> None:
        if not directory.is_dir():
            self._make_above(directory.parent)
            directory.mkdir(exist_ok=True)
            _sync_directory(directory.parent)


def _read(path: Path, start: int, length: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(fd, length, start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(fd)


def _age_s(path: Path) -> float:
    """Since it was written to; 0 of what is not there any more."""
    try:
        return SystemClock().now_us() / 1e6 - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        pass  # but a delete that was killed may have been here, so the directory is synced all the same
    if path.parent.is_dir():
        _sync_directory(path.parent)


def _in_order(directory: Path, above: str, prefix: str, after: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Files beyond `after`, in the order of their names; directories out of reach are passed over."""
    try:
        with os.scandir(directory) as entries:
            # A directory sorts as what all names in it start with: `a-b` is before `a/c`.
            found = sorted(
                (above + entry.name + ("/" if entry.is_dir() else ""), entry)
                for entry in entries
                if not entry.name.startswith(".")
            )
    except FileNotFoundError:
        return
    for name, entry in found:
        if name.endswith("/"):
            reaches = name.startswith(prefix) or prefix.startswith(name)
            if reaches and (name > after or after.startswith(name)):
                yield from _in_order(directory / entry.name, name, prefix, after)
        elif name.startswith(prefix) and name > after:
            yield name, entry


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
