"""A topic to tier, and its table read back by the format's own library: nothing of ours is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_numbers = count()

DAY_US = 86_400_000_000
FIRST_DAY_US = 1_763_510_400_000_000
"""2025-11-19."""


def new_topic(stem: str) -> str:
    """No two tests have one."""
    return f"{stem}-{next(_numbers)}"


def numbered(start: int, end: int) -> list[bytes]:
    return [b"record %d" % number for number in range(start, end)]


def read_delta(path: Path | str) -> pa.Table:
    from deltalake import DeltaTable

    return _by_offset(DeltaTable(str(path)).to_pyarrow_table())


def read_iceberg(path: Path | str, name: str) -> pa.Table:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("ister", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    return _by_offset(catalog.load_table(name).scan().to_arrow())


def read_parquet(path: Path | str) -> pa.Table:
    """By its manifest, which is plain JSON."""
    root = Path(path)
    commits = [json.loads(each.read_text()) for each in sorted((root / "_ister" / "commits").glob("*.json"))]
    gone = {path for commit in commits for path in commit.get("removes", ())}
    files = [file["path"] for commit in commits for file in commit["files"] if file["path"] not in gone]
    tables = [pq.ParquetFile(root / each).read() for each in files]
    return _by_offset(pa.concat_tables(tables)) if tables else pa.table({"offset": []})


def read_table(to: str, path: Path | str, topic: str) -> pa.Table:
    if to == "iceberg":
        return read_iceberg(path, f"default.{topic}")
    return read_delta(path) if to == "delta" else read_parquet(path)


def data_files(path: Path | str) -> list[Path]:
    """All that are there, whether a commit names them or not."""
    return sorted(Path(path).rglob("ister-*.parquet"))


def _by_offset(table: pa.Table) -> pa.Table:
    return table.sort_by("offset")


def values_of(table: pa.Table) -> list[Any]:
    return table.column("value").to_pylist()


def offsets_of(table: pa.Table) -> Sequence[int]:
    found: list[int] = table.column("offset").to_pylist()
    return found


def flip_a_byte(data_dir: Path, behind: bytes) -> None:
    """In the one file of a stopped broker that has these bytes: the last of them."""
    (path,) = [each for each in data_dir.rglob("*") if each.is_file() and behind in each.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(behind) + len(behind) - 1] ^= 0x01
    path.write_bytes(data)
