"""Line editing for the shells: history that outlives them, and completion. Comforts, never conditions.

Without the readline module, a home, or the right to write there, a shell works all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HISTORY_LINES: Final = 1_000

Complete = Callable[[str, str], Iterable[str]]
"""What a word may become: the line before it, and what is typed of it."""


@contextmanager
def history(path: Path | None, complete: Complete, delimiters: str = " ") -> Iterator[None]:
    """Within it, `input` edits lines, and asks `complete` about what stands between `delimiters`."""
    try:
        import readline
    except ImportError:
        yield
        return

    def completer(typed: str, number: int) -> str | None:
        found = list(complete(readline.get_line_buffer()[: readline.get_begidx()], typed))
        return found[number] if number < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(delimiters)
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_history_length(HISTORY_LINES)
    if path is not None:
        try:
            readline.read_history_file(path)
        except OSError:
            pass  # the first time, or not ours to read
    try:
        yield
    finally:
        readline.set_completer(None)
        if path is not None:
            _keep(path)


def _keep(path: Path) -> None:
    """Write the history where only its owner reads it: payloads may be in it."""
    import readline

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.write_history_file(path)
    except OSError:
        return


def history_path(environ: Mapping[str, str], name: str) -> Path | None:
    """Where a shell of this name keeps its history; None for one that has no home."""
    state, home = environ.get("XDG_STATE_HOME"), environ.get("HOME")
    if state:
        return Path(state) / "ister" / name
    return Path(home) / ".local" / "state" / "ister" / name if home else None
