"""Line editing for the shell: history that outlives it, and completion. Both are comforts, never conditions.

Without the readline module, a home, or the right to write there, the shell works all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ister.cli.shell_lines import complete


@contextmanager
def history(path: Path | None, length: int, topics: Iterable[str]) -> Iterator[None]:
    """Within it, `input` edits lines. `topics` may grow meanwhile."""
    try:
        import readline
    except ImportError:
        yield
        return

    def completer(typed: str, number: int) -> str | None:
        found = complete(readline.get_line_buffer()[: readline.get_begidx()], typed, topics)
        return found[number] if number < len(found) else None

    readline.set_completer(completer)
    readline.set_completer_delims(" ")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_history_length(length)
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
