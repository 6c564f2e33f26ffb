"""Small files of a table, in a directory or a bucket: whole or not at all, and made by whoever is first.

What can fail: a job dies in the middle, or the answer to what it made got lost. Then the file is there whole,
or it is not; who finds it there is told so, and looks what it says. In a directory a file is synced under a
name of its own and then linked; in a bucket it is one conditional request (`If-None-Match`). A request whose
answer was lost is sent again, and refused because of what it made itself: so what is there is compared, and
texts that must be told apart have something of their own in them. A store that does not know the condition is
refused where a table is made there: two jobs would overwrite each other.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ister.errors import BadRequest, ConfigError, DependencyMissing


class Folder(Protocol):
    """Files by their names in it; a name may have folders of its own."""

    @property
    def location(self) -> str:
        """As executors are to use it."""

    def make(self, *folders: str) -> None:
        """See to it that files can be put there, and that it can be relied on."""

    def read(self, name: str) -> str | None:
        """None if it is not there."""

    def names(self, folder: str) -> list[str]:
        """Of what is in a folder, without its folders."""

    def put_if_absent(self, name: str, text: str) -> bool:
        """False if something else was there already; then nothing is changed."""


def open_folder(location: str) -> Folder:
    plain = location.removeprefix("file://")
    if "://" not in plain:
        return LocalFolder(Path(plain).absolute())
    parts = urlsplit(location)
    if parts.scheme != "s3" or not parts.netloc:
        raise BadRequest(
            f"a table of Parquet with a manifest can't be at {location!r}",
            hint="Give a directory, or s3://bucket/prefix.",
        )
    return BucketFolder(parts.netloc, parts.path.strip("/"))


class LocalFolder:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def location(self) -> str:
        return str(self._path)

    def make(self, *folders: str) -> None:
        for folder in folders:
            (self._path / folder).mkdir(parents=True, exist_ok=True)
        outer = {self._path, self._path.parent}
        for folder in folders:
            outer |= {one for one in (self._path / folder).parents if one.is_relative_to(self._path)}
        for one in outer:
            sync_directory(one)

    def read(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        return [found.name for found in (self._path / folder).glob("*") if not found.name.startswith(".")]

    def put_if_absent(self, name: str, text: str) -> bool:
        path = self._path / name
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with aside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            aside.unlink()
        sync_directory(path.parent)
        return True


class BucketFolder:
    """Credentials are the environment's."""

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import obstore
            import obstore.exceptions
            from obstore.store import S3Store
        except ImportError as error:
            raise DependencyMissing(
                "a Parquet table in a bucket needs the package obstore", hint="pip install 'ister[s3]'"
            ) from error
        self._obstore: Any = obstore
        self._store: Any = S3Store(bucket, prefix=prefix or None)
        self._location = f"s3://{bucket}/{prefix}".rstrip("/")

    @property
    def location(self) -> str:
        return self._location

    def make(self, *folders: str) -> None:
        probe = f"{folders[0]}/probe-{uuid.uuid4().hex}"
        try:
            if self.put_if_absent(probe, "one") and not self.put_if_absent(probe, "two"):
                return
        finally:
            self._obstore.delete(self._store, probe)
        raise ConfigError(
            f"the store of {self._location} does not keep what is there: what was put under a name that was "
            "taken was not refused, and two jobs would overwrite each other's commits",
            hint="Use a store with conditional writes, or a directory.",
        )

    def read(self, name: str) -> str | None:
        try:
            return bytes(self._obstore.get(self._store, name).bytes()).decode()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        found = self._obstore.list_with_delimiter(self._store, f"{folder}/")
        return [entry["path"].rpartition("/")[2] for entry in found["objects"]]

    def put_if_absent(self, name: str, text: str) -> bool:
        try:
            self._obstore.put(self._store, name, text.encode(), mode="create")
        except self._obstore.exceptions.AlreadyExistsError:
            return self.read(name) == text
        return True


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
