"""Data files that a table does not name, in a directory or a bucket: found by their names and their age."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ister.spark.jobs.lake.table import FILE_PREFIX, PARTITION_COLUMNS, Origin


def filesystem_of(location: str) -> tuple[Any, str]:
    """Arrow's way to a place, and what it is called there. Credentials are the environment's."""
    from pyarrow import fs

    if "://" not in location:
        return fs.LocalFileSystem(), location.rstrip("/")
    found, root = fs.FileSystem.from_uri(location)
    return found, root.rstrip("/")


def parquet_files(location: str, origin: Origin) -> Iterator[tuple[str, bool, float]]:
    """Of a table of such an origin: their paths below the location, whether they have a name of ours, and how
    old they are, in seconds. Another table may lie below this one: what is not in a folder of this one's own
    partitions is not looked at."""
    from pyarrow import fs

    filesystem, root = filesystem_of(location)
    columns, now = PARTITION_COLUMNS[origin.partition_by], time.time()
    for found in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        path = found.path.removeprefix(root).lstrip("/")
        keys = tuple(folder.partition("=")[0] for folder in path.split("/")[:-1])
        if found.is_file and found.extension == "parquet" and found.mtime is not None and keys == columns:
            yield path, found.base_name.startswith(FILE_PREFIX), now - found.mtime.timestamp()


def old_files(location: str, origin: Origin, older_than_s: float) -> Iterator[str]:
    """Those of ours that are older than this."""
    for path, is_ours, age_s in parquet_files(location, origin):
        if is_ours and age_s > older_than_s:
            yield path


def remove(location: str, paths: Sequence[str]) -> list[str]:
    filesystem, root = filesystem_of(location)
    for path in paths:
        try:
            filesystem.delete_file(f"{root}/{path}")
        except FileNotFoundError:
            continue
    return list(paths)
