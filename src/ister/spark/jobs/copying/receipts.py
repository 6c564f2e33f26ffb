"""A receipt of a replay: what was read, to the last bit, so that it can be asked for again.

It names the topic by its uid and the cluster's id, and has the checksum of what the records of each range
say. A replay by a receipt reads these very ranges and compares before it commits: it is identical, or it is
refused and says which offsets differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ister.errors import BadRequest, ReceiptMismatch
from ister.spark.jobs.copying.staging import Part
from ister.spark.jobs.lake.folders import sync_directory
from ister.spark.jobs.snapshot import Snapshot

FORM: Final = 1


class ReceiptRange(msgspec.Struct, frozen=True):
    start: int
    end: int
    checksum: str


class Receipt(msgspec.Struct, frozen=True):
    cluster: str
    topic: str
    uid: int
    ranges: list[ReceiptRange]
    """Neighbours, in order."""
    form: int = FORM
    revision: int = 0
    """Of the catalog of segments that it was read by; 0 where nobody noted it."""

    @property
    def start(self) -> int:
        return self.ranges[0].start if self.ranges else 0

    @property
    def end(self) -> int:
        return self.ranges[-1].end if self.ranges else 0

    @property
    def records(self) -> int:
        return self.end - self.start

    def check_source(self, snapshot: Snapshot) -> None:
        """The topic must be the one, and have all of it."""
        if (self.cluster, self.uid) != (snapshot.cluster, snapshot.uid):
            raise ReceiptMismatch(
                f"the receipt is of {self.topic} with uid {self.uid} of cluster {self.cluster}; "
                f"{snapshot.topic} has uid {snapshot.uid} of cluster {snapshot.cluster}",
            )
        if self.ranges and not snapshot.start <= self.start <= self.end <= snapshot.end:
            raise ReceiptMismatch(
                f"the receipt has offsets {self.start} to {self.end - 1} of {self.topic}, which has "
                f"{snapshot.start} to {snapshot.end - 1} now",
                offsets=(self.start, self.end),
            )

    def check_parts(self, parts: Sequence[Part]) -> None:
        for wanted, part in zip(self.ranges, parts, strict=True):
            if wanted.checksum != part.digest:
                raise ReceiptMismatch(
                    f"offsets {wanted.start} to {wanted.end - 1} of {self.topic} are not what the receipt "
                    f"has: their checksum is {part.digest}, there it is {wanted.checksum}",
                    offsets=(wanted.start, wanted.end),
                )


def receipt_of(snapshot: Snapshot, parts: Sequence[Part]) -> Receipt:
    ranges = [ReceiptRange(part.start, part.end, part.digest) for part in parts]
    return Receipt(snapshot.cluster, snapshot.topic, snapshot.uid, ranges, revision=snapshot.revision)


def read_receipt(path: Path) -> Receipt:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError) as error:
        raise BadRequest(
            f"{path} is no receipt: {error}", hint="Name one that a replay has written."
        ) from error
    if found.form != FORM:
        raise BadRequest(
            f"{path} has a receipt of form {found.form}, this build knows {FORM}", hint="Upgrade Ister."
        )
    return found


def write_receipt(path: Path, receipt: Receipt) -> None:
    """All of it or none, and durably: a reader never finds half of one."""
    aside = path.with_name(f".{path.name}.part")
    with aside.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(receipt), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)
