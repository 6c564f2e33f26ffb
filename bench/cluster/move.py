"""A producer at full speed while its topic is moved: how long it stands still at each move.

As at rollovers (`rollover`): every gap between two acknowledgements belongs to the move that is nearest to
it in offsets, and the longest gap of a piece is the pause of its move. `history_bytes` of records are
written and sealed before, to see that what there is already costs nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import ister
from bench.cluster.nodes import NODES, running_cluster
from bench.cluster.rollover import (
    BATCH_RECORDS,
    NEVER,
    RECORD_BYTES,
    describe_stalls,
    produce,
    stalls,
)
from ister.bench.figures import Fields, rounded
from ister.bench.session import run_loop

TOPIC: Final = "moving"
HISTORY_RECORDS: Final = 1000
HISTORY_RECORD_BYTES: Final = 16_000
HISTORY_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_LOOK_SECONDS: Final = 0.01
_END_SECONDS: Final = 60.0


async def write_history(log: ister.Log, history_bytes: int) -> None:
    values = [b"h" * HISTORY_RECORD_BYTES] * HISTORY_RECORDS
    for _ in range(-(-history_bytes // (HISTORY_RECORD_BYTES * HISTORY_RECORDS))):
        await log.append(TOPIC, values)


async def move_about(log: ister.Log, moves: int) -> list[int]:
    """To one node after the other; where each move sealed the topic."""
    ends = []
    target = (await log.describe_topic(TOPIC)).segments[-1].leader
    for _ in range(moves):
        target = target % len(NODES) + 1
        found = await log.move_topic(TOPIC, target)
        async with asyncio.timeout(_END_SECONDS):
            while not found.is_over:
                await asyncio.sleep(_LOOK_SECONDS)
                (found,) = await log.moves(move=found.move)
        if found.stage != "done":
            raise AssertionError(f"move {found.move} {found.stage}: {found.detail}")
        ends.append(found.end_offset)
    return ends


def measure_moves(directory: Path, moves: int, history_bytes: int = 0) -> Fields:
    """The pauses of so many moves."""

    async def measure(bootstrap: str) -> Fields:
        async with ister.connect(bootstrap) as log, ister.connect(bootstrap) as asking:
            await log.create_topic(TOPIC, segment_records=NEVER, segment_bytes=HISTORY_SEGMENT_BYTES)
            await write_history(log, history_bytes)
            await log.alter_topic(TOPIC, segment_bytes=1 << 40)
            over = asyncio.Event()
            producing = asyncio.create_task(produce(log, TOPIC, over))
            await asyncio.sleep(1.0)
            ends = await move_about(asking, moves)
            over.set()
            stream = await producing
        return {
            "moves": len(ends),
            **describe_stalls(stalls(stream.acknowledged, ends)),
            "errors": len(stream.errors),
            "records_per_s": rounded(stream.records_per_s),
            "history_bytes": history_bytes,
        }

    with running_cluster(directory, {"log_level": "warning"}) as cluster:
        asyncio.run(cluster.wait_whole())
        fields = run_loop(measure(cluster.bootstrap))
    return {**fields, "size": RECORD_BYTES, "batch": BATCH_RECORDS}


def main() -> None:
    """`python -m bench.cluster.move --moves 500 --history 0`: one run by itself."""
    import argparse
    import json
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m bench.cluster.move", description=__doc__)
    parser.add_argument("--moves", type=int, default=500)
    parser.add_argument("--history", type=int, default=0, help="bytes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".ister-bench-", dir=".") as directory:
        print(json.dumps(measure_moves(Path(directory), options.moves, options.history)))


if __name__ == "__main__":
    main()
