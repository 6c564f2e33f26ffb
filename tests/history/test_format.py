"""The format of an object: what goes in comes out, and whatever changes on the way is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.errors import CorruptSegment
from ister.frame import crc32c, encode, stamp
from ister.history.format import (
    MAX_PLACES,
    TRAILER_SIZE,
    Exported,
    FramesOf,
    index_interval,
    object_crc,
    read_footer,
)
from ister.history.names import ObjectName, parse_name, prefix_of
from ister.wal.side_file import INDEX_INTERVAL_BYTES

UID = 77


def frames(sizes: list[int], base: int = 100, uid: int = UID) -> list[bytes]:
    """One frame for each, of so many records."""
    made = []
    for number, count in enumerate(sizes):
        frame = bytearray(encode([b"%d" % (base + record) for record in range(count)]))
        stamp(frame, base, uid, 1_000 + 10 * number)
        base += count
        made.append(bytes(frame))
    return made


def segment_of(data: list[bytes], end: int, base: int = 100) -> Exported:
    return Exported("c1", "default/t", 5, 3, UID, base, end, sum(map(len, data)))


def made_of(data: list[bytes], end: int) -> bytes:
    taking = FramesOf(segment_of(data, end), "a log")
    whole = b"".join(data)
    assert taking.take(whole) == len(whole)
    return whole + taking.ending()


sizes = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(sizes)
def test_a_footer_says_what_the_frames_are(counts: list[int]) -> None:
    data = frames(counts)
    built = made_of(data, 100 + sum(counts))
    footer = read_footer(built, len(built), "it")
    assert built[: footer.frames_size] == b"".join(data)
    assert (footer.start_offset, footer.end_offset, footer.frames) == (100, 100 + sum(counts), len(counts))
    assert (footer.first_append_time_us, footer.last_append_time_us) == (1_000, 990 + 10 * len(counts))
    assert (footer.topic_uid, footer.segment_uid, footer.cluster_id) == (5, UID, "c1")


@given(sizes, st.data())
def test_frames_may_come_in_pieces_of_any_size(counts: list[int], data: st.DataObject) -> None:
    whole = b"".join(frames(counts))
    end = 100 + sum(counts)
    taking, position = FramesOf(segment_of([whole], end), "a log"), 0
    while position < len(whole):
        length = data.draw(st.integers(1, 400))
        piece = whole[position : position + length]
        taken = taking.take(piece)
        while not taken:
            assert taking.missing > 0
            piece = whole[position : position + len(piece) + taking.missing]
            taken = taking.take(piece)
        position += taken
    assert whole + taking.ending() == made_of([whole], end)


@settings(max_examples=300)
@given(sizes, st.data())
def test_a_changed_bit_anywhere_is_noticed_by_who_reads_it_all(
    counts: list[int], data: st.DataObject
) -> None:
    built = bytearray(made_of(frames(counts), 100 + sum(counts)))
    at = data.draw(st.integers(0, len(built) - 1))
    built[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptSegment):
        _read_all(bytes(built), segment_of(frames(counts), 100 + sum(counts)))


@given(sizes, st.data())
def test_an_object_that_was_cut_short_is_noticed(counts: list[int], data: st.DataObject) -> None:
    built = made_of(frames(counts), 100 + sum(counts))
    kept = data.draw(st.integers(0, len(built) - 1))
    with pytest.raises(CorruptSegment):
        read_footer(built[:kept], kept, "it")


def _read_all(built: bytes, segment: Exported) -> None:
    footer = read_footer(built, len(built), "it")
    taking = FramesOf(segment, "it")
    if taking.take(built[: footer.frames_size]) != footer.frames_size:
        raise taking.damaged("it ends early")
    if taking.ending() != built[footer.frames_size :]:
        raise taking.damaged("the footer is another")


def test_frames_of_another_segment_or_with_a_gap_make_no_object() -> None:
    first, second, third = frames([2, 2, 2])
    for wrong in ([first, third], [second, third], [*frames([2], uid=78)], [first, first]):
        taking = FramesOf(segment_of([first, second, third], 106), "a log")
        with pytest.raises(CorruptSegment):
            taking.take(b"".join(wrong))


def test_a_log_that_is_short_of_its_segment_makes_no_object() -> None:
    data = frames([2, 2])
    taking = FramesOf(segment_of(data, 106), "a log")
    taking.take(b"".join(data))
    with pytest.raises(CorruptSegment, match="ends at offset 104"):
        taking.ending()


def test_the_checksum_is_of_all_that_lies_before_it() -> None:
    built = made_of(frames([3, 1]), 104)
    assert object_crc(built) == crc32c(built[: -TRAILER_SIZE + 8])


def test_a_large_segment_has_a_bounded_index() -> None:
    for size in (1, 1 << 20, 1 << 32, 1 << 40, 1 << 50):
        assert size // index_interval(size) <= MAX_PLACES
    assert index_interval(1 << 30) == INDEX_INTERVAL_BYTES


parts = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,9}", fullmatch=True)
numbers = st.integers(0, (1 << 63) - 1)


@given(parts, parts, parts, numbers, st.integers(1, 10**6), numbers, numbers, numbers, st.integers(0, 99))
def test_a_name_says_whose_it_is(
    cluster: str,
    namespace: str,
    topic: str,
    uid: int,
    segment: int,
    segment_uid: int,
    start: int,
    count: int,
    attempt: int,
) -> None:
    name = ObjectName(
        cluster, f"{namespace}/{topic}", uid, segment, segment_uid, start, start + count % 1000 + 1, attempt
    )
    assert parse_name(str(name)) == name
    assert str(name).startswith(prefix_of(cluster, f"{namespace}/{topic}", uid))


@pytest.mark.parametrize("name", ["", "a", "c1/probe/3-4", "c1/default/t-5/1-2-3-4-5.ister", "c1/x.ister"])
def test_what_is_not_ours_has_no_owner(name: str) -> None:
    assert parse_name(name) is None
