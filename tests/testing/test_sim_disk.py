"""The simulated disk loses what it may lose, keeps what it must keep, and fails where it is told to."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from ister.io.disk import read_whole, write_whole
from ister.testing import DeadProcess, Loss, SimDisk, VirtualLoop, simulate

SEEDS = range(60)


def put(disk: SimDisk, path: str, data: bytes, *, sync: bool) -> None:
    file = disk.open(path, create=True)
    file.write([data], 0)
    if sync:
        file.sync()
    file.close()


def named(seed: int, path: str = "log") -> SimDisk:
    """A disk with one empty file whose name is durable."""
    disk = SimDisk(Random(seed))
    put(disk, path, b"", sync=True)
    disk.sync_directory("")
    return disk


def test_what_was_synced_survives_every_crash() -> None:
    for seed in SEEDS:
        disk = named(seed)
        put(disk, "log", b"kept" * 1000, sync=True)
        disk.crash()
        assert read_whole(disk, "log") == b"kept" * 1000


def test_what_was_not_synced_is_lost_kept_or_torn_depending_on_the_seed() -> None:
    data = bytes(range(256)) * 16
    seen: set[str] = set()
    for seed in SEEDS:
        disk = named(seed)
        put(disk, "log", data, sync=False)
        assert read_whole(disk, "log") == data
        assert disk.durable_bytes("log") == b""
        disk.crash()
        left = read_whole(disk, "log")
        seen.add("lost" if not left else "kept" if left == data else "torn")
        assert disk.durable_bytes("log") == left
    assert seen == {"lost", "kept", "torn"}


def test_a_torn_write_may_leave_a_hole_before_bytes_that_were_kept() -> None:
    data = b"x" * 8192

    def left(seed: int) -> bytes:
        disk = named(seed)
        put(disk, "log", data, sync=False)
        disk.crash(Loss.SOME)
        return read_whole(disk, "log")

    assert any(b"\0" in found and found.rstrip(b"\0").endswith(b"x") for found in map(left, range(200)))


def test_a_later_write_may_survive_an_earlier_one() -> None:
    def left(seed: int) -> bytes:
        disk = named(seed)
        file = disk.open("log")
        file.write([b"a"], 0)
        file.write([b"b"], 1)
        disk.crash(Loss.SOME)
        return read_whole(disk, "log")

    assert b"\0b" in {left(seed) for seed in SEEDS}


def test_a_truncate_that_was_not_synced_may_be_undone() -> None:
    def left(seed: int) -> bytes:
        disk = named(seed)
        put(disk, "log", b"whole", sync=True)
        disk.open("log").truncate(2)
        disk.crash()
        return read_whole(disk, "log")

    assert {left(seed) for seed in SEEDS} == {b"whole", b"wh"}


def test_a_created_file_may_be_gone_when_its_directory_was_not_synced() -> None:
    def there(seed: int) -> bool:
        disk = SimDisk(Random(seed))
        put(disk, "new", b"data", sync=True)
        disk.crash()
        return disk.exists("new")

    assert {there(seed) for seed in SEEDS} == {True, False}


def test_a_rename_is_old_or_new_until_its_directory_is_synced() -> None:
    def names(seed: int) -> tuple[list[str], bytes]:
        disk = named(seed, "old")
        put(disk, "old", b"data", sync=True)
        disk.rename("old", "new")
        disk.crash()
        (name,) = disk.list("")
        return [name], read_whole(disk, name)

    found = [names(seed) for seed in SEEDS]
    assert (["old"], b"data") in found
    assert (["new"], b"data") in found


def test_a_file_that_was_renamed_and_made_anew_is_never_lost() -> None:
    """Were the rename undone and the new file kept, the old bytes would have no name at all."""
    for seed in SEEDS:
        disk = named(seed)
        put(disk, "log", b"old", sync=True)
        disk.rename("log", "log.1")
        put(disk, "log", b"new", sync=True)
        disk.crash(Loss.SOME)
        assert b"old" in [read_whole(disk, name) for name in disk.list("")]


def test_a_file_written_aside_and_renamed_is_never_half_replaced() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        write_whole(disk, "meta", b"first")
        disk.crash_after(seed % 6)
        try:
            write_whole(disk, "meta", b"second!")
            disk.crash()
            assert read_whole(disk, "meta") == b"second!"
        except DeadProcess:
            assert read_whole(disk, "meta") in (b"first", b"second!")


def test_a_removed_file_may_be_back_with_its_synced_bytes() -> None:
    def left(seed: int) -> bytes | None:
        disk = named(seed)
        put(disk, "log", b"data", sync=True)
        disk.remove("log")
        disk.crash()
        return read_whole(disk, "log") if disk.exists("log") else None

    assert {left(seed) for seed in SEEDS} == {None, b"data"}


def test_a_directory_is_durable_when_it_is_made() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        disk.make_directory("topics/t1")
        disk.crash()
        assert disk.exists("topics/t1")


def test_a_directory_made_again_after_its_removal_is_durable_and_empty() -> None:
    for seed in SEEDS:
        disk = SimDisk(Random(seed))
        disk.make_directory("d")
        put(disk, "d/f", b"x", sync=True)
        disk.sync_directory("d")
        disk.remove("d")
        disk.make_directory("d")
        disk.crash()
        assert disk.list("d") == []


def test_a_renamed_directory_takes_its_files_along() -> None:
    disk = SimDisk(Random(1))
    disk.make_directory("a")
    put(disk, "a/f", b"x", sync=True)
    disk.sync_directory("a")
    disk.rename("a", "b")
    disk.sync_directory("")
    disk.crash(Loss.ALL)
    assert read_whole(disk, "b/f") == b"x"
    assert disk.list("") == ["b"]


def test_a_good_sync_after_a_failed_one_does_not_bring_the_bytes_back() -> None:
    """P1: Linux marks the pages clean, so asking again proves nothing."""
    lost = 0
    for seed in SEEDS:
        disk = named(seed)
        disk.faults.add("sync", count=1)
        file = disk.open("log")
        file.write([b"doomed"], 0)
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert file.read(6, 0) == b"doomed"
        lost += disk.durable_bytes("log") != b"doomed"
        disk.crash(Loss.NONE)
        assert read_whole(disk, "log") == disk.durable_bytes("log")
    assert lost > len(SEEDS) / 2


def test_a_killed_process_leaves_its_unsynced_bytes_to_the_next_one() -> None:
    """P2: page cache that survived kill -9 is readable, and lost to a power cut unless synced."""
    disk = named(1)
    put(disk, "log", b"cached", sync=False)
    disk.kill()
    assert read_whole(disk, "log") == b"cached"
    disk.crash(Loss.ALL)
    assert read_whole(disk, "log") == b""


def test_files_and_mounts_of_a_dead_process_can_do_nothing() -> None:
    disk = named(1)
    mount = disk.mount()
    file = mount.open("log")
    assert mount.lock("lock")
    disk.crash()
    with pytest.raises(DeadProcess):
        file.write([b"zombie"], 0)
    with pytest.raises(DeadProcess):
        file.read(1, 0)
    with pytest.raises(DeadProcess):
        mount.open("zombie", create=True)
    assert disk.mount().lock("lock")
    mount.close()
    assert not disk.mount().lock("lock"), "a dead mount must not release its successor's lock"


def test_a_second_process_cannot_take_a_lock_until_the_first_closes() -> None:
    disk = SimDisk(Random(1))
    first, second = disk.mount(), disk.mount()
    assert first.lock("lock")
    assert not second.lock("lock")
    first.close()
    assert second.lock("lock")


def test_a_full_disk_writes_what_fits_and_says_so() -> None:
    disk = SimDisk(Random(1), capacity=10)
    file = disk.open("log", create=True)
    file.write([b"12345678"], 0)
    with pytest.raises(OSError) as caught:
        file.write([b"abcdef"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert file.read(100, 0) == b"12345678ab"
    with pytest.raises(OSError):
        file.allocate(11)
    file.write([b"over"], 0)
    assert disk.free_bytes() == 0
    disk.remove("log")
    assert disk.free_bytes() == 10


def test_space_is_counted_again_after_a_crash_undid_a_removal() -> None:
    disk = SimDisk(Random(1), capacity=10)
    put(disk, "log", b"12345678", sync=True)
    disk.sync_directory("")
    disk.remove("log")
    disk.crash(Loss.ALL)
    assert disk.free_bytes() == 2
    put(disk, "log", b"123456789", sync=False)
    assert disk.free_bytes() == 1
    disk.remove("log")
    assert disk.free_bytes() == 10


@pytest.mark.parametrize("operation", ["open", "read", "write", "sync", "allocate", "truncate"])
def test_a_rule_fails_the_operation_on_the_paths_it_names_and_no_others(operation: str) -> None:
    disk = named(1, "a.log")
    put(disk, "b.idx", b"", sync=True)
    rule = disk.faults.add(operation, suffix=".log", count=1)

    def use(path: str) -> None:
        file = disk.open(path)
        file.write([b"data"], 0)
        file.read(4, 0)
        file.sync()
        file.allocate(8)
        file.truncate(0)
        file.close()

    use("b.idx")
    with pytest.raises(OSError) as caught:
        use("a.log")
    assert caught.value.errno == errno.EIO
    assert rule.struck == 1
    use("a.log")


def test_a_rule_may_wait_and_then_strike_by_chance() -> None:
    disk = named(1)
    rule = disk.faults.add("read", after=5, probability=0.5)
    file = disk.open("log")
    outcomes: list[bool] = []
    for _ in range(100):
        try:
            file.read(1, 0)
            outcomes.append(True)
        except OSError:
            outcomes.append(False)
    assert all(outcomes[:5])
    assert 20 < outcomes.count(False) < 80
    assert rule.struck == outcomes.count(False)
    disk.faults.remove(rule)
    assert file.read(1, 0) == b""


def test_rot_shows_in_reads_now_and_after_a_crash() -> None:
    disk = named(1)
    put(disk, "log", b"\0\0", sync=True)
    disk.rot("log", 1, bit=3)
    assert read_whole(disk, "log") == b"\0\x08"
    disk.crash(Loss.ALL)
    assert read_whole(disk, "log") == b"\0\x08"


def test_rot_of_unsynced_bytes_is_synced_with_them() -> None:
    disk = named(1)
    put(disk, "log", b"\0", sync=False)
    disk.rot("log", 0)
    disk.open("log").sync()
    assert disk.durable_bytes("log") == b"\1"


def test_a_torn_file_ends_where_it_was_cut() -> None:
    disk = named(1)
    put(disk, "log", b"0123456789", sync=True)
    disk.tear("log", 4)
    disk.crash(Loss.ALL)
    assert read_whole(disk, "log") == b"0123"


def test_the_power_may_fail_between_a_write_and_its_sync() -> None:
    async def main(loop: VirtualLoop) -> tuple[bytes, list[str]]:
        disk = SimDisk(loop.fork("disk"))
        put(disk, "log", b"", sync=True)
        disk.sync_directory("")
        file = disk.open("log")
        told: list[str] = []
        disk.crash_after(1, lambda: told.append("crashed"))

        def flush() -> None:
            file.write([b"unsynced"], 0)
            file.sync()

        task = asyncio.create_task(disk.run(flush))
        await asyncio.wait([task])
        assert task.cancelled()
        return disk.durable_bytes("log"), told

    ends = [simulate(main, seed) for seed in SEEDS]
    assert all(told == ["crashed"] for _, told in ends)
    assert {len(data) for data, _ in ends} >= {0, 8}


def test_work_that_waits_for_a_crashed_disk_is_neither_done_nor_answered() -> None:
    async def main(loop: VirtualLoop) -> None:
        disk = SimDisk(loop.fork("disk"), latency=(1.0, 1.0))
        done: list[int] = []
        task = asyncio.create_task(disk.run(lambda: done.append(1)))
        await asyncio.sleep(0.5)
        disk.crash()
        await asyncio.wait([task])
        assert task.cancelled()
        assert done == []

    simulate(main, 1)


def test_work_may_be_done_and_its_answer_lost_with_the_process() -> None:
    async def main(loop: VirtualLoop) -> None:
        disk = SimDisk(loop.fork("disk"), latency=(1.0, 1.0))
        done: list[int] = []
        task = asyncio.create_task(disk.run(lambda: done.append(1)))
        await asyncio.sleep(1.1)
        disk.crash()
        await asyncio.wait([task])
        assert task.cancelled()
        assert done == [1]

    simulate(main, 1)


def test_a_slow_disk_answers_late_and_errors_reach_the_one_who_waits() -> None:
    async def main(loop: VirtualLoop) -> float:
        disk = SimDisk(loop.fork("disk"))
        disk.slow(5, count=1)
        assert await disk.run(lambda: 42) == 42
        late = loop.time()
        with pytest.raises(FileNotFoundError):
            await disk.run(lambda: disk.open("absent"))
        assert loop.time() - late < 1
        return late

    assert simulate(main, 1) > 5
