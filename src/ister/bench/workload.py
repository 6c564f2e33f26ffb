"""What a bench is asked to do, and the records that it does it with.

Records are the digits of a hash: the same in every run, and of no use to a disk or a link that compresses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from ister.errors import ConfigError

_DISTINCT_BATCHES: Final = 4


@dataclass(frozen=True)
class Workload:
    """One mode's measure of work. `records` is for each repetition of each measured phase."""

    records: int
    size: int
    """Bytes of a record's value."""
    batch: int
    """Records of one append."""
    in_flight: int
    """Appends that wait for their answers at a time; of each connection, where there are several."""
    topics: int = 1
    connections: int = 1
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < (0 if name == "size" else 1):
                raise ConfigError(f"{name} is {value}", hint=f"Give a --{name.replace('_', '-')} above 0.")

    @property
    def batch_records(self) -> int:
        return min(self.batch, self.records)

    @property
    def batch_count(self) -> int:
        """Whole batches: what does not fill one is left out, so that all of them are alike."""
        return self.records // self.batch_records

    @property
    def total_records(self) -> int:
        return self.batch_count * self.batch_records

    def batches(self) -> list[list[bytes]]:
        """A few different ones, to be sent in turn; made before the clock starts."""
        return [records_like(number, self.batch_records, self.size) for number in range(_DISTINCT_BATCHES)]


def records_like(number: int, count: int, size: int) -> list[bytes]:
    data = hashlib.shake_128(number.to_bytes(8, "little")).digest(count * size) if size else b""
    return [data[place * size : (place + 1) * size] for place in range(count)]
