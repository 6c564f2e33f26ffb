"""The raw limit of three copies: the same bytes written and synced to three files, by a thread each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ister.bench.raw import now, raw_file, time_writes

COPIES: Final = 3


def time_copies(directory: Path, total: int, cycle: int) -> float:
    """Seconds until all three files have `total` bytes, in cycles of one write and one sync."""
    with ExitStack() as stack:
        files = [stack.enter_context(raw_file(directory)) for _ in range(COPIES)]
        threads = stack.enter_context(ThreadPoolExecutor(COPIES))
        began = now()
        for done in [threads.submit(time_writes, file, total, cycle) for file in files]:
            done.result()
        return now() - began
