"""Whose data directory this is: cluster, node, disk, and how often it was started (I1, I2).

`ister.json` is written once, when the directory is made, and again at each start with the start number
raised, which later exposes a directory that was copied. No two starts may have the same number: what a dead
process proposed to the cluster is told from its successor's doings by it. On a full disk the file cannot be
replaced; then the number goes into `starts`, whose few bytes are there since the directory was made.

A directory is refused if it is in use, another node's, written by a newer format, or holds files that are not
ours.
"""

from __future__ import annotations

import errno
import logging
import struct

import msgspec

from ister.errors import DataDirectoryError
from ister.frame import crc32c
from ister.io.clock import Clock
from ister.io.disk import Disk, read_whole, write_whole

log = logging.getLogger("ister.broker.directory")

FORMAT = 2
IDENTITY_FILE = "ister.json"
LOCK_FILE = "lock"
STARTS_FILE = "starts"
_OURS = frozenset(
    {
        IDENTITY_FILE,
        IDENTITY_FILE + ".new",
        LOCK_FILE,
        STARTS_FILE,
        STARTS_FILE + ".new",
        "raft",
        "segments",
        "lost+found",
    }
)
_SLOT = struct.Struct("<QI")
_SLOT_BYTES = 512
"""Two of them, a sector each, written in turn: a torn write leaves the number before."""


class DirectoryIdentity(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str
    """Empty until this node has founded a cluster or was let into one."""
    node_id: int
    disk_id: str
    starts: int
    is_founder: bool = False
    has_raft: bool = False
    """Whether raft/ was made. From then on a missing one is a loss, not a beginning: a node that forgot its
    votes must not come back as the same member (I2)."""


def claim_directory(disk: Disk, clock: Clock, node_id: int) -> DirectoryIdentity:
    """Lock the directory and say whose it is; a new one becomes this node's, and is of no cluster yet."""
    if not disk.lock(LOCK_FILE):
        raise DataDirectoryError(
            f"data directory {disk.location} is in use by another process",
            hint="Stop the other broker, or give this one a directory of its own with --data-dir.",
        )
    identity = _load(disk) if disk.exists(IDENTITY_FILE) else _make(disk, clock, node_id)
    if identity.node_id != node_id and _is_unused(disk, identity):
        # A first start that was let into no cluster, say because its number was taken: begin anew, with a
        # disk id of its own, in case the cluster has noted the old one after all.
        identity = _make(disk, clock, node_id)
    if identity.node_id != node_id:
        raise DataDirectoryError(
            f"data directory {disk.location} belongs to node {identity.node_id}, this is node {node_id}",
            hint=f"Start with --node-id {identity.node_id}, or with another --data-dir.",
        )
    is_new = identity.starts == 0
    starts = max(identity.starts, _starts_in_place(disk)) + 1
    identity = msgspec.structs.replace(identity, starts=starts)
    try:
        if not disk.exists(STARTS_FILE):
            write_whole(disk, STARTS_FILE, bytes(2 * _SLOT_BYTES))
        save_identity(disk, identity)
    except OSError as error:
        if is_new or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # A broker must start on a full disk: retention may be what makes room (P5).
        log.warning("the number of this start is kept aside: %s", error)
        _number_in_place(disk, starts)
    return identity


def _number_in_place(disk: Disk, starts: int) -> None:
    """Durable without a byte of new space."""
    try:
        file = disk.open(STARTS_FILE)
        try:
            number = starts.to_bytes(8, "little")
            file.write([_SLOT.pack(starts, crc32c(number))], starts % 2 * _SLOT_BYTES)
            file.sync()
        finally:
            file.close()
    except OSError as error:
        raise DataDirectoryError(
            f"the number of this start cannot be written to {disk.location}: {error}",
            hint="Free a little space on this disk, then start the broker again.",
        ) from error


def _starts_in_place(disk: Disk) -> int:
    """The number of the last start that found no room elsewhere; 0 if there was none."""
    if not disk.exists(STARTS_FILE):
        return 0
    data, found = read_whole(disk, STARTS_FILE), 0
    for position in (0, _SLOT_BYTES):
        if len(data) >= position + _SLOT.size:
            starts, crc = _SLOT.unpack_from(data, position)
            if starts and crc == crc32c(starts.to_bytes(8, "little")):
                found = max(found, starts)
    return found


def _is_unused(disk: Disk, identity: DirectoryIdentity) -> bool:
    """Whether nothing was ever promised from this directory."""
    was_in = identity.cluster_id or identity.is_founder or identity.has_raft
    return not (was_in or disk.list("segments") or disk.list("raft"))


def save_identity(disk: Disk, identity: DirectoryIdentity) -> None:
    write_whole(disk, IDENTITY_FILE, msgspec.json.format(msgspec.json.encode(identity)))


def _load(disk: Disk) -> DirectoryIdentity:
    data = read_whole(disk, IDENTITY_FILE)
    try:
        version = msgspec.json.decode(data, type=dict)["format"]
        if version != FORMAT:
            raise DataDirectoryError(
                f"data directory {disk.location} has format {version}, this build reads format {FORMAT}",
                hint="Start it with the version of Ister that wrote it, or a newer one.",
            )
        return msgspec.json.decode(data, type=DirectoryIdentity)
    except (msgspec.DecodeError, KeyError) as error:
        raise DataDirectoryError(
            f"{disk.location}/{IDENTITY_FILE} cannot be read: {error}",
            hint="Restore the file from a copy. It is not made anew over data that may be another node's.",
        ) from error


def _make(disk: Disk, clock: Clock, node_id: int) -> DirectoryIdentity:
    found = [name for name in disk.list("") if name not in _OURS]
    if found or disk.list("segments") or disk.list("raft"):
        raise DataDirectoryError(
            f"{disk.location} is neither empty nor a data directory: it has no {IDENTITY_FILE}, but "
            f"{', '.join(found[:5]) or 'segments'}",
            hint="Choose an empty or new directory with --data-dir, or restore the missing file.",
        )
    return DirectoryIdentity(FORMAT, "", node_id, f"{clock.token():016x}", 0)
