"""Data files that a table does not name, in a directory or a bucket: found by their names and their age."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ister.spark.jobs.lake.table import FILE_PREFIX


def filesystem_of(location: str) -> tuple[Any, str]:
    """Arrow's way to a place, and what it is called there. Credentials are the environment's."""
    from pyarrow import fs

    if "://" not in location:
        return fs.LocalFileSystem(), location.rstrip("/")
    found, root = fs.FileSystem.from_uri(location)
    return found, root.rstrip("/")


def old_files(location: str, older_than_s: float) -> Iterator[str]:
    """Data files of ours, by their paths below the location."""
    from pyarrow import fs

    filesystem, root = filesystem_of(location)
    before = time.time() - older_than_s
    for found in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        is_ours = found.base_name.startswith(FILE_PREFIX) and found.extension == "parquet"
        if found.is_file and is_ours and found.mtime is not None and found.mtime.timestamp() < before:
            yield found.path.removeprefix(root).lstrip("/")


def remove(location: str, paths: Sequence[str]) -> list[str]:
    filesystem, root = filesystem_of(location)
    for path in paths:
        try:
            filesystem.delete_file(f"{root}/{path}")
        except FileNotFoundError:
            continue
    return list(paths)
