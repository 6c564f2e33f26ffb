"""A state machine for tests of the driver."""

from __future__ import annotations


class Words:
    """A state machine that remembers what it was told."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.index = 0

    def apply(self, index: int, data: bytes) -> int:
        self.skip(index)
        self.applied.append(data)
        return len(self.applied)

    def skip(self, index: int) -> None:
        assert index == self.index + 1
        self.index = index

    def to_bytes(self) -> bytes:
        return b"%d\n" % self.index + b"\n".join(self.applied)

    def restore(self, data: bytes) -> None:
        index, _, rest = data.partition(b"\n")
        self.index = int(index)
        self.applied = rest.split(b"\n") if rest else []
