"""Lines that a person types into the shell, as commands of the text protocol; and replies, as things to show.

The wire is raw, so quotes are the shell's own affair: a payload that is one quoted string is sent without its
quotes, `"..."` with escapes (`\\n`, `\\t`, `\\xff`, `\\"`), `'...'` as it stands. Every other payload is sent
as it was typed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ister.protocol.text import COMMANDS, EMPTY, ERR, OK

LEAVING: Final = ("EXIT", "QUIT")
LOCAL: Final = ("HELP", *LEAVING)

HELP: Final = """\
REGISTER <topic>       make a topic, unless it is there
PUT <topic> <payload>  append a record; "quotes" around the payload are not sent
GET <topic>            the next record; all clients share one place in the topic
STATE <topic>          its segments and their leaders, as JSON
METRICS                the metadata's state on this node, as JSON
help, exit             this text; leave (Ctrl-D does too)"""

_DOUBLE: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SINGLE: Final = re.compile(rb"'([^']*)'", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\", b'"': b'"', b"'": b"'"}


class Line(NamedTuple):
    word: str
    """The command, in capitals."""
    topic: str
    wire: bytes
    """What is sent for it."""


def parse_line(line: bytes) -> Line | None:
    """A line without its line end; None if there is nothing in it."""
    typed = line.lstrip()
    if not typed.strip():
        return None
    word, _, rest = typed.partition(b" ")
    name = word.strip().upper().decode("ascii", "replace")
    if name in LOCAL:
        return Line(name, "", b"")
    if name not in COMMANDS:
        return Line(name, "", typed.rstrip())
    topic, space, payload = rest.lstrip(b" ").partition(b" ")
    shown = topic.strip().decode("utf-8", "replace")
    if name == "PUT":
        wire = b"PUT " + topic + space + unquote(payload)
    else:
        wire = b" ".join([name.encode(), *rest.split()])
    return Line(name, shown, wire)


def unquote(payload: bytes) -> bytes:
    """What was meant by one quoted string; anything else as it is."""
    bare = payload.strip()
    single = _SINGLE.fullmatch(bare)
    if single is not None:
        return single[1]
    double = _DOUBLE.fullmatch(bare)
    return payload if double is None else _ESCAPE.sub(_unescaped, double[1])


def _unescaped(found: re.Match[bytes]) -> bytes:
    what = found[1]
    if len(what) == 3:
        return bytes([int(what[1:], 16)])
    return _ESCAPES.get(what, found[0])


class Reply(NamedTuple):
    """A reply, and what it was to."""

    line: Line
    data: bytes

    @property
    def is_error(self) -> bool:
        return self.data == ERR or self.data.startswith(ERR + b" ")

    @property
    def is_json(self) -> bool:
        return self.line.word in ("STATE", "METRICS") and self.data.startswith(b"{")

    def to_object(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"command": self.line.word}
        if self.line.topic:
            entry["topic"] = self.line.topic
        if self.is_error:
            message = self.data[len(ERR) :].decode("utf-8", "replace").strip()
            return {**entry, "status": "error", "message": message}
        if self.data == EMPTY:
            return {**entry, "status": "empty"}
        entry["status"] = "ok"
        if self.is_json:
            import msgspec

            return {**entry, "data": msgspec.json.decode(self.data)}
        if self.data != OK:
            value = self.data.removeprefix(OK + b" ")
            try:
                entry["value"] = value.decode()
            except UnicodeDecodeError:
                entry["value"] = base64.b64encode(value).decode()
                entry["value_encoding"] = "base64"
        return entry

    def to_pretty(self) -> bytes:
        """For a terminal: nothing in it that plays with the screen, and JSON over several lines."""
        if self.is_json:
            import msgspec

            return msgspec.json.format(self.data, indent=2)
        from ister.cli.records import escape

        return escape(self.data)


def complete(before: str, typed: str, topics: Iterable[str]) -> list[str]:
    """What may follow: `before` is the line up to the word that is being typed."""
    words = before.split()
    if not words:
        known = [*(f"{name} " for name in COMMANDS[:-1]), COMMANDS[-1], *map(str.lower, LOCAL)]
        return [name for name in known if name.lower().startswith(typed.lower())]
    if len(words) == 1 and words[0].upper() in COMMANDS[:-1]:
        return [f"{topic} " for topic in topics if topic.startswith(typed)]
    return []
