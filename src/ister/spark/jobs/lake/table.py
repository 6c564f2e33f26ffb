"""What a table of a topic's records is, whatever its format: its files, and how far it has come.

What can fail: a job dies after its files and before its commit; a commit is repeated, or its answer is lost;
two jobs tier into one table at once; the topic is deleted and made again under its name. What every format
here promises then:

- How far the table has come is in the table's own commit, with the files of those offsets: never one without
  the other. Files that no commit names are in no table; the vacuum removes them.
- A commit says from where to where it goes, and is taken only if the table is at exactly that place: of two
  that begin at one offset, one is taken. The other adds nothing.
- The table says which topic it has, by cluster and uid and not by name alone (I3).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ister.errors import TableMismatch

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = "records"
DEAD_LETTERS = "dead letters"
FILE_PREFIX = "ister-"
"""Of every data file that a job writes: a vacuum looks at no others."""

PARTITION_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "none": (),
    "date": ("date",),
    "hour": ("date", "hour"),
}
"""By what the table's origin says. Each is a folder of the files, `name=value`."""

UNKNOWN = -1
"""Of a number that the table's format keeps for each file, and did not keep for this one."""


@dataclass(frozen=True)
class Origin:
    """What a table is made of, written into it when it is made and never changed."""

    cluster: str
    topic: str
    uid: int
    holds: str = RECORDS
    partition_by: str = "none"
    decode: str = "none"
    schema: str = ""
    """What values are decoded by, as the job was given it."""
    nested: bool = False

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Origin:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Coverage:
    """Which offsets a table has: from `first` to before `next`, without the gaps."""

    first: int
    next: int
    gaps: tuple[tuple[int, int], ...] = ()
    """Offsets that were not there when their turn came, and that the job was told to do without."""

    def to_object(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_object(cls, found: Mapping[str, Any]) -> Coverage:
        return cls(found["first"], found["next"], tuple((low, high) for low, high in found["gaps"]))


def joined_gaps(gaps: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same offsets in as few gaps as they take."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(gaps):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple(found)


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a table, or one that is to become that."""

    path: str
    """Below the table's location."""
    size: int
    records: int
    first_offset: int
    last_offset: int
    """The highest one in it; not all in between need be."""
    first_time_us: int = 0
    last_time_us: int = 0
    partition: tuple[tuple[str, str], ...] = ()

    def to_object(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_object(cls, found: Mapping[str, Any]) -> DataFile:
        return cls(**{**found, "partition": tuple((name, value) for name, value in found["partition"])})


class LakeTable(Protocol):
    """One table, open."""

    @property
    def location(self) -> str:
        """Where its data files are: a path or a URI, as executors are to use it."""

    @property
    def has_partition_columns(self) -> bool:
        """Whether the columns it is partitioned by are ones of its own, left out of the files."""

    def origin(self) -> Origin: ...

    def coverage(self) -> Coverage | None:
        """How far it has come, looked up anew; None if nothing was ever committed."""

    def commit(self, files: Sequence[DataFile], before: Coverage | None, after: Coverage) -> bool:
        """Add the files, and say that the table is at `after` now. False, with nothing done, if it is not
        at `before` any more."""

    def files(self) -> list[DataFile]:
        """All that the table has now."""

    def compact(self, file_bytes: int) -> tuple[int, int] | None:
        """Put files of about this size in the place of smaller ones, by the format's own library: how many
        went, and how many came. None where it can't, and `replace` is the way."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile]) -> bool:
        """Put files in the place of others that have the same rows; how far the table is stays as it is.
        False, with nothing done, if somebody else has changed the table meanwhile."""

    def expire(self, older_than_s: float) -> int:
        """Forget versions of the table that are older than this: nobody can read them any more, and `vacuum`
        removes what only they had. How many there were."""

    def schema(self) -> pa.Schema:
        """Its columns, those that it is partitioned by included."""

    def vacuum(self, older_than_s: float) -> list[str]:
        """Remove files of ours that no commit names and that are older than this; says which."""


def check_same(name: str, found: Origin, wanted: Origin) -> None:
    """Raises unless the table is of that topic, and was made in that way."""
    if (found.cluster, found.topic, found.uid) != (wanted.cluster, wanted.topic, wanted.uid):
        if found.topic == wanted.topic and found.cluster == wanted.cluster:
            what = (
                f"it has records of {found.topic} with uid {found.uid}, which was deleted; the topic "
                f"that has the name now has uid {wanted.uid}"
            )
        elif found.topic == wanted.topic:
            what = f"it has records of {found.topic} of the cluster {found.cluster}, not of {wanted.cluster}"
        else:
            what = f"it has records of {found.topic}, not of {wanted.topic}"
        raise TableMismatch(f"the table {name} is another topic's: {what}")
    if found != wanted:
        differing = [
            f"{key} {ours!r}, not {theirs!r}" if len(f"{ours}{theirs}") < 60 else f"another {key}"
            for key, ours in asdict(found).items()
            if ours != (theirs := asdict(wanted)[key])
        ]
        raise TableMismatch(
            f"the table {name} was made with {'; '.join(differing)}",
            hint="Give the options that it was made with, or another --path for a table of its own.",
        )
