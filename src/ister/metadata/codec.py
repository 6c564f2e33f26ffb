"""Commands as bytes: what a proposer sends, and what every node reads in the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Union

import msgspec

from ister.metadata.applying import TO_ALL, TO_TOPICS
from ister.metadata.commands import Command
from ister.metadata.shapes import Shapes, shapes_needed, shapes_of, what_lacks, without_defaults


class Read(NamedTuple):
    command: Command | None
    """None for one that this build does not know: its application is an error result, not a crash."""
    needed: Shapes
    """What a build has to know to apply it."""
    lacks: str = ""
    """What this build does not know of it: `command` may then be less than what was proposed."""


class CommandSet:
    """The commands that a build knows."""

    def __init__(self, kinds: Iterable[type[Command]]) -> None:
        self._kinds: Mapping[str, type[Command]] = {kind.__name__: kind for kind in kinds}
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
            Union[tuple(self._kinds.values())]  # noqa: UP007
        )
        self.known: Final[Shapes] = shapes_of(self._kinds.values())

    def read(self, data: bytes) -> Read:
        try:
            needed = shapes_needed(msgspec.msgpack.decode(data), self._kinds)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError):
            return Read(None, {})  # nobody's command
        return Read(self._decode(data), needed, what_lacks(self.known, needed))

    def _decode(self, data: bytes) -> Command | None:
        try:
            return self._decoder.decode(data)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, ValueError):
            return None


COMMANDS: Final = CommandSet((*TO_ALL, *TO_TOPICS))
"""Of this build."""


def encode_command(command: Command) -> bytes:
    return msgspec.msgpack.encode([type(command).__name__, *without_defaults(command)])


def decode_command(data: bytes) -> Command | None:
    return COMMANDS.read(data).command
