"""The log in memory: the entries since the newest compaction; how far they are written, committed, applied.

The marks, each an index, are in this order:

    compacted  <=  applied handed out  <=  committed  <=  last
    compacted  <=  persisted  <=  handed out to be written  <=  last

(For the moment between taking in a snapshot and its being durable, `persisted` is behind `compacted`.)

An entry is handed out for applying only when it is both committed and persisted here, so that a snapshot of
the state machine is never ahead of this node's own durable log.

Writes are acknowledged by number. Between handing a write out and its acknowledgement a new leader may
replace the entries; an acknowledgement of the old ones must not count for the new ones, even if index and
term agree again by then. So a truncation shortens what every outstanding write may later claim.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

from ister.errors import MetadataContradicts, invariant
from ister.raft.messages import Entry


class RaftLog:
    """Entries `first_index` to `last_index`, with the (index, term) that goes right before them."""

    __slots__ = (
        "_entries",
        "_outstanding",
        "_term_starts",
        "_terms",
        "base_index",
        "base_term",
        "commit",
        "handed_to_apply",
        "handed_to_write",
        "last_index",
        "persisted",
    )

    def __init__(self, base_index: int, base_term: int, entries: Sequence[Entry], commit: int) -> None:
        self.base_index = base_index
        self.base_term = base_term
        self.last_index = base_index
        self._entries: list[Entry] = []
        # The runs of equal terms: finding the first or last entry of a term costs a bisection, not a walk.
        self._terms: list[int] = []
        self._term_starts: list[int] = []
        self._outstanding: deque[list[int]] = deque()
        self.append(entries)
        self.commit = max(base_index, min(commit, self.last_index))
        self.handed_to_apply = base_index
        self.handed_to_write = self.persisted = self.last_index

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of the entry there; None if it is compacted away or not written yet."""
        place = index - self.base_index - 1
        if 0 <= place < len(self._entries):
            return self._entries[place].term
        return self.base_term if place == -1 else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Is a log that ends there at least as complete as this one (5.4.1)?"""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def entries_from(self, start: int, end: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `start` to before `end`: about `max_bytes` of them, at least one if there is one."""
        invariant(
            start > self.base_index, f"entry {start} is compacted; the log starts at {self.first_index}"
        )
        first = start - self.base_index - 1
        stop = min(end, self.last_index + 1) - self.base_index - 1
        if stop - first <= 1:
            return tuple(self._entries[first:stop])
        taken = first
        while taken < stop:
            max_bytes -= self._entries[taken].size
            if max_bytes < 0 and taken > first:
                break
            taken += 1
        return tuple(self._entries[first:taken])

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries at the end."""
        last_term = self.last_term
        for entry in entries:
            invariant(
                entry.index == self.last_index + 1 and entry.term >= last_term,
                f"entry {entry.index} of term {entry.term} can't follow {self.last_index} of {last_term}",
            )
            if entry.term != last_term or not self._terms:
                self._terms.append(entry.term)
                self._term_starts.append(entry.index)
                last_term = entry.term
            self._entries.append(entry)
            self.last_index = entry.index

    def truncate_from(self, index: int) -> None:
        """Drop the entry there and all after it. Committed ones never go."""
        if index <= self.commit:
            raise MetadataContradicts(
                f"the leader has another entry {index} than this node, which knows that entries up to "
                f"{self.commit} were committed"
            )
        del self._entries[index - self.base_index - 1 :]
        while self._term_starts and self._term_starts[-1] >= index:
            self._term_starts.pop()
            self._terms.pop()
        self.last_index = index - 1
        self._forget_writes_after(index - 1)

    def _forget_writes_after(self, index: int) -> None:
        self.handed_to_write = min(self.handed_to_write, index)
        self.persisted = min(self.persisted, index)
        for write in self._outstanding:
            write[1] = min(write[1], index)

    def commit_to(self, index: int) -> None:
        invariant(index >= self.commit, f"the commit index can't go back from {self.commit} to {index}")
        invariant(index <= self.last_index, f"committing {index}, but the log ends at {self.last_index}")
        self.commit = index

    # What a refused append tells the leader (5.3, last paragraphs).

    def conflict_hint(self, index: int) -> tuple[int, int]:
        """(term, first index of that term) of the entry there; (0, end) if the log ends before it."""
        if index > self.last_index:
            return 0, self.last_index + 1
        if index <= self.base_index:
            return self.base_term, self.base_index
        run = bisect_right(self._term_starts, index) - 1
        return self._terms[run], self._term_starts[run]

    def last_index_of_term(self, term: int) -> int | None:
        """Where that term's entries end in this log; None if it has none of them."""
        run = bisect_left(self._terms, term)
        if run == len(self._terms) or self._terms[run] != term:
            return self.base_index if term == self.base_term else None
        return self._term_starts[run + 1] - 1 if run + 1 < len(self._terms) else self.last_index

    # Writing and applying.

    @property
    def has_unwritten(self) -> bool:
        return self.handed_to_write < self.last_index

    def hand_to_write(self, number: int) -> tuple[Entry, ...]:
        """The entries not handed out yet, as part of write `number`."""
        unwritten = (
            tuple(self._entries[self.handed_to_write - self.base_index :]) if self.has_unwritten else ()
        )
        self.handed_to_write = self.last_index
        self._outstanding.append([number, self.last_index])
        return unwritten

    def acknowledge_write(self, number: int) -> None:
        """Writes up to `number` are durable, in order."""
        while self._outstanding and self._outstanding[0][0] <= number:
            self.persisted = max(self.persisted, self._outstanding.popleft()[1])

    @property
    def appliable(self) -> int:
        return min(self.commit, self.persisted)

    def hand_to_apply(self, max_bytes: int) -> tuple[Entry, ...]:
        if self.appliable <= self.handed_to_apply:
            return ()
        entries = self.entries_from(self.handed_to_apply + 1, self.appliable + 1, max_bytes)
        self.handed_to_apply = entries[-1].index
        return entries

    # Snapshots.

    def restore(self, index: int, term: int) -> None:
        """A snapshot replaces everything. It counts as persisted when its write is acknowledged."""
        invariant(index > self.commit, f"restoring a snapshot at {index}, behind the commit at {self.commit}")
        self._forget_writes_after(self.commit)
        self._entries.clear()
        self._terms.clear()
        self._term_starts.clear()
        self.base_index = self.last_index = self.commit = self.handed_to_apply = self.handed_to_write = index
        self.base_term = term

    def compact(self, index: int) -> None:
        """Drop entries up to `index`; all of them were handed out to be applied."""
        invariant(
            index <= self.handed_to_apply, f"compacting {index}, applied only to {self.handed_to_apply}"
        )
        if index <= self.base_index:
            return
        term = self.term_at(index)
        invariant(term is not None, f"compacting {index}, past the end at {self.last_index}")
        del self._entries[: index - self.base_index]
        self.base_index, self.base_term = index, term or 0
        run = bisect_right(self._term_starts, index + 1) - 1
        del self._terms[:run], self._term_starts[:run]
        if self._entries:
            self._term_starts[0] = index + 1
        else:
            self._terms.clear()
            self._term_starts.clear()
