"""The contract of `ister.raft.storage` at its sharpest corner: a crash between a snapshot and the cut log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ister.errors import InvariantBroken
from ister.raft import Entry, HardState, Membership, SnapshotMetadata, StoredState, entries_after
from tests.raft.memory_storage import MemoryStorage

SNAPSHOT = SnapshotMetadata(5, 3, Membership((1, 2, 3)))


def entries_of(first: int, terms: Sequence[int]) -> list[Entry]:
    return [Entry(term, first + place) for place, term in enumerate(terms)]


@pytest.mark.parametrize(
    ("first", "terms", "kept"),
    [
        (1, [1, 1, 2, 2, 3, 3, 4], [6, 7]),  # the snapshot is of this very log
        (1, [1, 1, 2, 2, 2, 2, 2], []),  # another entry where the snapshot ends: another history
        (1, [1, 1, 2], []),  # ends before the snapshot does
        (6, [3, 4], [6, 7]),  # begins right after it
        (1, [], []),
    ],
)
def test_only_what_goes_on_from_the_snapshot_is_kept(first: int, terms: list[int], kept: list[int]) -> None:
    assert [entry.index for entry in entries_after(SNAPSHOT, entries_of(first, terms))] == kept


def test_a_gap_after_the_snapshot_is_never_bridged() -> None:
    with pytest.raises(InvariantBroken, match="starts at 8, the snapshot ends at 5"):
        entries_after(SNAPSHOT, entries_of(8, [3]))


@pytest.mark.parametrize("old_terms", [[1, 1, 2, 2, 2, 2, 2], [1, 1, 2]], ids=["contradicts", "ends before"])
def test_an_entry_added_after_a_torn_install_survives_the_next_restart(old_terms: list[int]) -> None:
    """Found by seed 11083: what the snapshot replaced was still on the disk, and the entries that were added
    and acknowledged behind it went with it at the second restart."""
    storage = MemoryStorage(StoredState(HardState(3, 0, 0), entries_of(1, old_terms)))
    storage.write_chunk(SNAPSHOT, 0, b"state")
    storage.install_snapshot(SNAPSHOT)
    storage.crash(keep_count=0, torn_count=1)
    assert storage.load().entries == ()
    storage.append(HardState(4, 0, 5), entries_of(6, [4]))
    storage.sync()
    storage.crash(keep_count=0, torn_count=0)
    assert [entry.index for entry in storage.load().entries] == [6]
