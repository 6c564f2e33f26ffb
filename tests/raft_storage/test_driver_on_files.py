"""Raft at work on real files: what happens beside a thread that writes."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from raft_words import Words

from ister.errors import IsterError, NotLeader
from ister.io.disk import LocalDisk
from ister.raft import RaftConfig, Role, SnapshotMetadata, bootstrap_state
from ister.raft.driver import RaftNode
from ister.raft.durable import DurableStorage
from ister.raft.snapshot_file import WrittenSnapshot


def test_changes_are_committed_while_a_snapshot_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    write = DurableStorage.write_snapshot

    def write_when_told(storage: DurableStorage, metadata: SnapshotMetadata, data: bytes) -> WrittenSnapshot:
        assert written.wait(30)
        return write(storage, metadata, data)

    monkeypatch.setattr(DurableStorage, "write_snapshot", write_when_told)

    async def main() -> None:
        disk = LocalDisk(tmp_path)
        leads, words = asyncio.Event(), Words()
        fatal: list[IsterError] = []
        raft = RaftNode(
            RaftConfig(node_id=1),
            disk,
            words,
            random=random.Random(1),
            send=lambda member, data: None,
            on_fatal=fatal.append,
            on_soft_state=lambda soft: leads.set() if soft.role is Role.LEADER else None,
            snapshot_every=20,
        )
        await raft.start(bootstrap_state([1]))
        async with asyncio.timeout(30):
            await leads.wait()
            for number in range(60):
                await raft.propose(b"w%d" % number, timeout=20)
            assert raft.status().snapshot_index == 0
            written.set()
            while raft.status().snapshot_index == 0:  # noqa: ASYNC110 (nobody is told of it)
                await asyncio.sleep(0.01)
        taken_at = raft.status().snapshot_index
        assert 20 <= taken_at < 60, "the state as it was when the snapshot was begun"
        await raft.stop()
        storage = DurableStorage(disk)
        found = storage.load()
        assert found.snapshot is not None
        again = Words()
        again.restore(found.snapshot.read(0, found.snapshot.size))
        assert (again.index, again.applied) == (taken_at, words.applied[: len(again.applied)])
        assert found.entries[-1].data == b"w59"
        storage.close()
        disk.close()
        assert not fatal

    asyncio.run(main())


def test_a_stop_closes_no_file_under_a_thread_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number would be another file's by the time of the write."""
    at_work, may_go_on, is_slow = threading.Event(), threading.Event(), threading.Event()
    closed: list[bool] = []
    sync = DurableStorage.sync

    def slow_sync(storage: DurableStorage) -> None:
        if is_slow.is_set():
            at_work.set()
            assert may_go_on.wait(30)
            closed.append(storage._file is None)
        sync(storage)

    monkeypatch.setattr(DurableStorage, "sync", slow_sync)

    async def main() -> None:
        disk = LocalDisk(tmp_path)
        raft = RaftNode(
            RaftConfig(node_id=1),
            disk,
            Words(),
            random=random.Random(1),
            send=lambda member, data: None,
            on_fatal=lambda error: None,
        )
        await raft.start(bootstrap_state([1]))
        while not raft.is_leader:  # noqa: ASYNC110 (it is alone: a moment)
            await asyncio.sleep(0.001)
        is_slow.set()
        proposing = asyncio.ensure_future(raft.propose(b"word", timeout=30))
        assert await asyncio.to_thread(at_work.wait, 30)
        stopping = asyncio.ensure_future(raft.stop())
        await asyncio.wait([stopping], timeout=0.1)
        may_go_on.set()
        await stopping
        with pytest.raises(NotLeader, match="stopping"):
            await proposing
        disk.close()

    asyncio.run(main())
    assert closed == [False]
