"""What a ledger says: manifests, rebases, done marks; and their bytes.

One record each, a msgpack array that begins with the version of its form. A reader of a later form refuses
none of the earlier ones; one that meets a later form than its own stops.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec

from ister.errors import CorruptFrame, UnsupportedVersion

FORM: Final = 1


class Run(msgspec.Struct, array_like=True, frozen=True):
    """Neighbouring frames of one attempt for one target."""

    target: int
    """Its place among the manifest's targets."""
    start: int
    end: int
    """Offsets of the stage, from the first to before the second."""
    size: int
    """In bytes: what to ask for to get just these frames."""
    producer_id: int
    """Of the attempt: frames of anybody else are not meant."""

    @property
    def count(self) -> int:
        return self.end - self.start


class Target(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    uid: int
    epoch: int
    sequence: int
    """Of this batch's first record."""
    end_offset: int
    """Where the topic ended when the manifest was made: nothing of this batch lies before."""
    count: int
    """How many records this batch has for it."""


class Position(msgspec.Struct, array_like=True, frozen=True):
    """Where an identity stands behind a batch: kept for all targets of late, whether the batch has them or
    not, so that the newest manifest alone says how to go on."""

    uid: int
    epoch: int
    sequence: int


class Manifest(msgspec.Struct, array_like=True, frozen=True, tag=1):
    form: int
    batch: int
    stage: str
    stage_uid: int
    targets: list[Target]
    runs: list[Run]
    """In the order in which each target gets them."""
    positions: list[Position]
    note: str = ""
    """Of whoever commits, for itself."""
    cluster: str = ""
    """The id of the cluster that stage and targets are on (I1): a ledger that was carried to another one, by
    a copy of its records, decides nothing there. Empty if nobody says."""


class Rebase(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """From a record of a batch on, a target's log takes another identity: it forgot the one before. Its epoch
    is the ledger's offset at which this stands."""

    form: int
    batch: int
    uid: int
    record: int


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where records of a batch are in their target."""

    target: int
    record: int
    """The first one's number within the batch's records for this target."""
    offset: int
    count: int


class Done(msgspec.Struct, array_like=True, frozen=True, tag=3):
    form: int
    batch: int
    places: list[Place]
    """Of all records, or of those whose places are known: a target that was trimmed does not tell."""


Entry = Manifest | Rebase | Done


class Leg(NamedTuple):
    """The part of a batch's records for a target that goes under one identity."""

    record: int
    """The first one that does."""
    epoch: int
    sequence: int
    """Of that record."""


_decoder: Final[msgspec.msgpack.Decoder[Entry]] = msgspec.msgpack.Decoder(Manifest | Rebase | Done)


def encode_entry(entry: Entry) -> bytes:
    return msgspec.msgpack.encode(entry)


def decode_entry(topic: str, offset: int, value: bytes | None) -> Entry:
    try:
        found = _decoder.decode(value or b"")
    except msgspec.MsgspecError as error:
        raise CorruptFrame(
            f"the record at offset {offset} of {topic} is no entry of a ledger: {error}",
            hint="Nobody but the sink of Spark writes to this topic; a newer version of it may have.",
        ) from error
    if found.form > FORM:
        raise UnsupportedVersion(
            f"the record at offset {offset} of {topic} has form {found.form}; this build knows {FORM}",
            hint="Upgrade Ister where this query runs.",
        )
    return found


def producer_id(ledger_uid: int, target_uid: int, epoch: int) -> int:
    """Of whoever appends to a target by a ledger: the same for everybody who does (I3: uids, not names)."""
    seed = b"%d/%d/%d" % (ledger_uid, target_uid, epoch)
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "little") or 1
