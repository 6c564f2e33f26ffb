"""Messages as bytes. Pure functions; the limits are enforced by who reads the socket.

The two kinds on the hot path, `APPEND` and its answer, avoid any encoding per record: the append's header
depends only on the topic, and the answer's is a fixed struct.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeVar

import msgspec

from ister.errors import BadRequest, IsterError, UnsupportedVersion, from_wire
from ister.protocol.messages import PREAMBLE_MAGIC, PROTOCOL_VERSION, Failure
from ister.protocol.peer import PEER_MAGIC

Bytes = bytes | bytearray | memoryview

PREFIX: Final = struct.Struct("<IIHH")
PREFIX_SIZE: Final = PREFIX.size
SIZE_FIELD: Final = 4
"""`size` counts what follows itself."""

MAX_HEADER_BYTES: Final = 65_535
"""What `header_size` can say. An answer with a larger header has none, and the same bytes as its payload."""

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""The largest request that a broker can be set to take, and so the largest frame that a log can hold."""

MAX_ANSWER_BYTES: Final = MAX_MESSAGE_BYTES + MAX_HEADER_BYTES + PREFIX_SIZE
"""The largest answer that a client takes: whatever was appended can be read."""

APPEND_ANSWER: Final = struct.Struct("<Qq")
_APPENDED = struct.Struct("<IIHHQq")
_APPENDED_ELSEWHERE = struct.Struct("<IIHHQqQ")
_LEADER = struct.Struct("<Q")
_PREAMBLE = struct.Struct("<4sHH")
PREAMBLE_SIZE: Final = _PREAMBLE.size

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


class AppendAnswer(NamedTuple):
    """Where a frame was put."""

    base_offset: int
    append_time_us: int
    leader: int = 0
    """Another node took it: the one to send the next frame to. 0 if the node that answers took it itself."""


def encode_preamble() -> bytes:
    return _PREAMBLE.pack(PREAMBLE_MAGIC, PROTOCOL_VERSION, PROTOCOL_VERSION)


def choose_version(preamble: Bytes) -> int:
    """The version to speak with a client that opened with this; raises `UnsupportedVersion`."""
    magic, lowest, highest = _PREAMBLE.unpack_from(preamble)
    if magic == PEER_MAGIC:
        raise BadRequest(
            "this is the port for clients, and a broker has called",
            hint="Give the broker's peer port instead, which is 6001 unless it was set; "
            "`ister cluster status` shows every node's.",
        )
    if magic != PREAMBLE_MAGIC:
        raise BadRequest(f"a connection that opens with {bytes(magic)!r} does not speak this protocol")
    if not lowest <= PROTOCOL_VERSION <= highest:
        raise UnsupportedVersion(
            f"the client speaks protocol versions {lowest} to {highest}, this broker {PROTOCOL_VERSION}"
        )
    return PROTOCOL_VERSION


def encode_header(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_header(kind: type[M], header: Bytes) -> M:
    try:
        return msgspec.msgpack.decode(header, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"cannot read {kind.__name__}: {error}") from error


def encode_message(correlation: int, kind: int, header: bytes, payload_size: int = 0) -> bytes:
    """The prefix and header; the payload, if any, is sent right after."""
    size = PREFIX_SIZE - SIZE_FIELD + len(header) + payload_size
    return PREFIX.pack(size, correlation, kind, len(header)) + header


def encode_appended(correlation: int, base_offset: int, append_time_us: int, leader: int = 0) -> bytes:
    if leader:
        size = PREFIX_SIZE - SIZE_FIELD + 24
        return _APPENDED_ELSEWHERE.pack(size, correlation, 0, 24, base_offset, append_time_us, leader)
    return _APPENDED.pack(PREFIX_SIZE - SIZE_FIELD + 16, correlation, 0, 16, base_offset, append_time_us)


def decode_appended(header: Bytes) -> AppendAnswer:
    """From at least `APPEND_ANSWER.size` bytes; what a later version adds behind them is passed over."""
    base_offset, append_time_us = APPEND_ANSWER.unpack_from(header)
    leader = _LEADER.unpack_from(header, 16)[0] if len(header) >= 24 else 0
    return AppendAnswer(base_offset, append_time_us, leader)


def encode_failure(correlation: int, error: IsterError) -> bytes:
    failure = Failure(error.message[:4000], error.hint[:1000], list(error.offsets or ()), error.index)
    return encode_message(correlation, error.wire, encode_header(failure))


def decode_failure(kind: int, header: Bytes) -> IsterError:
    failure = decode_header(Failure, header)
    offsets = (failure.offsets[0], failure.offsets[1]) if len(failure.offsets) == 2 else None
    return from_wire(kind, failure.message, failure.hint, offsets, failure.index)
