"""Values that people set: their units, their ranges, and the settings of a topic.

A `Spec` says what one field may hold. The broker's configuration (`ister.config`) and the settings of a
topic are both made of specs, so that a size is read, checked, explained and documented in one way only.

People write `64MiB` and `10s`; everything inside is a plain number of bytes or milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from ister.errors import InvalidSetting
from ister.protocol.codec import MAX_MESSAGE_BYTES

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

_DAY_MS: Final = 24 * 3600 * 1000
FOREVER_MS: Final = 100 * 365 * _DAY_MS

Value = int | str | bool


class Kind(Enum):
    """What a field counts, which decides how it may be written."""

    COUNT = "number"
    BYTES = "size"
    MILLISECONDS = "duration"
    TEXT = "text"
    CHOICE = "choice"
    SWITCH = "true or false"


class Spec(NamedTuple):
    """What one field may hold, and what it is for."""

    kind: Kind
    about: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    may_be_empty: bool = True

    @property
    def allowed(self) -> str:
        """The range, for people."""
        match self.kind:
            case Kind.CHOICE:
                return " | ".join(self.choices)
            case Kind.SWITCH:
                return "true | false"
            case Kind.TEXT:
                return "text" if self.may_be_empty else "text, not empty"
            case _:
                return f"{show(self.kind, self.low)} to {show(self.kind, self.high)}"


def count(about: str, low: int, high: int) -> Spec:
    return Spec(Kind.COUNT, about, low, high)


def size(about: str, low: int, high: int) -> Spec:
    return Spec(Kind.BYTES, about, low, high)


def duration(about: str, low: int, high: int) -> Spec:
    return Spec(Kind.MILLISECONDS, about, low, high)


def text(about: str, *, may_be_empty: bool = False) -> Spec:
    return Spec(Kind.TEXT, about, may_be_empty=may_be_empty)


class NotAllowed(ValueError):
    """Why a value does not fit its spec. The caller knows the field and the place, and raises the error."""


_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": TIB, "tib": TIB, "tb": 1000**4,
}  # fmt: skip
_DURATION_UNITS: Final = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": _DAY_MS, "w": 7 * _DAY_MS,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"(-?[0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\Z")
_SWITCHES: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def parse_size(text: str) -> int:
    """`64MiB`, `1.5g`, `4096` as bytes; K, M, G and T are powers of 1024, KB, MB, GB, TB of 1000."""
    return _quantity(text, _SIZE_UNITS, "a size such as 4096, 64KiB or 1GiB")


def parse_duration(text: str) -> int:
    """`10s`, `1.5h`, `250` as milliseconds."""
    return _quantity(text, _DURATION_UNITS, "a duration such as 250ms, 10s, 5m, 2h or 7d")


def _quantity(text: str, units: Mapping[str, int], expected: str) -> int:
    found = _QUANTITY.match(text.strip())
    if found is None or found[2].lower() not in units:
        raise NotAllowed(f"is not {expected}")
    number, scale = found[1], units[found[2].lower()]
    return int(number) * scale if "." not in number else int(float(number) * scale)


def show(kind: Kind, value: Value) -> str:
    """A value the way a person would write it; reading it back gives the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int):
        return value
    if kind is Kind.BYTES:
        return _largest(value, (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)), "")
    if kind is Kind.MILLISECONDS:
        return _largest(value, (("d", _DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000)), "ms")
    return str(value)


def _largest(value: int, units: Iterable[tuple[str, int]], rest: str) -> str:
    for name, scale in units:
        if value and value % scale == 0:
            return f"{value // scale}{name}"
    return f"{value}{rest}" if value else "0"


def parse(spec: Spec, value: object) -> Value:
    """The value as it is used inside, or `NotAllowed` with the reason. Text is read with its unit."""
    match spec.kind:
        case Kind.SWITCH:
            return _parse_switch(value)
        case Kind.TEXT | Kind.CHOICE:
            return _parse_text(spec, value)
        case _:
            return _parse_number(spec, value)


