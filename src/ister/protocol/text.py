"""The text protocol, as bytes in and commands out; no I/O.

Both ways a frame is `u32 little-endian length, bytes`; requests have 1 to 65,536 bytes. One connection is
served strictly in order, so that the n-th reply belongs to the n-th frame.

    REGISTER t        OK
    PUT t payload     OK              the payload is every byte after the space that follows the topic
    GET t             OK <data>       or EMPTY
    STATE t           JSON
    METRICS           JSON
    whatever failed   ERR <why>

What may come is anything: every frame gets exactly one reply, and the stream stays in step (W21). A frame
that is too long is refused as soon as its length is known, and its bytes are read past; one that announces
more than `DRAIN_BYTES` is nobody's mistake about a limit but another language, and ends the connection.
Payloads are bytes and stay as they are: never trimmed, never decoded. A payload may be empty, which wants
the space behind the topic all the same.

A reply is as long as it has to be. All that was put through this protocol fits into 65,536 bytes again; a
record that came another way, or the state of a topic with thousands of segments, may need more.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from ister.errors import IsterError, NotLeader, UnknownTopic
from ister.protocol.messages import PREAMBLE_MAGIC

MAX_FRAME_BYTES: Final = 65_536
DRAIN_BYTES: Final = 16 * 1024 * 1024
"""The longest frame that is read past to stay in step."""

LENGTH: Final = struct.Struct("<I")
LENGTH_SIZE: Final = LENGTH.size

COMMANDS: Final = ("REGISTER", "PUT", "GET", "STATE", "METRICS")

OK: Final = b"OK"
EMPTY: Final = b"EMPTY"
ERR: Final = b"ERR"

_TLS: Final = re.compile(rb"\x16\x03[\x00-\x04]")
"""How TLS begins. As a length it would be too long a frame, never one that is served."""
_LONGEST_ERROR: Final = 4_000
_SHOWN: Final = 40


class Register(NamedTuple):
    topic: str


class Put(NamedTuple):
    topic: str
    payload: bytes


class Get(NamedTuple):
    topic: str


class State(NamedTuple):
    topic: str


class Metrics(NamedTuple):
    pass


class Refused(NamedTuple):
    """A frame that is no command. It is answered like any other, in its turn."""

    why: str
    closes: bool = False
    """Whether what follows can't be understood either."""


Request = Register | Put | Get | State | Metrics | Refused


def is_text(first: bytes) -> bool:
    """Whether a connection that opens with these four bytes speaks this protocol.

    Our own clients open with a magic; here the first bytes are a length. Our magic and the first letters of
    other protocols (HTTP, say) are letters, which as a length are far beyond any frame that is answered. Any
    other length is taken for one, so that a client whose first frame is too long hears that in its own words.
    """
    if first == PREAMBLE_MAGIC or len(first) != LENGTH_SIZE:
        return False
    if LENGTH.unpack(first)[0] <= MAX_FRAME_BYTES:
        return True
    return not _TLS.match(first) and not all(32 <= byte < 127 for byte in first)


class TextDecoder:
    """One connection's bytes, in whatever pieces they come, as requests.

    It holds what was fed and not yet taken: whoever feeds it looks at `waiting_bytes` and stops for a while.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0
        self._broken = False

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        if not self._broken:
            self._buffer += data
            self._drop()

    @property
    def waiting_bytes(self) -> int:
        return len(self._buffer)

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing was begun that has not come to its end."""
        return not self._buffer and not self._skip

    def take(self) -> Request | None:
        """The next request; None if none has arrived in full."""
        self._drop()
        buffer = self._buffer
        if self._skip or len(buffer) < LENGTH_SIZE:
            return None
        (size,) = LENGTH.unpack_from(buffer)
        if not 1 <= size <= MAX_FRAME_BYTES:
            return self._refuse_length(size)
        end = LENGTH_SIZE + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[LENGTH_SIZE:end])
        del buffer[:end]
        return parse_request(body)

    def _drop(self) -> None:
        if self._skip:
            gone = min(self._skip, len(self._buffer))
            del self._buffer[:gone]
            self._skip -= gone

    def _refuse_length(self, size: int) -> Refused:
        why = f"invalid frame length: {size} bytes, allowed are 1 to {MAX_FRAME_BYTES}"
        if size > DRAIN_BYTES:
            self._broken = True
            self._buffer.clear()
            return Refused(f"{why}. The connection is closed: so much is not read past", closes=True)
        del self._buffer[:LENGTH_SIZE]
        self._skip = size
        self._drop()
        return Refused(why)


def parse_request(body: bytes) -> Request:
    """One frame's bytes as a command."""
    # Line ends behind a command have always been tolerated; behind a payload they are the payload's own.
    line = body.rstrip()
    word = line.partition(b" ")[0]
    name = word.decode("ascii", "replace")
    if name not in COMMANDS:
        shown = repr(word[:_SHOWN])[2:-1]
        return Refused(f"unknown command {shown}: there are {', '.join(COMMANDS[:-1])} and {COMMANDS[-1]}")
    if name == "PUT":
        return _parse_put(body[len(word) + 1 :])
    if name == "METRICS":
        return Metrics() if line == word else Refused("METRICS takes nothing after it: METRICS")
    topic = _topic(line[len(word) + 1 :])
    if topic is None:
        return Refused("invalid utf-8 in the topic's name")
    if not topic:
        return Refused(f"{name} requires a topic: {name} <topic>")
    if " " in topic:
        return Refused(f"{name} takes one topic and nothing after it: {name} <topic>")
    if name == "REGISTER":
        return Register(topic)
    return Get(topic) if name == "GET" else State(topic)


def _parse_put(rest: bytes) -> Put | Refused:
    name, space, payload = rest.partition(b" ")
    topic = _topic(name)
    if topic is None:
        return Refused("invalid utf-8 in the topic's name")
    if not topic:
        return Refused("PUT requires a topic: PUT <topic> <payload>")
    if not space:
        return Refused("PUT requires a payload: PUT <topic> <payload>")
    return Put(topic, payload)


def _topic(name: bytes) -> str | None:
    try:
        return name.rstrip().decode()
    except UnicodeDecodeError:
        return None


# Replies.


def encode_frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def data_reply(value: bytes) -> bytes:
    return b"OK " + value


def error_reply(why: str) -> bytes:
    return b"ERR " + why[:_LONGEST_ERROR].encode("utf-8", "replace")


def describe_error(error: IsterError, topic: str) -> str:
    """An error in this protocol's words: clients of it look for some of them."""
    if isinstance(error, UnknownTopic):
        return f"unknown topic {topic}: REGISTER {topic} makes it"
    kind = "NotLeaderForPartition" if isinstance(error, NotLeader) else error.code
    message = error.message.rstrip(".")
    return f"{kind}: {message}. {error.hint}".rstrip()
