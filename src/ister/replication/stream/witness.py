"""Which logs may be missing here without anybody having lost anything (P3).

A replica's log that is not there is a doubt: it may have been there, and what it had may have been
acknowledged. Not so if no process before this one can have known of the segment, and this one has made no log
of it since: then nothing was ever acknowledged from here.
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

    def was_there_at_the_opening(self, segment_uid: int) -> bool:
        """Whether this process is the first on this disk that knows of the segment."""
        return segment_uid > self._metadata.last_index_found

    def has_made_none(self, segment_uid: int) -> bool:
        """Whether no log of this segment was ever made on this disk."""
        return self.was_there_at_the_opening(segment_uid) and segment_uid not in self._made

    def forget(self, segment_uids: Iterable[int]) -> None:
        """They are not open any more."""
        self._made.difference_update(segment_uids)