def _parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _SWITCHES:
        return _SWITCHES[value.strip().lower()]
    raise NotAllowed("is not true or false")


def _parse_text(spec: Spec, value: object) -> str:
    if not isinstance(value, str):
        raise NotAllowed(f"is {_type_name(value)}, not text")
    if spec.kind is Kind.CHOICE and value not in spec.choices:
        raise NotAllowed(f"is not one of: {', '.join(spec.choices)}{did_you_mean(value, spec.choices)}")
    if not value and not spec.may_be_empty:
        raise NotAllowed("is empty")
    return value


def _parse_number(spec: Spec, value: object) -> int:
    if isinstance(value, str):
        if spec.kind is Kind.BYTES:
            number = parse_size(value)
        elif spec.kind is Kind.MILLISECONDS:
            number = parse_duration(value)
        else:
            number = _quantity(value, {"": 1}, "a whole number")
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise NotAllowed(f"is {_type_name(value)}, not a {spec.kind.value}")
    if not spec.low <= number <= spec.high:
        raise NotAllowed(f"is out of range: {spec.allowed}")
    return number


def _type_name(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a fraction", list: "a list", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody who typed `name` most likely meant."""
    import difflib

    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


TOPIC_SETTINGS: Final[dict[str, Spec]] = {
    "segment_records": Spec(
        Kind.COUNT, "A segment is handed off once it holds this many records.", 1, 10**12
    ),
    "segment_bytes": Spec(Kind.BYTES, "A segment is handed off once it holds this many bytes.", 4096, TIB),
    "segment_age_ms": Spec(
        Kind.MILLISECONDS, "A segment is handed off once it is this old; 0 is never.", 0, FOREVER_MS
    ),
    "fsync": Spec(
        Kind.CHOICE,
        "When records reach the disk: `fsync` before they are acknowledged, `interval` every so often, "
        "`none` when the operating system likes. The latter two lose acknowledged records on power loss.",
        choices=("fsync", "interval", "none"),
    ),
    "retention_ms": Spec(
        Kind.MILLISECONDS,
        "Sealed segments whose last record is older than this are dropped; 0 keeps them.",
        0,
        FOREVER_MS,
    ),
    "retention_bytes": Spec(
        Kind.BYTES,
        "The oldest sealed segments are dropped while the topic is larger than this; 0 keeps them.",
        0,
        1024 * TIB,
    ),
    "max_message_bytes": Spec(
        Kind.BYTES, "The largest batch of records that the topic takes.", 1024, MAX_MESSAGE_BYTES
    ),
    "replicas": Spec(
        Kind.COUNT,
        "On how many nodes each segment is wanted; a cluster with fewer has it on all of them. A record is "
        "acknowledged when most of them have it.",
        1,
        7,
    ),
    "local_retention_ms": Spec(
        Kind.MILLISECONDS,
        "Copies on nodes of segments that are in the history, and whose last record is older than this, are "
        "removed; 0 keeps them.",
        0,
        FOREVER_MS,
    ),
    "local_retention_bytes": Spec(
        Kind.BYTES,
        "The oldest copies of segments that are in the history are removed while the topic has more than "
        "this on nodes; 0 keeps them.",
        0,
        1024 * TIB,
    ),
}
"""What `ister.protocol.messages.TopicSettings` may hold, field by field."""


def validate_settings(settings: Mapping[str, object]) -> dict[str, int | str]:
    """The settings as the broker keeps them, or `InvalidSetting`. Those not named stay not named."""
    checked: dict[str, int | str] = {}
    for name, value in settings.items():
        spec = TOPIC_SETTINGS.get(name)
        if spec is None:
            raise InvalidSetting(
                f"there is no topic setting {name!r}{did_you_mean(name, TOPIC_SETTINGS)}",
                hint=f"The settings are: {', '.join(TOPIC_SETTINGS)}.",
            )
        try:
            checked[name] = parse(spec, value)
        except NotAllowed as reason:
            raise InvalidSetting(
                f"topic setting {name} = {value!r} {reason}", hint=f"Allowed: {spec.allowed}."
            ) from reason
    return checked
