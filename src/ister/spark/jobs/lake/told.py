"""What goes wrong in a table's library or in the store below it, told as an error of ours.

Each library and each store has errors of its own, some of many lines. What was asked for may have been done
all the same: a job that is run again sees by the table's own commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ister.errors import DependencyMissing, StoreUnavailable
from ister.spark.jobs.lake.table import Coverage, DataFile, LakeTable, Origin

if TYPE_CHECKING:
    import pyarrow as pa

_LIBRARIES: Final = ("deltalake", "_internal", "pyiceberg", "pyarrow", "sqlalchemy", "sqlite3", "requests")
"""`_internal` is what Delta's errors say that they are of."""
_DECORATION: Final = re.compile(r"\x1b\[\d*m|\u21b3|\s+")
_USER: Final = re.compile(r"//[^\s'\"]*@")
_SHOWN_CHARACTERS: Final = 400


@contextmanager
def told(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, ImportError) or type(error).__name__ == "NotInstalledError":
            raise DependencyMissing(
                f"the table {name} can't be reached: {shown(error)}",
                hint="Catalogs have drivers of their own, which ister[lake] does not bring: install the one "
                "that is named, where the job is started.",
            ) from error
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        raise StoreUnavailable(
            f"the table {name} can't be reached: {shown(error)}",
            hint="Check the path, the rights to it, and the credentials of the store. How far the table is "
            "lies in its own commits: the next run goes on from there.",
        ) from error


def shown(error: Exception) -> str:
    """In one line, and without the credentials of a URL."""
    said = " ".join(_DECORATION.sub(" ", _USER.sub("//", str(error))).split())[:_SHOWN_CHARACTERS]
    return said or type(error).__name__


class ToldTable:
    """A table of any format."""

    def __init__(self, name: str, table: LakeTable) -> None:
        self._name = name
        self._table = table

    @property
    def location(self) -> str:
        return self._table.location

    @property
    def has_partition_columns(self) -> bool:
        return self._table.has_partition_columns

    def origin(self) -> Origin:
        return self._table.origin()

    def coverage(self) -> Coverage | None:
        with told(self._name):
            return self._table.coverage()

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        with told(self._name):
            return self._table.commit(files, before, after)

    def files(self) -> list[DataFile]:
        with told(self._name):
            return self._table.files()

    def compact(self, file_bytes: int) -> tuple[int, int] | None:
        with told(self._name):
            return self._table.compact(file_bytes)

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        with told(self._name):
            return self._table.replace(old, new)

    def expire(self, older_than_s: float) -> int:
        with told(self._name):
            return self._table.expire(older_than_s)

    def schema(self) -> pa.Schema:
        return self._table.schema()

    def vacuum(self, older_than_s: float) -> list[str]:
        with told(self._name):
            return self._table.vacuum(older_than_s)
