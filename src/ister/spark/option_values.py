"""What stands in an option, read as what it must be; a wrong one is an error that shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ister.errors import ConfigError
from ister.settings import NotAllowed, parse_duration, parse_size

GUIDE: Final = "docs/guides/spark.md lists the options."

Given = Mapping[str, str]
"""Options by their names in lower case, which is how Spark hands them over."""


def flag(given: Given, name: str, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}", hint="Give true or false.")
    return text == "true"


def count(given: Given, name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    found = number(name, text, "a whole number from 1")
    if found == 0:
        raise ConfigError(f"option {name} is 0", hint="Give a whole number from 1.")
    return found


def size(given: Given, name: str) -> int | None:
    """Bytes, with a unit or without one."""
    text = given.get(name.lower())
    return None if text is None else _from_one(name, text, parse_size)


def duration_s(given: Given, name: str, default_s: float) -> float:
    """Seconds; text without a unit counts milliseconds, as with Kafka."""
    text = given.get(name.lower())
    return default_s if text is None else _from_one(name, text, parse_duration) / 1000


def _from_one(name: str, text: str, parse: Callable[[str], int]) -> int:
    try:
        found = parse(text)
    except NotAllowed as error:
        raise ConfigError(f"option {name} is {text!r}, which {error}", hint=GUIDE) from error
    if found < 1:
        raise ConfigError(f"option {name} is {text!r}", hint="Give more than 0.")
    return found


def number(name: str, text: str, what: str) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit() and len(stripped) < 19):
        raise ConfigError(f"option {name} is {text!r}", hint=f"Give {what}.")
    return int(stripped)


def json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}, which is no JSON: {error}", hint=GUIDE) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {text!r}, which is no JSON object", hint=GUIDE)
    return found
