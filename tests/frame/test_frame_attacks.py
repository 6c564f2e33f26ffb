"""Bytes from a hostile or broken producer: a typed answer, in bounded memory, for anything at all.

Checksums hold only against accidents; whoever can make a frame can make its checksums hold. So most of
these are forged with good ones, to reach the checks behind.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import lz4.block
import msgspec
import pytest
import zstandard
from frame_samples import ALL_SHAPES, fix_header_crc, forge, sample, whole

from ister.arrow import to_record_batch
from ister.columns import Codec, Flags
from ister.compression import compress
from ister.errors import CorruptFrame
from ister.frame import (
    HEADER_SIZE,
    Corrupt,
    Frame,
    Incomplete,
    check_structure,
    crc32c,
    decode,
    decode_header,
    encode,
    frames_in,
)

MIB = 1 << 20
LIMIT = 1 * MIB


def ends(*numbers: int) -> bytes:
    """An ends section, padded."""
    section = struct.pack(f"<{len(numbers)}i", *numbers)
    return section + bytes(-len(section) % 8)


def words(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def packed(raw_size: int, data: bytes, padding: int | None = None) -> bytes:
    """A compressed body that says of itself what the test wants."""
    said = -len(data) % 8 if padding is None else padding
    return words(struct.pack("<II", raw_size, said) + data)


def names(attacks: list[Any]) -> list[str]:
    return [attack[0] for attack in attacks]


def refused(data: bytes) -> str:
    """Every way of reading the frame refuses it; the reason that `records` gives."""
    frame = whole(data)
    with pytest.raises(CorruptFrame):
        to_record_batch([frame], limit=LIMIT)
    with pytest.raises(CorruptFrame) as caught:
        frame.records(LIMIT)
    return str(caught.value)


def header(data: bytes, position: int, layout: str, number: int) -> bytes:
    """The frame with one header field changed and the header's checksum mended."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, number)
    fix_header_crc(changed)
    return bytes(changed)


# Headers.

HEADER_ATTACKS = [
    ("version", 4, "<B", 2, "frame version 2"),
    ("flags", 5, "<B", 16, "unknown flags 0x10"),
    ("codec", 6, "<B", 3, "unknown codec 3"),
    ("encoding", 7, "<B", 2, "unknown encoding 2"),
    ("too large", 8, "<I", 1 << 31, "over the limit of"),
    ("largest", 8, "<I", 0xFFFFFFF8, "over the limit of"),
    ("odd size", 8, "<I", 12, "not a multiple of 8"),
    ("no records", 12, "<I", 0, "impossible count 0"),
    ("count past int32", 12, "<I", 1 << 31, "impossible count"),
    ("offsets past int64", 36, "<Q", (1 << 63) - 5, "impossible base offset"),
    ("count past the body", 12, "<I", 1000, "1000 records cannot be in a body"),
]


@pytest.mark.parametrize(
    ("name", "position", "layout", "number", "reason"), HEADER_ATTACKS, ids=names(HEADER_ATTACKS)
)
def test_a_header_that_cannot_be_is_corrupt_before_its_body_is_awaited(
    name: str, position: int, layout: str, number: int, reason: str
) -> None:
    forged = header(encode([b"value"]), position, layout, number)[:HEADER_SIZE]
    outcome = decode_header(forged)
    assert isinstance(outcome, Corrupt), name
    assert reason in outcome.reason


def test_bytes_that_start_no_frame_are_corrupt_from_the_first_one_on() -> None:
    for start in (b"X", b"IS_", b"GET / HTTP/1.1", b"\0" * 64):
        assert isinstance(decode(start), Corrupt)


def test_a_buffer_with_a_cut_frame_names_the_byte_and_what_is_missing() -> None:
    data = encode([b"one"]) + encode([b"two"])[:-8]
    with pytest.raises(CorruptFrame, match=r"no frame at byte 80 of 152: 8 bytes are missing"):
        frames_in(data)


def test_an_encoding_that_is_reserved_is_refused_by_readers() -> None:
    assert "encoding 1" in refused(forge(ends(0, 0), encoding=1))


# Columns, with checksums that hold.

