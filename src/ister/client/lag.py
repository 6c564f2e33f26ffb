"""How far a reader is behind a topic: in records, and in time.

In time it is the age of the first record that it has not read: by that somebody who reads its results can say
how old they are. It costs a fetch of one frame for each reader that is behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ister.errors import IsterError

if TYPE_CHECKING:
    from ister.client.log import Log


class Lag(msgspec.Struct, frozen=True):
    offset: int
    """The next one that the reader needs."""
    start: int
    end: int
    """Where the topic begins and ends."""
    seconds: float | None
    """The age of the record at `offset`; 0 at the end, None if nobody can say."""

    @property
    def records(self) -> int:
        return max(0, self.end - self.offset)

    @property
    def lost(self) -> int:
        """Records that the reader needed and that are trimmed."""
        return max(0, self.start - self.offset)


async def lag_of(log: Log, topic: str, offset: int, now_us: int) -> Lag:
    start, end = await log.offsets_at(topic, "earliest"), await log.offsets_at(topic, "latest")
    if offset >= end:
        return Lag(offset, start, end, 0.0)
    return Lag(offset, start, end, await _age(log, topic, max(start, offset), now_us))


async def _age(log: Log, topic: str, offset: int, now_us: int) -> float | None:
    try:
        async for frame in log.read(topic, start=offset, end=offset + 1, max_bytes=1).frames():
            return max(0.0, (now_us - frame.header.append_time_us) / 1e6)
    except IsterError:
        pass  # trimmed at this moment, or damaged: how many records it is behind can be said all the same
    return None
