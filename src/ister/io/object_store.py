"""The object store seam: immutable objects by name, in a place outside the brokers.

Fault model: any call may fail; a write that failed may have been applied all the same (which is why
every name is written once, if absent, and verified). What `put` returned from is durable.

Names have `/` between parts. Objects are never changed, only made and deleted.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Protocol

from ister.errors import ObjectExists, ObjectNotFound


class ObjectStore(Protocol):
    async def put_if_absent(self, name: str, data: bytes) -> None:
        """Create the object, whole and durable, or raise `ObjectExists` and change nothing."""
        ...

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A range of the object, to its end when no length is given; raises `ObjectNotFound`."""
        ...

    async def size(self, name: str) -> int:
        """In bytes; raises `ObjectNotFound`."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """All names that start with `prefix`, sorted."""
        ...

    async def delete(self, name: str) -> None:
        """Not an error if it is not there."""
        ...


class FilesystemStore:
    """Objects as files under a directory, for one machine or a shared filesystem.

    An object is written to a name of its own, synced, and linked to its final name: the link fails if
    the name is taken, on every POSIX filesystem, and a reader never sees half an object. File and
    directory are synced before the call returns.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if not name or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name!r} is no object name")
        return self._root.joinpath(*parts)

    async def put_if_absent(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, name, data)

    def _put(self, name: str, data: bytes) -> None:
        path = self._path(name)
        self._make_directory(path.parent)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(aside, path)
            except FileExistsError as error:
                _sync_directory(path.parent)  # whoever made it may not have come to that (E2)
                raise ObjectExists(f"object {name} is already in {self._root}") from error
        finally:
            aside.unlink(missing_ok=True)
        _sync_directory(path.parent)

    def _make_directory(self, directory: Path) -> None:
        if not directory.is_dir():
            self._make_directory(directory.parent)
            directory.mkdir(exist_ok=True)
            _sync_directory(directory.parent)

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return await asyncio.to_thread(self._get, name, start, length)

    def _get(self, name: str, start: int, length: int | None) -> bytes:
        try:
            with self._path(name).open("rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError as error:
            raise ObjectNotFound(f"object {name} is not in {self._root}") from error

    async def size(self, name: str) -> int:
        try:
            return (await asyncio.to_thread(self._path(name).stat)).st_size
        except FileNotFoundError as error:
            raise ObjectNotFound(f"object {name} is not in {self._root}") from error

    async def names(self, prefix: str) -> list[str]:
        return await asyncio.to_thread(self._names, prefix)

    def _names(self, prefix: str) -> list[str]:
        found = (
            path.relative_to(self._root).as_posix()
            for path in self._root.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )
        return sorted(name for name in found if name.startswith(prefix))

    async def delete(self, name: str) -> None:
        path = self._path(name)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        if path.parent.is_dir():
            await asyncio.to_thread(_sync_directory, path.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
