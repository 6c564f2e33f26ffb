"""The broker under load: one of the bench's own, in a process and a directory of its own, or a given one.

The directory is made where the bench is started, not in the system's temporary place, which is often in
memory: a sync there costs nothing, and would measure nothing. It is removed at the end, however that comes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ister.errors import ConnectionFailed

_STOP_SECONDS: Final = 30
_COMMAND: Final = "from ister.cli.main import main; main()"


@dataclass(frozen=True)
class Target:
    """Where the broker is, and where the bare loop runs beside it."""

    bootstrap: str
    directory: Path
    process_id: int | None = None
    data_directory: Path | None = None

    def peak_rss_bytes(self, sampled: int = 0) -> int:
        """The most memory that the broker ever had; of a given broker, the most that was seen."""
        if self.process_id is None:
            return sampled
        return peak_rss_bytes(self.process_id)


def peak_rss_bytes(process_id: int) -> int:
    """The kernel's own mark (VmHWM): nothing between two looks is missed."""
    for line in Path(f"/proc/{process_id}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ConnectionFailed(f"process {process_id} has ended", hint="Look at the broker's log.")


@contextmanager
def scratch_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=".ister-bench-", dir=Path.cwd()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def open_target(bootstrap: str | None) -> Iterator[Target]:
    """The broker at `bootstrap`, or a fresh one with nothing but its defaults."""
    with scratch_directory() as directory:
        if bootstrap is not None:
            yield Target(bootstrap, directory)
            return
        with own_broker(directory) as target:
            yield target


@contextmanager
def own_broker(directory: Path) -> Iterator[Target]:
    data, log = directory / "data", directory / "broker.log"
    options = ["--data-dir", str(data), "--client-port", "0", "--admin-port", "-1", "--log-file", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "serve", *options, "--log-level", "warning", "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("ISTER_")},
    )
    try:
        yield _greeted(process, directory, data)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _greeted(process: subprocess.Popen[bytes], directory: Path, data: Path) -> Target:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        said = process.stderr.read().decode(errors="replace").strip()
        raise ConnectionFailed(f"the bench's own broker did not start: {said}", hint="Try `ister serve`.")
    ready = json.loads(line)
    return Target(f"127.0.0.1:{ready['client_port']}", directory, process.pid, data)
