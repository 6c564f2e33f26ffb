"""Errors on their way through Spark, which passes on nothing but the text of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ister.errors import IsterError


@contextmanager
def hints_shown() -> Iterator[None]:
    """Let an error's hint be part of its traceback, so that it reaches the person at the driver."""
    try:
        yield
    except IsterError as error:
        note = f"hint: {error.hint}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
