"""The log against a plain list, and what an acknowledged write may claim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.errors import InvariantBroken, MetadataContradicts
from ister.raft import Entry
from ister.raft.log import RaftLog

TERMS = st.lists(st.integers(1, 6), max_size=30).map(sorted)


def entries_of(terms: list[int], first: int = 1) -> list[Entry]:
    return [Entry(term, first + place, data=b"x" * term) for place, term in enumerate(terms)]


@given(TERMS, st.integers(0, 30), st.integers(0, 31))
def test_hints_and_terms_agree_with_a_walk_over_the_entries(terms: list[int], compact: int, at: int) -> None:
    """5.3: the first index of the conflicting term, found without walking."""
    log = RaftLog(0, 0, entries_of(terms), commit=len(terms))
    log.hand_to_apply(1 << 30)
    compact = min(compact, len(terms))
    log.compact(compact)
    known = {index: term for index, term in enumerate(terms, start=1) if index > compact}
    for index in range(compact + 1, len(terms) + 3):
        assert log.term_at(index) == known.get(index)
    if at > len(terms):
        assert log.conflict_hint(at) == (0, len(terms) + 1)
    elif at > compact:
        first = min(index for index, term in known.items() if term == known[at])
        assert log.conflict_hint(at) == (known[at], first)
    for term in range(1, 8):
        where = [index for index, other in known.items() if other == term]
        base = compact if term == log.base_term else None
        assert log.last_index_of_term(term) == (max(where) if where else base)


@given(TERMS, st.integers(1, 31), TERMS)
def test_a_cut_log_goes_on_as_if_the_cut_part_had_never_been(
    terms: list[int], cut: int, more: list[int]
) -> None:
    log = RaftLog(0, 0, entries_of(terms), commit=0)
    cut = min(cut, len(terms) + 1)
    log.truncate_from(cut)
    added = [6 + term for term in more]
    log.append(entries_of(added, first=cut))
    fresh = RaftLog(0, 0, entries_of(terms[: cut - 1] + added), commit=0)
    everything = range(1, log.last_index + 1)
    assert log.last_index == fresh.last_index
    assert [log.conflict_hint(index) for index in everything] == [
        fresh.conflict_hint(index) for index in everything
    ]


def test_a_slice_is_bounded_in_bytes_and_never_empty() -> None:
    log = RaftLog(0, 0, [Entry(1, index, data=bytes(76)) for index in range(1, 11)], commit=0)
    assert [entry.index for entry in log.entries_from(3, 11, 250)] == [3, 4]
    assert [entry.index for entry in log.entries_from(3, 11, 1)] == [3]
    assert log.entries_from(11, 20, 1_000) == ()


def test_an_acknowledged_write_does_not_count_for_entries_that_replaced_it() -> None:
    """R1. The same (index, term) comes, is cut, and comes again; only the last write makes it durable."""
    log = RaftLog(0, 0, entries_of([1]), commit=1)
    log.append([Entry(2, 2)])
    log.hand_to_write(1)
    log.truncate_from(2)
    log.append([Entry(3, 2)])
    log.hand_to_write(2)
    log.truncate_from(2)
    log.append([Entry(4, 2)])
    log.hand_to_write(3)
    log.acknowledge_write(1)
    assert log.persisted == 1
    log.acknowledge_write(2)
    assert log.persisted == 1
    log.acknowledge_write(3)
    assert log.persisted == 2


def test_a_write_from_before_a_snapshot_does_not_count_past_it() -> None:
    log = RaftLog(0, 0, entries_of([1]), commit=1)
    log.append(entries_of([2] * 200, first=2))
    log.hand_to_write(1)
    log.restore(100, 3)
    log.append([Entry(3, 101)])
    log.acknowledge_write(1)
    assert log.persisted == 1
    log.hand_to_write(2)
    log.acknowledge_write(2)
    assert log.persisted == 101


def test_an_entry_is_applied_only_when_committed_and_durable_here() -> None:
    log = RaftLog(0, 0, (), commit=0)
    log.append(entries_of([1, 1, 1]))
    log.hand_to_write(1)
    log.commit_to(2)
    assert log.hand_to_apply(1_000) == ()
    log.acknowledge_write(1)
    assert [entry.index for entry in log.hand_to_apply(1_000)] == [1, 2]


def test_committed_entries_are_never_cut() -> None:
    log = RaftLog(0, 0, entries_of([1, 1, 1]), commit=2)
    with pytest.raises(MetadataContradicts, match="up to 2 were committed"):
        log.truncate_from(2)


def test_the_commit_index_never_goes_back() -> None:
    log = RaftLog(0, 0, entries_of([1, 1, 1]), commit=2)
    with pytest.raises(InvariantBroken, match="from 2 to 1"):
        log.commit_to(1)
    with pytest.raises(InvariantBroken, match="ends at 3"):
        log.commit_to(4)


def test_only_what_was_applied_is_compacted() -> None:
    log = RaftLog(0, 0, entries_of([1, 1, 1]), commit=3)
    with pytest.raises(InvariantBroken):
        log.compact(2)
