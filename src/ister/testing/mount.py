"""What one process holds of a simulated disk: the disk itself and its open files.

Both live as long as the process. After it was killed, or the power lost, every call is refused with
`DeadProcess`. The next process on the machine makes a mount of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ister.io.disk import Bytes, File
from ister.testing.faults import DeadProcess, os_error

if TYPE_CHECKING:
    from ister.testing.disk import SimDisk
    from ister.testing.image import FileImage

T = TypeVar("T")


class OpenFile:
    """Implements `ister.io.disk.File` on a file of a `SimDisk`."""

    __slots__ = ("_disk", "_generation", "_image", "_open", "_path")

    def __init__(self, disk: SimDisk, path: str, image: FileImage) -> None:
        self._disk = disk
        self._path = path
        self._image = image
        self._generation = disk.generation
        self._open = True

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        self._check()
        if position < 0:
            raise os_error(errno.EINVAL, self._path)
        self._disk.write(self._path, self._image, b"".join(buffers), position)

    def read(self, length: int, position: int) -> bytes:
        self._check()
        if length < 0 or position < 0:
            raise os_error(errno.EINVAL, self._path)
        self._disk.strike("read", self._path)
        return bytes(self._image.volatile[position : position + length])

    def sync(self) -> None:
        self._check()
        self._disk.sync(self._path, self._image)

    def allocate(self, size: int) -> None:
        self._check()
        if size > len(self._image.volatile):
            self._disk.allocate(self._path, self._image, size)

    def truncate(self, size: int) -> None:
        self._check()
        if size < 0:
            raise os_error(errno.EINVAL, self._path)
        self._disk.truncate(self._path, self._image, size)

    def size(self) -> int:
        self._check()
        return len(self._image.volatile)

    def close(self) -> None:
        self._check()
        self._open = False

    def _check(self) -> None:
        if self._generation != self._disk.generation:
            raise DeadProcess(self._path)
        if not self._open:
            raise os_error(errno.EBADF, self._path)


class Mount:
    """Implements `ister.io.disk.Disk` on a `SimDisk`."""

    def __init__(self, disk: SimDisk) -> None:
        self._device = disk
        self._generation = disk.generation
        self._locks: list[FileImage] = []

    @property
    def _disk(self) -> SimDisk:
        if self._generation != self._device.generation:
            raise DeadProcess(self._device.name)
        return self._device

    @property
    def location(self) -> str:
        return self._device.location

    def open(self, path: str, *, create: bool = False) -> File:
        return self._disk.open(path, create=create)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def lock(self, path: str) -> bool:
        taken = self._disk.take_lock(path)
        if taken is None:
            return False
        self._locks.append(taken)
        return True

    async def run(self, work: Callable[[], T]) -> T:
        return await self._disk.run(work)

    def close(self) -> None:
        if self._generation == self._device.generation:
            for image in self._locks:
                self._device.release_lock(image)
        self._locks.clear()
