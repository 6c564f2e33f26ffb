"""Parquet files and a manifest: a directory that is a table, without any library.

    _ister/table.json                 what it is made of
    _ister/commits/00000000000000.json  one for each commit: the files it adds, and how far the table is then
    date=2026-11-19/ister-....parquet   data

A commit is a file that is made if absent, whole and synced under another name and then linked to its own: of
two jobs that commit number 7, one does. A reader takes the files that the commits name: others may be there.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ister.errors import BadRequest, TableMismatch
from ister.spark.jobs.lake.table import FILE_PREFIX, Coverage, DataFile, Origin

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
_OURS: Final = "_ister"


class ParquetTable:
    has_partition_columns = True

    def __init__(self, path: Path, described: dict[str, Any]) -> None:
        if described["version"] != VERSION:
            raise TableMismatch(
                f"the table {path} has version {described['version']}; this build knows version {VERSION}",
                hint="Upgrade Ister.",
            )
        self._path = path
        self._commits = path / _OURS / "commits"
        self._described = described

    @classmethod
    def open(cls, location: str) -> ParquetTable | None:
        path = local_path(location)
        try:
            return cls(path, json.loads((path / _OURS / "table.json").read_text()))
        except FileNotFoundError:
            return None

    @classmethod
    def create(
        cls, location: str, origin: Origin, schema: pa.Schema, partition_by: Sequence[str]
    ) -> ParquetTable:
        """Make it, or open the one that somebody else made at this moment."""
        path = local_path(location)
        described = {
            "version": VERSION,
            "origin": origin.to_text(),
            "partition_by": list(partition_by),
            "schema": schema.serialize().to_pybytes().hex(),
        }
        (path / _OURS / "commits").mkdir(parents=True, exist_ok=True)
        for folder in (path / _OURS, path, path.parent):
            sync_directory(folder)
        put_if_absent(path / _OURS / "table.json", json.dumps(described, indent=1))
        found = cls.open(location)
        assert found is not None
        return found

    @property
    def location(self) -> str:
        return str(self._path)

    def origin(self) -> Origin:
        return Origin.from_text(self._described["origin"])

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self._described["schema"])))

    def coverage(self) -> Coverage | None:
        numbers = self._numbers()
        return Coverage.from_object(self._commit(numbers[-1])["covers"]) if numbers else None

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 0
        if (Coverage.from_object(self._commit(number - 1)["covers"]) if number else None) != before:
            return False
        entry = {"covers": after.to_object(), "files": [file.to_object() for file in files]}
        return put_if_absent(self._commits / f"{number:020}.json", json.dumps(entry))

    def files(self) -> list[DataFile]:
        return [
            DataFile.from_object(file) for number in self._numbers() for file in self._commit(number)["files"]
        ]

    def vacuum(self, older_than_s: float) -> list[str]:
        old = list(old_files(self._path, older_than_s))
        named = {file.path for file in self.files()}  # looked at last: what was committed meanwhile is kept
        found = [each for each in old if each not in named]
        for each in found:
            (self._path / each).unlink(missing_ok=True)
        return found

    def _numbers(self) -> list[int]:
        return sorted(int(name.stem) for name in self._commits.glob("*.json") if name.stem.isdigit())

    def _commit(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._commits / f"{number:020}.json").read_text())
        return found


def local_path(location: str) -> Path:
    plain = location.removeprefix("file://")
    if "://" in plain:
        raise BadRequest(
            f"Parquet with a manifest is for a directory, and {location!r} is none",
            hint="Use --to delta or --to iceberg on an object store: their commits are conditional there.",
        )
    return Path(plain).absolute()


def old_files(path: Path, older_than_s: float) -> Iterator[str]:
    """Data files of ours below a directory, by their paths in it."""
    before = time.time() - older_than_s
    for found in path.rglob(f"{FILE_PREFIX}*.parquet"):
        if found.stat().st_mtime < before:
            yield str(found.relative_to(path))


def put_if_absent(path: Path, text: str) -> bool:
    """A file that is there whole and durably, or not at all; False if it was there already."""
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


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