BODY_ATTACKS = [
    ("negative end", 0, 1, ends(0, -1) + bytes(8)),
    ("most negative end", 0, 1, ends(0, -(1 << 31)) + bytes(8)),
    ("descending ends", 0, 2, ends(0, 8, 4) + bytes(8)),
    ("ends that rise past the values and return", 0, 2, ends(0, 1 << 30, 8) + bytes(8)),
    ("ends that start past 0", 0, 1, ends(4, 8) + bytes(8)),
    ("ends that start below 0", 0, 1, ends(-4, 8) + bytes(8)),
    ("values beyond the body", 0, 1, ends(0, 9) + bytes(8)),
    ("largest end", 0, 1, ends(0, (1 << 31) - 1) + bytes(8)),
    ("bytes after the last section", 0, 1, ends(0, 8) + bytes(16)),
    ("padding that is not zeros", 0, 1, ends(0, 3) + b"abc\0\0\0\0\1"),
    ("no room for the keys", Flags.KEYS, 1, ends(0, 8) + bytes(8)),
    ("key ends that descend", Flags.KEYS, 2, ends(0, 0, 0) + b"\3" + bytes(7) + ends(0, 8, 4) + bytes(8)),
    ("negative key end", Flags.KEYS, 1, ends(0, 0) + b"\1" + bytes(7) + ends(0, -8)),
    ("no room for the times", Flags.TIMES, 2, ends(0, 0, 0) + bytes(8)),
    ("no room for the bitmap", Flags.NULL_VALUES, 1, ends(0, 0)),
    ("header ends beyond the body", Flags.HEADERS, 1, ends(0, 0) + ends(0, 64) + bytes(8)),
    ("header ends that descend", Flags.HEADERS, 2, ends(0, 0, 0) + ends(0, 8, 4) + bytes(8)),
]


@pytest.mark.parametrize(("name", "flags", "count", "body"), BODY_ATTACKS, ids=names(BODY_ATTACKS))
@pytest.mark.parametrize("codec", list(Codec))
def test_columns_that_leave_the_body_or_overlap_are_refused(
    name: str, flags: int, count: int, body: bytes, codec: Codec
) -> None:
    stored = body if codec == Codec.NONE else compress(codec, body)
    refused(forge(stored, flags=flags, count=count, codec=codec))


def test_a_descent_between_two_parts_of_a_long_column_is_found() -> None:
    """Ends are checked a part at a time; each part of these ascends in itself."""
    count = 1 << 17
    numbers = [0] + [8] * ((1 << 16) - 1) + [4] * (count - (1 << 16)) + [8]
    assert len(numbers) == count + 1
    refused(forge(ends(*numbers) + bytes(8), count=count))


BAD_HEADERS = [
    ("no array", b"\xc0"),
    ("cut short", msgspec.msgpack.encode([("name", b"value")])[:-1]),
    ("more after the end", msgspec.msgpack.encode([("name", b"value")]) + b"\0"),
    ("three in a pair", msgspec.msgpack.encode([("name", b"value", b"more")])),
    ("text as value", msgspec.msgpack.encode([("name", "value")])),
    ("bytes as name", msgspec.msgpack.encode([(b"name", b"value")])),
    ("name that is no UTF-8", b"\x91\x92\xa2\xff\xfe\xc4\x01x"),
    ("four billion pairs", b"\xdd\xff\xff\xff\xff"),
    ("a value of four billion bytes", b"\x91\x92\xa1a\xc6\xff\xff\xff\xff"),
    ("arrays all the way down", b"\x91" * 4096),
]


@pytest.mark.parametrize(("name", "row"), BAD_HEADERS, ids=names(BAD_HEADERS))
def test_headers_that_are_no_pairs_of_text_and_bytes_are_refused(name: str, row: bytes) -> None:
    body = ends(0, 0) + ends(0, len(row)) + words(row)
    frame = whole(forge(body, flags=Flags.HEADERS))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFrame, match="record headers cannot be read"):
            frame.records(LIMIT)
        with pytest.raises(CorruptFrame, match="record headers cannot be read"):
            to_record_batch([frame])
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()
    # Who does not ask for headers does not stumble over them.
    assert to_record_batch([frame], columns=["value"]).to_pydict() == {"value": [b""]}


# Compressed bodies.

RAW = ends(0, 16) + b"sixteen bytes..."
LZ4 = lz4.block.compress(RAW, store_size=False)
ZSTD = zstandard.ZstdCompressor().compress(RAW)
ZSTD_UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(RAW)

PACKED_ATTACKS = [
    ("nothing at all", Codec.LZ4, b""),
    ("no bytes after the sizes", Codec.LZ4, packed(24, b"")),
    ("no bytes after the sizes", Codec.ZSTD, packed(24, b"")),
    ("says less than it has", Codec.LZ4, packed(16, LZ4)),
    ("says less than it has", Codec.ZSTD, packed(16, ZSTD)),
    ("says more than it has", Codec.LZ4, packed(32, LZ4)),
    ("says more than it has", Codec.ZSTD, packed(32, ZSTD)),
    ("says nothing", Codec.LZ4, packed(0, LZ4)),
    ("says nothing", Codec.ZSTD, packed(0, ZSTD)),
    ("says no multiple of 8", Codec.ZSTD, packed(23, zstandard.ZstdCompressor().compress(RAW[:23]))),
    ("padding of more than a word", Codec.ZSTD, packed(24, ZSTD, padding=8)),
    ("padding larger than the body", Codec.LZ4, packed(24, b"", padding=0xFFFFFFFF)),
    ("padding too small", Codec.ZSTD, words(struct.pack("<II", 24, 0) + ZSTD + b"\0")),
    ("padding that is not zeros", Codec.ZSTD, packed(24, ZSTD + b"\1", padding=-len(ZSTD + b"\1") % 8 + 1)),
    ("zstd frame of no stated size", Codec.ZSTD, packed(24, ZSTD_UNSIZED)),
    ("two zstd frames", Codec.ZSTD, packed(24, ZSTD + ZSTD)),
    ("lz4 called zstd", Codec.ZSTD, packed(24, LZ4)),
    ("zstd called lz4", Codec.LZ4, packed(24, ZSTD)),
    ("zstd that needs a dictionary", Codec.ZSTD, packed(24, b"\x28\xb5\x2f\xfd\x21\x01\x18" + ZSTD[6:])),
]


