"""Gates: a task that stops in the middle of its range until a test lets it go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ister import sync

if TYPE_CHECKING:
    import pyarrow as pa

FRAME = 500
GATE_SECONDS = 120
PAIR = "offset long, number long"


def append_numbers(bootstrap: str, topic: str, start: int, end: int) -> None:
    """Each value begins with the offset that it must have."""
    with sync.connect(bootstrap) as log:
        for base in range(start, end, FRAME):
            appended = log.append(topic, [b"%08d" % number * 60 for number in range(base, base + FRAME)])
            assert appended.base_offset == base


def gated(gate: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows pass as pairs of offset and number. The first ones are reported in the file `seen`; then the task
    waits, with most of its range unread, until there is a file `go`."""
    folder = str(gate)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            (Path(folder) / "seen").touch()
            deadline = time.monotonic() + GATE_SECONDS
            while not (Path(folder) / "go").exists():
                assert time.monotonic() < deadline, "nobody opened the gate"
                time.sleep(0.01)
            text = pc.binary_slice(batch.column("value"), 0, 8).cast(pa.string())
            numbers = text.cast(pa.int64())
            yield pa.RecordBatch.from_arrays([batch.column("offset"), numbers], ["offset", "number"])

    return pass_on


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + GATE_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} never came"
        time.sleep(0.01)
