"""How a frame's body is compressed, and how it is unpacked without trusting what it says of itself.

A compressed body is `raw_size u32, padding u32, compressed bytes, padding zeros`, so that a reader knows
what it is about to allocate, and the body's size is a multiple of 8 like any other's. The compressed bytes
are one lz4 block, or one zstd frame that states its content size, and states the same.

Unpacking raises `CorruptFrame` for anything that is not exactly this, and allocates no more than the limit
it was told. The two libraries come with the extra `compression` and are loaded when a body needs them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

from ister.errors import CorruptFrame, DependencyMissing

PADDING: Final = [b"", *(b"\0" * (8 - n) for n in range(1, 8))]
"""What fills a section up to the next multiple of 8, by its size modulo 8."""

_RAW_SIZE = struct.Struct("<II")
_SMALLEST_WINDOW = 1 << 10


class Codec(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2


_UNPACKED: Final = int(Codec.NONE)


def compress(codec: Codec, body: bytes) -> bytes:
    if codec == Codec.LZ4:
        packed = _lz4().compress(body, store_size=False)
    else:
        packed = _zstd().ZstdCompressor(level=1).compress(body)
    padding = PADDING[len(packed) & 7]
    return b"".join((_RAW_SIZE.pack(len(body), len(padding)), packed, padding))


def unpacked_size(body: memoryview, limit: int) -> int:
    """What a compressed body says that it unpacks to, if that is possible at all within the limit."""
    if len(body) < _RAW_SIZE.size:
        raise CorruptFrame(f"compressed body of {len(body)} bytes is too short")
    raw_size: int = _RAW_SIZE.unpack_from(body)[0]
    if raw_size == 0 or raw_size & 7:
        raise CorruptFrame(f"body says it unpacks to {raw_size} bytes, which no body has")
    if raw_size > limit:
        raise CorruptFrame(f"body says it unpacks to {raw_size} bytes, over the limit of {limit}")
    return raw_size


def decompress(codec: int, body: memoryview, limit: int) -> memoryview:
    if codec == _UNPACKED:
        return body
    raw_size = unpacked_size(body, limit)
    padding = _RAW_SIZE.unpack_from(body)[1]
    if padding > 7 or padding > len(body) - _RAW_SIZE.size or any(body[len(body) - padding :]):
        raise CorruptFrame(f"impossible padding of {padding} bytes")
    packed = body[_RAW_SIZE.size : len(body) - padding]
    try:
        if codec == Codec.LZ4:
            raw = _lz4().decompress(packed, uncompressed_size=raw_size)
        else:
            raw = _decompress_zstd(packed, raw_size, limit)
    except (CorruptFrame, DependencyMissing):
        raise
    except Exception as error:  # the two libraries share no error type, and neither may get out of here
        raise CorruptFrame(f"body does not unpack: {error}") from error
    if len(raw) != raw_size:
        raise CorruptFrame(f"body unpacks to {len(raw)} bytes, not the {raw_size} that it says")
    return memoryview(raw)


def _decompress_zstd(packed: memoryview, raw_size: int, limit: int) -> bytes:
    """The library allocates what the zstd frame itself declares, whatever bound it is given: look first."""
    zstd = _zstd()
    declared = zstd.get_frame_parameters(packed)
    if declared.content_size != raw_size:
        raise CorruptFrame(f"zstd frame of {declared.content_size} bytes in a body of {raw_size}")
    if declared.window_size > max(limit, _SMALLEST_WINDOW):
        raise CorruptFrame(f"zstd window of {declared.window_size} bytes is over the limit of {limit}")
    raw: bytes = zstd.ZstdDecompressor().decompress(packed, max_output_size=raw_size, allow_extra_data=False)
    return raw


def _lz4() -> Any:
    try:
        import lz4.block
    except ImportError as error:
        raise DependencyMissing(
            "lz4 compression needs the package lz4", hint="pip install 'ister[compression]'"
        ) from error
    return lz4.block


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise DependencyMissing(
            "zstd compression needs the package zstandard", hint="pip install 'ister[compression]'"
        ) from error
    return zstandard
