"""Records as lines: format strings, JSON envelopes, and the places a person can start to read from.

Values are bytes and may be anything. In a pipe they pass as they are; on a terminal control characters and
what is no UTF-8 are escaped, so that no record can play with the screen; in JSON they are text, or base64
with a field beside them that says so.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from ister.cli.terminal import Paint
from ister.frame import Record
from ister.settings import NotAllowed, parse_duration

Writer = Callable[[Sequence[Record]], bytes]
"""Turns records into what is written for them."""

TOKENS: Final = {
    "o": "offset",
    "t": "time, ISO 8601",
    "u": "time in microseconds since 1970",
    "k": "key",
    "v": "value",
    "h": "headers, as name=value,...",
    "s": "size of the value in bytes",
    "n": "topic",
    "%": "a percent sign",
}

_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\udc80-\udcff\u202a-\u202e\u2066-\u2069]")


@functools.lru_cache(maxsize=256)
def show_time(timestamp_us: int) -> str:
    """ISO 8601 in UTC. Records of one batch often share their time, hence the cache."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return f"{timestamp_us}us"  # a producer may claim a time that no calendar has
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def escape(data: bytes | None) -> bytes:
    """Bytes as a terminal can show them without obeying them."""
    if data is None:
        return b""
    text = data.decode("utf-8", "surrogateescape")
    return _UNSAFE.sub(_escaped, text).encode("utf-8", "surrogateescape")


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    return {10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _as_they_are(data: bytes | None) -> bytes:
    return data or b""


def raw_lines(records: Sequence[Record]) -> bytes:
    """Values byte for byte, one a line; a record without a value is an empty line."""
    lines = [record.value or b"" for record in records]
    lines.append(b"")
    return b"\n".join(lines)


def painted_lines(paint: Paint) -> Writer:
    """For a terminal: offset, time, key and value, the value being what catches the eye."""

    def write(records: Sequence[Record]) -> bytes:
        lines = []
        for record in records:
            head = paint("dim", f"{record.offset:>8}  {show_time(record.timestamp_us)}").encode()
            key = paint("cyan", escape(record.key).decode() + " ").encode() if record.key is not None else b""
            value = escape(record.value) if record.value is not None else paint("dim", "(null)").encode()
            lines.append(b"".join((head, b"  ", key, value, b"\n")))
        return b"".join(lines)

    return write


def compile_format(template: str, topic: str, *, escaped: bool) -> Writer:
    """A format such as `%o %k %v\\n` as a writer; an unknown token is a usage error."""
    show = escape if escaped else _as_they_are
    parts: list[Callable[[Record], bytes]] = []
    position = 0
    for found in _TOKEN.finditer(template):
        if found.start() > position:
            parts.append(_constant(template[position : found.start()].encode("utf-8", "surrogateescape")))
        parts.append(_part(found, topic, show))
        position = found.end()
    if position < len(template):
        parts.append(_constant(template[position:].encode("utf-8", "surrogateescape")))

    def write(records: Sequence[Record]) -> bytes:
        return b"".join([part(record) for record in records for part in parts])

    return write


def _constant(data: bytes) -> Callable[[Record], bytes]:
    return lambda record: data


def _part(
    found: re.Match[str], topic: str, show: Callable[[bytes | None], bytes]
) -> Callable[[Record], bytes]:
    token, sequence = found[1], found[2]
    if sequence is not None:
        if sequence.startswith("x") and len(sequence) == 3:
            return _constant(bytes([int(sequence[1:], 16)]))
        if sequence in _ESCAPES:
            return _constant(_ESCAPES[sequence])
        raise click.BadParameter(f"unknown escape {found[0]!r}", param_hint="--format")
    parts: dict[str, Callable[[Record], bytes]] = {
        "o": lambda record: b"%d" % record.offset,
        "t": lambda record: show_time(record.timestamp_us).encode(),
        "u": lambda record: b"%d" % record.timestamp_us,
        "k": lambda record: show(record.key),
        "v": lambda record: show(record.value),
        "h": lambda record: b",".join(
            b"%s=%s" % (show(name.encode()), show(value)) for name, value in record.headers
        ),
        "s": lambda record: b"%d" % len(record.value or b""),
        "n": _constant(topic.encode()),
        "%": _constant(b"%"),
    }
    if token not in parts:
        known = ", ".join(f"%{name} {about}" for name, about in TOKENS.items())
        raise click.BadParameter(f"unknown token {found[0]!r}; there are: {known}", param_hint="--format")
    return parts[token]


def envelope(topic: str, record: Record) -> dict[str, Any]:
    """A record as one JSON object."""
    entry: dict[str, Any] = {
        "topic": topic,
        "offset": record.offset,
        "timestamp": show_time(record.timestamp_us),
        "timestamp_us": record.timestamp_us,
    }
    _put_bytes(entry, "key", record.key)
    _put_bytes(entry, "value", record.value)
    headers = []
    for name, value in record.headers:
        header: dict[str, Any] = {"name": name}
        _put_bytes(header, "value", value)
        headers.append(header)
    entry["headers"] = headers
    return entry


def _put_bytes(entry: dict[str, Any], name: str, data: bytes | None) -> None:
    """Text where it is text; else base64, with `<name>_encoding` beside it. Null stays null."""
    try:
        entry[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        assert data is not None
        entry[name] = base64.b64encode(data).decode()
        entry[f"{name}_encoding"] = "base64"


def json_lines(topic: str) -> Writer:
    import msgspec

    encode = msgspec.json.Encoder().encode

    def write(records: Sequence[Record]) -> bytes:
        lines = [encode(envelope(topic, record)) for record in records]
        lines.append(b"")
        return b"\n".join(lines)

    return write


def parse_place(text: str, now: datetime) -> str | int | datetime:
    """`start`, `end`, an offset, an ISO time, or a while ago such as `10m ago`."""
    asked = text.strip()
    match asked.lower():
        case "start" | "earliest" | "beginning":
            return "earliest"
        case "end" | "latest":
            return "latest"
    if asked.isascii() and asked.isdigit():
        return int(asked)
    try:
        if asked.endswith("ago"):
            return now - timedelta(milliseconds=parse_duration(asked.removesuffix("ago")))
        moment = datetime.fromisoformat(asked)
    except (NotAllowed, ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is no place: give start, end, an offset, a time such as 2030-01-31T12:00, "
            "or a while such as '10m ago'",
            param_hint="--from",
        ) from error
    # A time without a zone is the person's own.
    return moment if moment.tzinfo is not None else moment.astimezone()
