"""Which logs may be missing here without anybody having lost anything (P3).

A replica's log that is not there is a doubt: it may have been there, and what it had may have been
acknowledged. Not so if this very process was there when the segment was opened, and has made no log of it
since: then nothing was ever acknowledged from here.
"""

from __future__ import annotations

from collections.abc import Iterable

from ister.metadata.store import MetadataStore


class Witness:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._made: set[int] = set()

    def made(self, segment_uid: int) -> None:
        """There is a log of it now."""
        self._made.add(segment_uid)

    def has_made_none(self, segment_uid: int) -> bool:
        """Whether no log of this segment was ever made on this disk."""
        announced_at = self._metadata.announced_at
        return announced_at is not None and announced_at < segment_uid and segment_uid not in self._made

    def forget(self, segment_uids: Iterable[int]) -> None:
        """They are not open any more."""
        self._made.difference_update(segment_uids)
