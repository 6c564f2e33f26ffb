"""Parquet files and a manifest: a directory, or a place in a bucket, that is a table, without any library.

    _ister/table.json                 what it is made of
    _ister/commits/00000000000000.json  one for each commit: the files it adds, and how far the table is then
    date=2026-11-19/ister-....parquet   data

A commit is a file that is made if absent: of two jobs that commit number 7, one does. One that puts large
files in the place of small ones names these under `removes`. A reader takes the files that the commits name
and none of those that they remove: others may be there.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ister.errors import TableMismatch, invariant
from ister.spark.jobs.lake.folders import Folder, open_folder
from ister.spark.jobs.lake.leftovers import old_files, remove
from ister.spark.jobs.lake.table import Coverage, DataFile, Origin

if TYPE_CHECKING:
    import pyarrow as pa

VERSION: Final = 1
_TABLE: Final = "_ister/table.json"
_COMMITS: Final = "_ister/commits"
_ATTEMPTS: Final = 5


class ParquetTable:
    has_partition_columns = True

    def __init__(self, folder: Folder, described: dict[str, Any]) -> None:
        if described["version"] != VERSION:
            raise TableMismatch(
                f"the table {folder.location} has version {described['version']}; this build knows version "
                f"{VERSION}",
                hint="Upgrade Ister.",
            )
        self._folder = folder
        self._described = described

    @classmethod
    def open(cls, location: str) -> ParquetTable | None:
        folder = open_folder(location)
        text = folder.read(_TABLE)
        return None if text is None else cls(folder, json.loads(text))

    @classmethod
    def create(
        cls, location: str, origin: Origin, schema: pa.Schema, partition_by: Sequence[str]
    ) -> ParquetTable:
        """Make it, or open the one that somebody else made at this moment."""
        described = {
            "version": VERSION,
            "origin": origin.to_text(),
            "partition_by": list(partition_by),
            "schema": schema.serialize().to_pybytes().hex(),
        }
        folder = open_folder(location)
        folder.make(_COMMITS)
        folder.put_if_absent(_TABLE, json.dumps(described, indent=1))
        found = cls.open(location)
        assert found is not None
        return found

    @property
    def location(self) -> str:
        return self._folder.location

    def origin(self) -> Origin:
        return Origin.from_text(self._described["origin"])

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self._described["schema"])))

    def coverage(self) -> Coverage | None:
        numbers = self._numbers()
        return Coverage.from_object(self._commit(numbers[-1])["covers"]) if numbers else None

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        for _ in range(_ATTEMPTS):
            numbers = self._numbers()
            found = Coverage.from_object(self._commit(numbers[-1])["covers"]) if numbers else None
            if found != before:
                return False
            if self._put(numbers, files, after, {}):
                return True
            # Its number is taken: by files that were exchanged, if the table is where it was.
        return False

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        numbers = self._numbers()
        there = self._files(numbers)
        if not numbers or any(file.path not in there for file in old):
            return False
        covers = Coverage.from_object(self._commit(numbers[-1])["covers"])
        removes = {"removes": [file.path for file in old], "removed_at": time.time()}
        return self._put(numbers, new, covers, removes)

    def _put(
        self, numbers: Sequence[int], files: Sequence[DataFile], covers: Coverage, more: dict[str, Any]
    ) -> bool:
        """The commit behind these; whoever has made one meanwhile has its number."""
        number = numbers[-1] + 1 if numbers else 0
        entry = {
            "id": uuid.uuid4().hex,  # no two commits are the same text
            "covers": covers.to_object(),
            "files": [file.to_object() for file in files],
            **more,
        }
        return self._folder.put_if_absent(f"{_COMMITS}/{number:020}.json", json.dumps(entry))

    def files(self) -> list[DataFile]:
        return list(self._files(self._numbers()).values())

    def _files(self, numbers: Sequence[int], removed_before: float | None = None) -> dict[str, DataFile]:
        """By path; with those that were removed at that time or later, if one is given."""
        found: dict[str, DataFile] = {}
        for commit in map(self._commit, numbers):
            if removed_before is None or commit.get("removed_at", 0.0) < removed_before:
                for path in commit.get("removes", ()):
                    found.pop(path, None)
            found |= {file["path"]: DataFile.from_object(file) for file in commit["files"]}
        return found

    def compact(self, file_bytes: int) -> None:
        return None

    def expire(self, older_than_s: float) -> int:
        """Nothing but files is kept of what was: `vacuum` removes those that were replaced so long ago."""
        return 0

    def vacuum(self, older_than_s: float) -> list[str]:
        old = list(old_files(self.location, self.origin(), older_than_s))
        # Looked at last: what was committed meanwhile is kept, and what was replaced a moment ago, since
        # somebody may be reading it.
        named = self._files(self._numbers(), time.time() - older_than_s)
        return remove(self.location, [each for each in old if each not in named])

    def _numbers(self) -> list[int]:
        names = [name.removesuffix(".json") for name in self._folder.names(_COMMITS)]
        return sorted(int(name) for name in names if name.isdigit())

    def _commit(self, number: int) -> dict[str, Any]:
        text = self._folder.read(f"{_COMMITS}/{number:020}.json")
        invariant(text is not None, f"the commit {number} of {self.location} has disappeared")
        found: dict[str, Any] = json.loads(text or "")
        return found
