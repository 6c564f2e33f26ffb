"""Commands as bytes: what a proposer sends, and what every node reads in the log."""

from __future__ import annotations

from typing import Any, Union

import msgspec

from ister.metadata.applying import TO_ALL, TO_TOPICS
from ister.metadata.commands import Command

_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[(*TO_ALL, *TO_TOPICS)])


def encode_command(command: Command) -> bytes:
    return msgspec.msgpack.encode(command)


def decode_command(data: bytes) -> Command | None:
    """None for a command that this build does not know: its application is an error result, not a crash."""
    try:
        return _decoder.decode(data)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, ValueError):
        return None
