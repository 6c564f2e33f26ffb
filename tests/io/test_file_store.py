"""Objects as files: what a kill, a power cut, a full or a strange filesystem leave behind."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ister.errors import ObjectExists, ObjectNotFound, StoreUnavailable
from ister.io import file_store
from ister.io.file_store import FilesystemStore


def in_store(root: Path, check: Callable[[FilesystemStore], Awaitable[None]], owner: str = "one") -> None:
    async def run() -> None:
        store = FilesystemStore(root, owner)
        try:
            await check(store)
        finally:
            store.close()

    asyncio.run(run())


def watch_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    synced: list[Path] = []
    real = file_store._sync_directory
    monkeypatch.setattr(file_store, "_sync_directory", lambda path: (synced.append(path), real(path)))
    return synced


def test_an_object_and_every_directory_above_it_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2. The root, too, is made where it is not there; what is there may be of a process that was killed."""
    root = tmp_path / "mnt" / "history"
    (root / "topic").mkdir(parents=True)
    synced = watch_syncs(monkeypatch)
    files: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (files.append(os.fstat(fd).st_size), fsync(fd))[1])
    in_store(root, lambda store: store.put_if_absent("topic/segments/1", b"0123"))
    assert {root, root / "topic", root / "topic" / "segments"} <= set(synced)
    assert 4 in files, "the object's own file was not synced"


def test_an_object_that_is_there_already_is_durable_before_it_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: killed between link and sync; the next one adopts the object, publishes, drops its own copy."""
    (tmp_path / "object").write_bytes(b"data")
    synced = watch_syncs(monkeypatch)

    async def check(store: FilesystemStore) -> None:
        with pytest.raises(ObjectExists):
            await store.put_if_absent("object", b"data")

    in_store(tmp_path, check)
    assert synced.count(tmp_path) >= 2  # once for the unfinished file's directory, once for the object


def test_what_a_killed_upload_left_is_swept_by_its_owners_next_life_only(tmp_path: Path) -> None:
    left = tmp_path / ".unfinished" / "one" / "0123"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")

    async def other(store: FilesystemStore) -> None:
        assert await store.sweep_unfinished() == 0
        assert (await store.list_page("", None, 9)).objects == ()

    async def mine(store: FilesystemStore) -> None:
        assert await store.sweep_unfinished() == 1

    in_store(tmp_path, other, "two")
    assert left.exists()
    in_store(tmp_path, mine, "one")
    assert not left.exists()


def test_an_upload_that_was_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def check(store: FilesystemStore) -> None:
        begun = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"0" * 65536
                begun.set()

        upload = asyncio.create_task(store.put_if_absent("a", endless()))
        await begun.wait()
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        with pytest.raises(ObjectNotFound):
            await store.head("a")

    in_store(tmp_path, check)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_link_whose_answer_got_lost_has_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS sends a request again when the answer is lost, and is told that the name is taken: by itself."""
    link = os.link

    def doubled(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", doubled)
    in_store(tmp_path, lambda store: store.put_if_absent("a", b"mine"))
    assert (tmp_path / "a").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "No space left"), (errno.EOPNOTSUPP, "hard link"), (errno.EIO, "error")],
)
def test_a_filesystem_that_refuses_is_a_typed_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)

    async def check(store: FilesystemStore) -> None:
        with pytest.raises(StoreUnavailable, match=said) as refused:
            await store.put_if_absent("a", b"mine")
        assert refused.value.retriable
        assert str(tmp_path) in str(refused.value)

    in_store(tmp_path, check)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_failed_sync_makes_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: this file is not trusted and not synced again; the next upload writes another."""
    fsync = os.fsync
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fail_once(fd: int) -> None:
        if os.fstat(fd).st_size == 4 and failures:
            raise failures.pop()
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail_once)

    async def check(store: FilesystemStore) -> None:
        with pytest.raises(StoreUnavailable):
            await store.put_if_absent("a", b"0123")
        with pytest.raises(ObjectNotFound):
            await store.head("a")
        await store.put_if_absent("a", b"0123")

    in_store(tmp_path, check)
    assert (tmp_path / "a").read_bytes() == b"0123"


def test_an_owners_name_stays_within_its_directory(tmp_path: Path) -> None:
    for owner in ("", "..", "a/b", ".x"):
        with pytest.raises(ValueError, match="name"):
            FilesystemStore(tmp_path, owner)
