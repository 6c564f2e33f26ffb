"""A snapshot as a file: header with checksum, metadata, data.

Fault model: the file may be cut short or rot; both are found when it is opened, and are an error. One that is
being written or received has another name, and takes its place by a rename after it was synced.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ister.errors import CorruptSegment
from ister.frame import crc32c
from ister.io.disk import Disk, File, read_whole
from ister.raft.messages import SnapshotMetadata

DIRECTORY = "raft"
SNAPSHOT = f"{DIRECTORY}/snapshot"
ASIDE = f"{SNAPSHOT}.new"
INCOMING = f"{DIRECTORY}/incoming"
RESTORE_HINT = (
    "Restore the raft folder from a copy, or remove this node from the cluster and let it join anew."
)

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"ISTR"


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """A snapshot that is durable in a file aside, to be adopted."""

    metadata: SnapshotMetadata
    size: int
    file: File


class StoredSnapshot:
    """A snapshot file: header with checksum, metadata, data. Read in pieces, verified when opened.

    The file stays readable when a newer one takes its place, and is closed with the last one who holds this.
    """

    def __init__(self, file: File, metadata: SnapshotMetadata, start: int, size: int) -> None:
        self._file = file
        self.metadata = metadata
        self._start = start
        self.size = size
        self._is_open = True

    def read(self, position: int, count: int) -> bytes:
        return self._file.read(min(count, self.size - position), self._start + position)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.close()

    def __del__(self) -> None:
        with suppress(OSError):  # of a simulated process that is dead
            self.close()

    @classmethod
    def header(cls, metadata: SnapshotMetadata, data: bytes) -> tuple[bytes, bytes]:
        """What goes before the data."""
        encoded = msgspec.msgpack.encode(metadata)
        return _HEADER.pack(_MAGIC, crc32c(data, crc32c(encoded)), len(encoded), len(data)), encoded

    @classmethod
    def data_start(cls, metadata: SnapshotMetadata) -> int:
        return _HEADER.size + len(msgspec.msgpack.encode(metadata))

    @classmethod
    def finish(cls, disk: Disk, file: File, path: str, metadata: SnapshotMetadata, size: int) -> None:
        """The data is written: add the header, sync, and put it in place of the one before."""
        file.write(cls.header(metadata, file.read(size, cls.data_start(metadata))), 0)
        file.sync()
        file.close()
        disk.rename(path, SNAPSHOT)
        disk.sync_directory(DIRECTORY)

    @classmethod
    def open(cls, disk: Disk, path: str) -> StoredSnapshot:
        data = read_whole(disk, path)
        if len(data) < _HEADER.size:
            raise CorruptSegment(f"the metadata snapshot has only {len(data)} bytes", hint=RESTORE_HINT)
        magic, crc, metadata_size, size = _HEADER.unpack_from(data)
        start = _HEADER.size + metadata_size
        body = memoryview(data)[_HEADER.size : start + size]
        if magic != _MAGIC or len(body) != metadata_size + size or crc32c(body) != crc:
            raise CorruptSegment("the metadata snapshot does not match its checksum", hint=RESTORE_HINT)
        metadata = msgspec.msgpack.decode(body[:metadata_size], type=SnapshotMetadata)
        return cls(disk.open(path), metadata, start, size)
