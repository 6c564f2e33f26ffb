"""The terminal, or the pipe in its place: where output goes, and whether it may have colour.

One `Terminal` is made for each run and handed to every command. Colour is for terminals only, and never
where NO_COLOR is set; each of the two streams decides for itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9091"

_STYLES: Final = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "cyan": "\x1b[36m",
}
_RESET: Final = "\x1b[0m"


class Paint:
    """Colour, or nothing."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def __call__(self, style: str, text: str) -> str:
        return f"{_STYLES[style]}{text}{_RESET}" if self.on and text else text


def discard_output() -> None:
    """Nothing more can be written: what is left in the buffer must not be flushed there at the exit, which
    would then have an exit code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Terminal:
    """What a run was asked for, and its streams."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.output = "text"
        self.bootstrap = environ.get("ISTER_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        may_paint = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        # A stream that was closed before we started is None.
        self.is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.errors_to_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.input_is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self.paint = Paint(on=may_paint and self.is_terminal)
        self.paint_errors = Paint(on=may_paint and self.errors_to_terminal)

    @property
    def own_command(self) -> str:
        """How another terminal calls `ister`: by its path where it was started so and is not on the PATH."""
        program = Path(sys.argv[0])
        if program.name != "ister" or shutil.which("ister", path=self.environ.get("PATH", "")):
            return "ister"
        return shlex.quote(str(program.absolute()))

    @property
    def wants_json(self) -> bool:
        return self.output == "json"

    def write(self, data: bytes) -> None:
        """To the standard output, as it is, and out at once: whoever reads the pipe sees it now."""
        if sys.stdout is None:
            raise click.ClickException("the output cannot be written: the standard output is closed")
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard_output()
            raise click.ClickException(f"the output cannot be written: {error.strerror}") from error

    def say(self, text: str) -> None:
        self.write(f"{text}\n".encode("utf-8", "surrogateescape"))

    def write_objects(self, objects: Iterable[object]) -> None:
        """One JSON object a line."""
        import msgspec

        lines = [msgspec.json.encode(entry) for entry in objects]
        if lines:
            self.write(b"\n".join(lines) + b"\n")

    def tell(self, text: str) -> None:
        """To the standard error: what a person should know and a pipe should not get."""
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
