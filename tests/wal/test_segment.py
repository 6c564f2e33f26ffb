"""Appending: offsets, group commit, leases, and what a failing disk does."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from wal_helpers import IDENTITY, new_disk, open_bench, reopen, values_in

from ister.errors import NotLeader
from ister.testing import Loss
from ister.wal.segment import FsyncPolicy


def test_offsets_follow_the_order_of_the_calls_and_are_acknowledged_after_the_sync() -> None:
    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount())
        first, second = bench.append(b"a", b"b"), bench.append(b"c")
        assert bench.answers.appended_at == {}
        await bench.settle()
        assert bench.answers.appended_at == {first: 100, second: 102}
        assert (bench.segment.committed_end, bench.segment.end_offset) == (103, 103)
        durable = disk.durable_bytes(IDENTITY.path + ".log")
        assert len(durable) >= bench.segment.position

    asyncio.run(main())


def test_w20_many_appends_share_one_sync() -> None:
    """W20: one fsync per PUT, no group commit."""

    async def main() -> None:
        bench = open_bench(new_disk().mount())
        for _ in range(500):
            bench.append(b"x")
        await bench.settle()
        assert sum(bench.commits.metrics.sync_seconds.counts) == 1
        assert len(bench.answers.appended_at) == 500

    asyncio.run(main())


def test_a4_a_lease_lost_between_enqueue_and_write_refuses_the_append(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount())
        token = bench.append(b"late")
        bench.leases.replace(frozenset())
        await bench.settle()
        assert isinstance(bench.answers.refusals[token], NotLeader)
        assert bench.answers.appended_at == {}
        assert b"late" not in disk.durable_bytes(IDENTITY.path + ".log")

    with caplog.at_level(logging.DEBUG, "ister.wal.leases"):
        asyncio.run(main())
    assert "write rejected for default/t:1 (leases: {})" in caplog.text
    assert "update_leases: added {}, removed {default/t:1}" in caplog.text


def test_an_append_without_a_lease_is_not_leader() -> None:
    async def main() -> None:
        bench = open_bench(new_disk().mount())
        bench.leases.replace(frozenset({"default/other:1"}))
        with pytest.raises(NotLeader, match="default/t:1"):
            bench.append(b"x")
        assert bench.leases.rejections.value == 1
        assert bench.segment.end_offset == IDENTITY.base_offset

    asyncio.run(main())


def test_p1_a_failed_sync_acknowledges_nothing_and_ends_the_segment() -> None:
    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount())
        good = bench.append(b"good")
        await bench.settle()
        disk.faults.add("sync", suffix=".log", count=1, error=errno.EIO)
        bad = bench.append(b"bad")
        await bench.settle()
        assert bench.answers.failures[0].during_sync
        assert bad in bench.answers.refusals
        assert good in bench.answers.appended_at
        assert bench.segment.committed_end == 101
        with pytest.raises(Exception, match="disk"):
            bench.append(b"more")

    asyncio.run(main())


def test_w15_a_full_disk_is_never_acknowledged() -> None:
    """W15: write errors are ignored, disk-full is acknowledged."""

    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount())
        bench.append(b"fits")
        await bench.settle()
        disk.faults.add("write", suffix=".log", count=1, error=errno.ENOSPC)
        token = bench.append(b"x" * 1000)
        await bench.settle()
        assert token in bench.answers.refusals
        disk.crash(Loss.NONE)
        assert values_in(reopen(disk.mount(), cut_at=101)) == [b"fits"]

    asyncio.run(main())


def test_a5_a_repeat_is_answered_only_once_the_original_is_committed() -> None:
    async def main() -> None:
        bench = open_bench(new_disk().mount())
        original = bench.append(b"a", producer_id=9, sequence=0)
        repeat = bench.append(b"a", producer_id=9, sequence=0)
        assert bench.answers.appended_at == {}, "the original is not durable yet"
        await bench.settle()
        assert bench.answers.appended_at == {original: 100, repeat: 100}
        late = bench.append(b"a", producer_id=9, sequence=0)
        assert bench.answers.appended_at[late] == 100
        assert bench.segment.end_offset == 101

    asyncio.run(main())


def test_a_repeat_of_a_refused_original_is_refused_too() -> None:
    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount())
        disk.faults.add("sync", suffix=".log", count=1, error=errno.EIO)
        tokens = {bench.append(b"a", producer_id=9, sequence=0) for _ in range(2)}
        await bench.settle()
        assert set(bench.answers.refusals) == tokens

    asyncio.run(main())


def test_a6_append_time_never_goes_back() -> None:
    async def main() -> None:
        disk = new_disk()
        mount = disk.mount()
        bench = open_bench(mount)
        for now in (50, 40, 60, 10):
            bench.append(b"x", now_us=now)
        await bench.settle()
        recovered = reopen(mount)
        assert recovered.last_append_time_us == 60

    asyncio.run(main())


@pytest.mark.parametrize("policy", [FsyncPolicy.INTERVAL, FsyncPolicy.NONE])
def test_p6_the_weak_policies_acknowledge_before_the_sync(policy: FsyncPolicy) -> None:
    async def main() -> None:
        disk = new_disk()
        bench = open_bench(disk.mount(), policy=policy)
        token = bench.append(b"x" * 5000)
        while token not in bench.answers.appended_at:  # noqa: ASYNC110 (the timer must not fire yet)
            await asyncio.sleep(0)
        assert b"x" * 5000 not in disk.durable_bytes(IDENTITY.path + ".log")
        await bench.settle()
        synced = b"x" * 5000 in disk.durable_bytes(IDENTITY.path + ".log")
        assert synced == (policy is FsyncPolicy.INTERVAL)

    asyncio.run(main())
