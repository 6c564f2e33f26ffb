"""Logs: the standard library's, set up once, with fields beside the message.

    log = get_logger("ister.wal")
    log.info("recovered", extra=fields(topic="default/events", end=1_000_050))

A message says what happened, its fields say with what; as text they follow as `key=value`, as JSON they
stand beside it. Nothing is formatted while a level is off. A value that came from outside can't forge a
line: control characters are escaped in text, and JSON does that by itself.

Levels are `info`, or `info,ister.wal=debug` for some modules. Colour is the caller's decision: whoever
owns the terminal knows whether it is one.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from ister.errors import ConfigError
from ister.settings import did_you_mean

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_ALIASES: Final = {"warn": "warning", "fatal": "critical"}
_SHOWN: Final = {number: name for name, number in LEVELS.items()}

_ROOT: Final = "ister"
_RESERVED: Final = frozenset({"time", "level", "logger", "message", "error"})
_GET_LOGGER: Final = re.compile(r'getLogger\("(ister[.\w]*)"\)')
_PLAIN: Final = re.compile(r"[^\s=\"'\x00-\x1f\x7f]+\Z")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_LEVEL_COLOURS: Final = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}


def get_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def fields(**values: object) -> dict[str, dict[str, object]]:
    """For `extra=`: what the message is about."""
    return {"fields": values}


class Repeats:
    """What is said again and again is said at once, and then how often at most every `seconds`."""

    _MOST: Final = 1000
    """So many things are told apart; beyond that all of them are said anew."""

    def __init__(self, monotonic: Callable[[], float], seconds: float = 60.0) -> None:
        self._monotonic = monotonic
        self._seconds = seconds
        self._said: dict[object, tuple[float, int]] = {}

    def count(self, what: object) -> int:
        """How often it came since it was last said, this time included; 0 if it is not to be said now."""
        now = self._monotonic()
        since, count = self._said.get(what, (now - self._seconds, 0))
        if now - since < self._seconds:
            self._said[what] = since, count + 1
            return 0
        if len(self._said) >= self._MOST:
            self._said.clear()
        self._said[what] = now, 0
        return count + 1

    def left(self) -> list[tuple[Any, int]]:
        """What came again, was not said, and is not likely to come any more; and how often."""
        now = self._monotonic()
        over = [what for what, (since, _) in self._said.items() if now - since >= self._seconds]
        counts = [(what, self._said.pop(what)[1]) for what in over]
        return [(what, count) for what, count in counts if count]


def parse_levels(text: str) -> tuple[int, dict[str, int]]:
    """`info,ister.wal=debug` as the general level and those of single modules."""
    general = logging.INFO
    modules: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        module, equals, name = part.rpartition("=")
        level = _level(name.strip(), text)
        if equals:
            modules[_known(module.strip(), text)] = level
        else:
            general = level
    return general, modules


def _known(module: str, text: str) -> str:
    """A name that something logs under: a logger or a module of ours or what they are in, or of a library."""
    if module.partition(".")[0] != _ROOT:
        if module and importlib.util.find_spec(module.partition(".")[0]) is not None:
            return module
        ours: set[str] = set()
    else:
        ours = _our_names()
    if module not in ours:
        raise ConfigError(
            f"log_level {text!r} names {module!r}, and nothing logs under that"
            f"{did_you_mean(module, sorted(ours or _our_names()))}",
            hint="Give what a log line shows before the colon, or what it begins with: info,ister.wal=debug.",
        )
    return module


def _our_names() -> set[str]:
    package = Path(__file__).parent
    names: set[str] = set()
    for path in package.rglob("*.py"):
        names.add(".".join((_ROOT, *path.relative_to(package).with_suffix("").parts)))
        names.update(_GET_LOGGER.findall(path.read_text(encoding="utf-8")))
    pieces = [name.split(".") for name in names]
    return {".".join(parts[:count]) for parts in pieces for count in range(1, len(parts) + 1)}


def _level(name: str, text: str) -> int:
    lower = name.lower()
    level = LEVELS.get(_ALIASES.get(lower, lower))
    if level is None:
        raise ConfigError(
            f"log_level {text!r} has no level {name!r}{did_you_mean(lower, LEVELS)}",
            hint=f"Levels are {', '.join(LEVELS)}; for one module: info,ister.wal=debug.",
        )
    return level


class TextFormatter(logging.Formatter):
    """One line for a person: time, level, module, message, fields."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self.colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time, level = _time(record), f"{_SHOWN.get(record.levelno, record.levelname).upper():<8}"
        message, logger = _one_line(record.getMessage()), record.name
        pairs = [(key, _shown(value)) for key, value in _fields(record).items()]
        if self.colour:
            level = f"{_LEVEL_COLOURS.get(record.levelno, '')}{level}{_RESET}"
            time, logger = f"{_DIM}{time}{_RESET}", f"{_DIM}{logger}{_RESET}"
            tail = "".join(f" {_DIM}{key}={_RESET}{value}" for key, value in pairs)
        else:
            tail = "".join(f" {key}={value}" for key, value in pairs)
        line = f"{time} {level} {logger}: {message}{tail}"
        trace = _trace(self, record)
        return f"{line}\n{_indented(trace)}" if trace else line


class JsonFormatter(logging.Formatter):
    """One object a line. A field that is named like one of ours gets an underscore behind it."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": _SHOWN.get(record.levelno, record.levelname.lower()),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            entry[f"{key}_" if key in _RESERVED else key] = value
        trace = _trace(self, record)
        if trace:
            entry["error"] = trace
        return json.dumps(entry, default=_plain, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


def _plain(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _shown(value: object) -> str:
    text = _plain(value)
    return text if _PLAIN.match(text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\n", "\\n"))


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


def _indented(trace: str) -> str:
    return "\n".join(f"    {line}" for line in trace.splitlines())


class _Ours:
    """Marks the handler that set-up installed, so that setting up again replaces it and no other."""


class _StreamHandler(logging.StreamHandler[TextIO], _Ours):
    pass


class _FileHandler(logging.handlers.WatchedFileHandler, _Ours):
    """Appends; opens the file again when something rotated it away."""


def set_up_logs(
    level: str = "info",
    *,
    style: str = "text",
    file: str = "",
    stream: TextIO | None = None,
    colour: bool = False,
) -> None:
    """Send the process's logs to `file`, else to `stream`, else to stderr. Again replaces what was before.

    The handler is the root's, so that asyncio's own complaints land in the same place as ours.
    """
    general, modules = parse_levels(level)
    handler = _make_handler(file, stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter(colour=colour and not file))
    root = logging.getLogger()
    for old in [found for found in root.handlers if isinstance(found, _Ours)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    for name, known in logging.root.manager.loggerDict.items():
        if isinstance(known, logging.Logger) and name.startswith(f"{_ROOT}."):
            known.setLevel(logging.NOTSET)
    logging.getLogger(_ROOT).setLevel(general)
    for name, number in modules.items():
        logging.getLogger(name).setLevel(number)


def _make_handler(file: str, stream: TextIO | None) -> logging.Handler:
    if not file:
        return _StreamHandler(stream if stream is not None else sys.stderr)
    try:
        return _FileHandler(file, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"log_file {file!r} cannot be opened: {error.strerror}",
            hint="Give a file in a directory that exists and is writable, with --log-file.",
        ) from error
