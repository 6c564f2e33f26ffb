"""What every object store promises, shown on each of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.io.fake_gcs import gcs_server
from tests.io.weed import BUCKET, s3_server

from ister.errors import ConfigError, ObjectExists, ObjectNotFound, StoreUnavailable
from ister.io.bucket_store import BucketStore
from ister.io.file_store import FilesystemStore
from ister.io.object_store import ObjectInfo, ObjectStore, list_all, read_pieces
from ister.testing import MemoryStore, VirtualLoop, simulate

Open = Callable[[str], ObjectStore]
"""One owner's way to the store; called again with the same owner: its next life."""


class Stores:
    """Runs a check in a store of one kind."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self._root = root

    def check(self, check: Callable[[Open], Awaitable[None]]) -> None:
        if self.kind == "memory":

            async def main(loop: VirtualLoop) -> None:
                await check(MemoryStore(loop.fork("store"), trace=loop.trace).client)

            simulate(main, seed=1)
        else:
            asyncio.run(self._for_real(check))

    async def _for_real(self, check: Callable[[Open], Awaitable[None]]) -> None:
        opened: list[ObjectStore] = []

        def client(owner: str) -> ObjectStore:
            prefix = self._root.parent.name
            opened.append(
                FilesystemStore(self._root, owner)
                if self.kind == "files"
                else BucketStore(BUCKET, prefix, owner, scheme=self.kind)
            )
            return opened[-1]

        try:
            await check(client)
        finally:
            for store in opened:
                store.close()


@pytest.fixture(params=["memory", "files", "gs", pytest.param("s3", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    if request.param in ("gs", "s3"):
        for name, value in request.getfixturevalue(request.param).items():
            monkeypatch.setenv(name, value)
    return Stores(request.param, tmp_path / "history")


@pytest.fixture
def gs() -> Iterator[dict[str, str]]:
    with gcs_server() as environment:
        yield environment


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3") / "data") as environment:
        yield environment


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def broken(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece
    raise OSError("the segment's disk failed")


def test_an_object_is_written_once_and_read_by_ranges(stores: Stores) -> None:
    async def check(client: Open) -> None:
        store, other = client("one"), client("two")
        await store.put_if_absent("a/b", b"0123456789")
        with pytest.raises(ObjectExists, match="a/b"):
            await other.put_if_absent("a/b", b"other")
        assert await other.get("a/b", 3, 4) == b"3456"
        assert await other.get("a/b", 8, 100) == b"89"
        assert await other.get("a/b", 10, 1) == b""
        assert await other.get("a/b", 2, 0) == b""
        assert await other.head("a/b") == ObjectInfo("a/b", 10)

    stores.check(check)


def test_an_object_that_comes_in_pieces_is_one_object(stores: Stores) -> None:
    async def check(client: Open) -> None:
        store = client("one")
        await store.put_if_absent("a", pieces(b"01", b"", b"234", b"5"))
        assert await store.get("a", 0, 100) == b"012345"
        with pytest.raises(ObjectExists):
            await store.put_if_absent("a", pieces(b"other"))
        assert await store.get("a", 0, 100) == b"012345"
        await store.put_if_absent("empty", pieces())
        assert (await store.head("empty")).size == 0
        assert await store.sweep_unfinished() == 0

    stores.check(check)


def test_a_whole_object_is_read_in_pieces(stores: Stores) -> None:
    async def check(client: Open) -> None:
        store = client("one")
        await store.put_if_absent("a", b"0123456789")
        assert [piece async for piece in read_pieces(store, "a", 1, 9, piece_bytes=3)] == [
            b"123",
            b"456",
            b"78",
        ]
        assert b"".join([piece async for piece in read_pieces(store, "a", 8, 50)]) == b"89"

    stores.check(check)


def test_what_is_not_there_is_a_typed_error_and_may_be_deleted_all_the_same(stores: Stores) -> None:
    async def check(client: Open) -> None:
        store = client("one")
        for absent in ("x", "y/z"):
            with pytest.raises(ObjectNotFound, match=absent):
                await store.get(absent, 0, 1)
            with pytest.raises(ObjectNotFound, match=absent):
                await store.head(absent)
            await store.delete(absent)
        await store.put_if_absent("y/z", b"1")
        await store.delete("y/z")
        with pytest.raises(ObjectNotFound):
            await store.head("y/z")
        await store.put_if_absent("y/z", b"2")
        assert await store.get("y/z", 0, 9) == b"2"

    stores.check(check)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../x", "a/./b", ".unfinished/x", "a/.b", "a\0b"])
def test_a_name_that_no_store_could_hold_is_refused(stores: Stores, name: str) -> None:
    async def check(client: Open) -> None:
        store = client("one")
        with pytest.raises(ValueError, match="no object name"):
            await store.put_if_absent(name, b"")
        with pytest.raises(ValueError, match="no object name"):
            await store.get(name, 0, 1)
        with pytest.raises(ValueError, match="no object name"):
            await store.head(name)
        with pytest.raises(ValueError, match="no object name"):
            await store.delete(name)

    stores.check(check)


def test_a_list_comes_in_pages_in_the_order_of_names(stores: Stores) -> None:
    names = ["a-b", "a/1", "a/10", "a/2", "a/b/c", "a/b-", "a0", "b/a/x", "b/c"]

    async def check(client: Open) -> None:
        store = client("one")
        for name in reversed(names):
            await store.put_if_absent(name, name.encode())
        for prefix in ("", "a", "a/", "a/b", "a/b/", "b/a/x", "b/a/x/", "c", "a/1"):
            expected = [ObjectInfo(name, len(name)) for name in sorted(names) if name.startswith(prefix)]
            for limit in (1, 2, 3, 100):
                found = [entry async for entry in list_all(store, prefix, page=limit)]
                assert found == expected, f"{prefix!r} by {limit}"
        page = await store.list_page("", "a/b/c", 2)
        assert [entry.name for entry in page.objects] == ["a0", "b/a/x"]
        assert page.next_after == "b/a/x"
        assert (await store.list_page("", "b/c", 2)).next_after is None
        assert (await store.list_page("", "a/b", 1)).objects[0].name == "a/b-"

    stores.check(check)


def test_an_upload_that_breaks_off_is_no_object(stores: Stores) -> None:
    async def check(client: Open) -> None:
        store = client("one")
        with pytest.raises(OSError, match="segment's disk"):
            await store.put_if_absent("a", broken(b"0123"))
        with pytest.raises(ObjectNotFound):
            await store.head("a")
        assert (await store.list_page("", None, 9)).objects == ()
        await store.put_if_absent("a", pieces(b"whole"))
        assert await store.get("a", 0, 9) == b"whole"
        await store.sweep_unfinished()
        assert await store.sweep_unfinished() == 0

    stores.check(check)


def test_a_sweep_spares_uploads_under_way_and_those_of_others(stores: Stores) -> None:
    async def check(client: Open) -> None:
        mine, other = client("one"), client("two")
        go_on = asyncio.Event()
        begun = asyncio.Event()

        async def slow(data: bytes) -> AsyncIterator[bytes]:
            yield data[:2]
            begun.set()
            await go_on.wait()
            yield data[2:]

        upload = asyncio.create_task(mine.put_if_absent("a", slow(b"0123")))
        await begun.wait()
        assert await mine.sweep_unfinished() == 0
        assert await other.sweep_unfinished() == 0
        assert await client("one").sweep_unfinished(older_than_s=3600) == 0
        go_on.set()
        await upload
        assert await other.get("a", 0, 9) == b"0123"

    stores.check(check)


def test_one_of_two_racers_makes_the_object(stores: Stores) -> None:
    async def check(client: Open) -> None:
        first, second = client("one"), client("two")
        outcomes = await asyncio.gather(
            first.put_if_absent("x", pieces(b"fi", b"rst")),
            second.put_if_absent("x", b"second"),
            return_exceptions=True,
        )
        won = [outcome for outcome in outcomes if outcome is None]
        assert len(won) == 1
        assert isinstance(next(outcome for outcome in outcomes if outcome is not None), ObjectExists)
        expected = b"first" if outcomes[0] is None else b"second"
        assert await first.get("x", 0, 99) == expected

    stores.check(check)


def test_no_error_of_a_store_that_cannot_be_reached_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SAS token is in each URL that is asked for."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021&sig=the-secret")

    async def check() -> None:
        store = BucketStore(
            "c",
            "p",
            "one",
            scheme="az",
            endpoint="http://127.0.0.1:9",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(StoreUnavailable) as caught:
            await store.list_page("", None, 1)
        store.close()
        assert "az://c/p" in caught.value.message
        assert "the-secret" not in repr(caught.value)

    asyncio.run(check())


def test_what_is_in_the_environment_is_not_in_the_error_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "the-secret"')
    with pytest.raises(ConfigError) as caught:
        BucketStore("b", "p", "one", scheme="gs")
    assert "gs://b/p" in caught.value.message
    assert "the-secret" not in repr(caught.value)


def test_a_large_object_is_never_in_memory(tmp_path: Path) -> None:
    """Of the store in the product: the simulated one is memory."""
    piece, count = 1 << 18, 256

    async def many() -> AsyncIterator[bytes]:
        for number in range(count):
            yield bytes([number]) * piece

    async def check() -> int:
        store = FilesystemStore(tmp_path, "one")
        tracemalloc.start()
        try:
            await store.put_if_absent("large", many())
            position = 0
            async for read in read_pieces(store, "large", 0, count * piece, piece_bytes=piece):
                assert read == bytes([position // piece]) * piece
                position += len(read)
            assert position == count * piece
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            store.close()

    assert asyncio.run(check()) < 16 * piece