@pytest.mark.parametrize(("name", "codec", "body"), PACKED_ATTACKS, ids=names(PACKED_ATTACKS))
def test_a_compressed_body_that_is_not_what_it_says_is_refused(name: str, codec: Codec, body: bytes) -> None:
    assert len(body) % 8 == 0
    refused(forge(body, codec=codec))


def zstd_of_zeros(size: int) -> bytes:
    """A zstd frame of zeros with its size stated, made without `size` bytes of memory."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    parts = [compressor.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(parts) + compressor.flush()


def zstd_with_window(log: int) -> bytes:
    """A zstd frame of RAW whose header asks for a window of 2**log bytes, its one block stored as it is."""
    descriptor = bytes([0x80, (log - 10) << 3]) + struct.pack("<I", len(RAW))
    block = ((len(RAW) << 3) | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + descriptor + block + RAW


GIB = 1 << 30
LZ4_OF_ZEROS = lz4.block.compress(bytes(64 * MIB), store_size=False)
BOMBS = [
    ("lz4 that says 1 GiB", Codec.LZ4, packed(GIB, LZ4)),
    ("zstd that says 1 GiB", Codec.ZSTD, packed(GIB, zstd_of_zeros(GIB))),
    ("zstd of 1 GiB in a body that says 24 bytes", Codec.ZSTD, packed(24, zstd_of_zeros(GIB))),
    ("lz4 that unpacks past what it says", Codec.LZ4, packed(24, LZ4_OF_ZEROS)),
    ("zstd with a window of 1 GiB", Codec.ZSTD, packed(24, zstd_with_window(30))),
]


@pytest.mark.parametrize(("name", "codec", "body"), BOMBS, ids=names(BOMBS))
def test_a_bomb_is_refused_without_the_memory_that_it_wants(name: str, codec: Codec, body: bytes) -> None:
    frame = whole(forge(body, codec=codec))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFrame):
            frame.records(LIMIT)
        assert tracemalloc.get_traced_memory()[1] < LIMIT, name
    finally:
        tracemalloc.stop()


def test_the_window_bomb_is_refused_for_its_window_alone() -> None:
    modest = forge(packed(24, zstd_with_window(16)), codec=Codec.ZSTD)
    assert [record.value for record in whole(modest).records(LIMIT)] == [b"sixteen bytes..."]


def test_checking_many_empty_records_takes_a_fraction_of_what_they_declare() -> None:
    """Ends as Python numbers take nine times the room of the ends themselves."""
    count = 4 * MIB // 4 - 1
    frame = whole(forge(bytes(4 * (count + 1)), count=count))
    tracemalloc.start()
    try:
        frame.columns()
        assert tracemalloc.get_traced_memory()[1] < 4 * (count + 1)
    finally:
        tracemalloc.stop()


# What a broker checks on the way in.


@pytest.mark.parametrize(("flags", "codec"), ALL_SHAPES)
def test_a_broker_takes_every_honest_frame(flags: int, codec: Codec) -> None:
    frame = whole(sample(flags).encode(codec))
    check_structure(frame.header, frame.buffer, limit=len(frame.unpacked_body()))


BROKER_ATTACKS = [
    ("values beyond the body", 0, 1, Codec.NONE, ends(0, 9) + bytes(8)),
    ("values in the padding of their ends", 0, 2, Codec.NONE, ends(0, 2, 4)),
    ("negative end", 0, 1, Codec.NONE, ends(0, -1) + bytes(8)),
    ("no room for the ends", Flags.NULL_VALUES, 1, Codec.NONE, bytes(8)),
    ("unpacks beyond the readers' limit", 0, 1, Codec.ZSTD, packed(2 * MIB, ZSTD)),
    ("too short to say its size", 0, 1, Codec.LZ4, b""),
    ("unpacks to nothing", 0, 1, Codec.LZ4, packed(0, LZ4)),
    ("unpacks to no multiple of 8", 0, 1, Codec.LZ4, packed(23, LZ4)),
]


@pytest.mark.parametrize(
    ("name", "flags", "count", "codec", "body"), BROKER_ATTACKS, ids=names(BROKER_ATTACKS)
)
def test_a_broker_refuses_what_no_reader_could_take(
    name: str, flags: int, count: int, codec: Codec, body: bytes
) -> None:
    frame = whole(forge(body, flags=flags, codec=codec, count=count))
    with pytest.raises(CorruptFrame):
        check_structure(frame.header, frame.buffer, limit=LIMIT)


# Fuzz: seeded and bounded. Anything but a result or CorruptFrame gets out of here and fails the test.


def mutations(data: bytes, chance: random.Random, count: int) -> Iterator[bytearray]:
    for _ in range(count):
        mutant = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            match chance.randrange(5):
                case 0:
                    mutant[chance.randrange(len(mutant))] = chance.randrange(256)
                case 1:
                    position = chance.randrange(0, max(len(mutant) - 3, 1))
                    number = chance.choice([0, 1, -1, 7, 8, 1 << 30, (1 << 31) - 1, -(1 << 31)])
                    mutant[position : position + 4] = struct.pack("<i", number)
                case 2:
                    start = chance.randrange(len(mutant))
                    del mutant[start : start + chance.randint(1, 16)]
                case 3:
                    start = chance.randrange(len(mutant))
                    mutant[start:start] = chance.randbytes(chance.randint(1, 16))
                case 4:
                    position, source = chance.randrange(len(mutant)), chance.randrange(len(mutant))
                    mutant[position : position + 8] = mutant[source : source + 8]
            if not mutant:
                mutant = bytearray(8)
        yield mutant


def read_all(data: bytes | bytearray) -> bool:
    """Read it every way there is; whether it was a frame whose records could be had."""
    outcome = decode(data, limit=LIMIT)
    if not isinstance(outcome, Frame):
        assert isinstance(outcome, Corrupt | Incomplete)
        return False
    try:
        check_structure(outcome.header, data, limit=LIMIT)
        records = outcome.records(LIMIT)
    except CorruptFrame:
        with pytest.raises(CorruptFrame):
            outcome.records(LIMIT)
        with pytest.raises(CorruptFrame):
            to_record_batch([outcome], limit=LIMIT)
        return False
    assert len(records) == outcome.header.count
    batch = to_record_batch([outcome], limit=LIMIT)
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [record.value for record in records]
    assert batch.column("key").to_pylist() == [record.key for record in records]
    return True


def test_random_bytes_never_make_a_frame_or_an_exception() -> None:
    chance = random.Random(20_240_601)
    for _ in range(3000):
        data = chance.randbytes(chance.randrange(200))
        assert not read_all(data)
        assert not read_all(b"ISTF\x01" + data)


def test_mutated_frames_never_make_another_frame() -> None:
    chance = random.Random(20_240_602)
    for flags, codec in ALL_SHAPES:
        sent = sample(flags).encode(codec)
        for mutant in mutations(sent, chance, 60):
            outcome = decode(mutant, limit=LIMIT)
            if isinstance(outcome, Frame):
                # The bytes that the checksums cover are the ones that were sent; the rest came after.
                assert bytes(outcome.data) == sent


def test_mutated_bodies_under_good_checksums_are_refused_or_read_the_same_by_every_path() -> None:
    chance = random.Random(20_240_603)
    readable = 0
    for flags, codec in ALL_SHAPES:
        frame = whole(sample(flags).encode(codec))
        for mutant in mutations(bytes(frame.body), chance, 60):
            body = words(bytes(mutant))
            readable += read_all(forge(body, flags=flags, count=frame.header.count, codec=codec))
    assert readable > 50, "the fuzz must reach what lies behind the checks"


def test_mutated_bodies_inside_good_compression_are_refused_or_read_the_same_by_every_path() -> None:
    chance = random.Random(20_240_604)
    for flags, codec in ALL_SHAPES:
        if codec != Codec.NONE:
            frame = whole(sample(flags).encode())
            for mutant in mutations(bytes(frame.body), chance, 30):
                body = compress(codec, words(bytes(mutant)))
                read_all(forge(body, flags=flags, count=frame.header.count, codec=codec))


def test_mutated_headers_under_good_checksums_never_raise_from_decode() -> None:
    chance = random.Random(20_240_605)
    sent = sample(15).encode()
    for _ in range(2000):
        mutant = bytearray(sent)
        for _ in range(chance.randint(1, 3)):
            mutant[chance.randrange(4, 60)] = chance.randrange(256)
        struct.pack_into("<I", mutant, 32, crc32c(bytes(mutant[HEADER_SIZE:]), crc32c(bytes(mutant[:32]))))
        fix_header_crc(mutant)
        read_all(mutant)
