"""Recovery against its own promise: what was acknowledged is kept, or the open fails (P3)."""

from __future__ import annotations

import asyncio

import pytest
from wal_helpers import IDENTITY, new_disk, open_bench, reopen

from ister.errors import CorruptSegment
from ister.frame import HEADER_SIZE, FrameHeader, decode_header, encode, stamp
from ister.testing import Loss, VirtualLoop, simulate
from ister.wal.marks import durable_before, marked

LOG = IDENTITY.path + ".log"


def test_rot_in_a_synced_cycle_is_no_torn_tail_when_a_later_synced_cycle_follows() -> None:
    """B was appended while A's cycle was under way, and written after A was synced and acknowledged."""
    disk = new_disk()

    async def main(loop: VirtualLoop) -> None:
        bench = open_bench(disk)
        bench.commits._recent_sync = 1.0  # in the worker, as under load
        a = bench.append(b"a" * 100)
        await asyncio.sleep(0)
        assert bench.commits._running is not None
        b = bench.append(b"b" * 100)
        while a not in bench.answers.appended_at:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        assert b not in bench.answers.appended_at, "two cycles, one after the other"
        await bench.settle()
        assert bench.answers.appended_at == {a: 100, b: 101}

    simulate(main, 0)
    disk.crash(Loss.ALL)
    disk.rot(LOG, HEADER_SIZE + 20)  # in the body of A
    with pytest.raises(CorruptSegment):
        recovered = reopen(disk.mount())
        print(recovered.end_offset, recovered.cut_bytes, recovered.cut_reason)


def test_a_process_that_knows_its_committed_end_never_cuts_below_it() -> None:
    """`cut_at` is the committed end in memory: a log that ends before it has lost acknowledged records."""
    disk = new_disk()

    async def main() -> int:
        bench = open_bench(disk.mount())
        for _ in range(3):
            bench.append(b"value")
            await bench.settle()
        return bench.segment.committed_end

    committed = asyncio.run(main())
    disk.rot(LOG, 2 * (HEADER_SIZE + 16) + HEADER_SIZE + 9)  # in the last acknowledged frame
    with pytest.raises(CorruptSegment):
        recovered = reopen(disk.mount(), cut_at=committed)
        print("cut", committed, "->", recovered.end_offset)


def test_the_mark_of_a_frame_never_claims_more_than_was_durable() -> None:
    """The 24 bits overflow: a frame 20 million records behind says that three of them were durable."""
    frame = bytearray(encode([b"x"]))
    stamp(frame, 20_000_000, marked(7, 20_000_000), 0)
    header = decode_header(frame)
    assert isinstance(header, FrameHeader)
    assert durable_before(header) <= 0
