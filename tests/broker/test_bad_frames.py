"""Frames that are wrong in themselves: an error with values, nothing appended, the connection lives on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_helpers import Node, append_request, frame_of, on_real_disk, refusal

from ister.columns import Codec
from ister.errors import CorruptFrame
from ister.frame import crc32c, encode

GOOD = frame_of(b"first", b"second", b"third")


def with_field(frame: bytes, position: int, layout: str, value: int) -> bytes:
    """The frame with another value in its header, and checksums that hold: only the value is wrong."""
    changed = bytearray(frame)
    struct.pack_into(layout, changed, position, value)
    (body_size,) = struct.unpack_from("<I", changed, 8)
    body = bytes(changed[64 : 64 + body_size])
    struct.pack_into("<I", changed, 32, crc32c(body, crc32c(bytes(changed[:32]))))
    struct.pack_into("<I", changed, 60, crc32c(bytes(changed[:60])))
    return bytes(changed)


def flipped(frame: bytes, position: int) -> bytes:
    changed = bytearray(frame)
    changed[position] ^= 0x10
    return bytes(changed)


def body_flipped(frame: bytes) -> bytes:
    return flipped(frame, len(frame) - 9)


BAD: dict[str, tuple[bytes, str]] = {
    "header checksum": (flipped(GOOD, 61), "header checksum does not match"),
    "body checksum": (body_flipped(GOOD), "body checksum does not match (frame of 3 records"),
    "magic": (b"XXXX" + GOOD[4:], "no frame starts with b'XXXX'"),
    "version": (with_field(GOOD, 4, "<B", 9), "frame version 9; this build reads version 1"),
    "flags": (with_field(GOOD, 5, "<B", 0x80), "unknown flags 0x80"),
    "codec": (with_field(GOOD, 6, "<B", 77), "unknown codec 77"),
    "encoding": (with_field(GOOD, 7, "<B", 5), "unknown encoding 5"),
    "reserved encoding": (with_field(GOOD, 7, "<B", 1), "encoding 1"),
    "longer than sent": (with_field(GOOD, 8, "<I", 8000), "frame of 8064 bytes is over the limit of"),
    "shorter than sent": (
        with_field(GOOD, 8, "<I", 24),
        f"frame of 88 bytes came in a payload of {len(GOOD)}",
    ),
    "no records": (with_field(GOOD, 12, "<I", 0), "impossible count 0"),
    "too many records": (with_field(GOOD, 12, "<I", 5000), "5000 records cannot be in a body of"),
    "one record more": (with_field(GOOD, 12, "<I", 4), "4 records"),
    "packed, too many records": (
        with_field(encode([b"a" * 100], codec=Codec.ZSTD), 12, "<I", 2_000_000_000),
        "2000000000 records",
    ),
    "two frames": (GOOD + GOOD, f"frame of {len(GOOD)} bytes came in a payload of {2 * len(GOOD)}"),
    "trailing bytes": (GOOD + b"more", f"came in a payload of {len(GOOD) + 4}"),
    "cut off": (GOOD[:-8], "over the limit of"),
    "half a header": (GOOD[:30], "34 bytes of the frame are missing"),
    "nothing": (b"", "64 bytes of the frame are missing"),
    "text": (b"hello, is this the log?", "no frame starts with b'hell'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_with_its_values_and_nothing_is_appended(name: str, tmp_path: Path) -> None:
    frame, reason = BAD[name]

    async def scenario(node: Node) -> None:
        client = await node.connect()
        assert (await client.append("t", GOOD)).base_offset == 0
        error = await refusal(client.append("t", frame), CorruptFrame)
        assert reason in error.message
        assert node.server.in_flight_bytes == 0
        assert (await client.append("t", frame_of(b"fourth"))).base_offset == 3
        assert await client.values("t") == [b"first", b"second", b"third", b"fourth"]

    on_real_disk(tmp_path, scenario)


@pytest.mark.parametrize("spoil", [body_flipped, lambda frame: frame + b"x"], ids=["checksum", "trailing"])
def test_a_bad_frame_creates_no_topic(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        await refusal(client.append("fresh", spoil(GOOD)), CorruptFrame)
        assert node.broker.topics == {}

    on_real_disk(tmp_path, scenario)


def test_a_bad_frame_among_good_ones_in_one_write_is_the_only_one_refused(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect()
        frames = [frame_of(b"%d" % number) for number in range(50)]
        for number in range(0, 50, 7):
            frames[number] = body_flipped(frames[number])
        client.send(*(append_request(number, "t", frame) for number, frame in enumerate(frames)))
        answers = await client.answers(50)
        refused = {number for number, answer in answers.items() if answer.kind}
        assert refused == set(range(0, 50, 7))
        assert await client.values("t") == [b"%d" % n for n in range(50) if n % 7]

    on_real_disk(tmp_path, scenario)
