"""Objects in a bucket of S3, or of what speaks like it, of Google Cloud Storage or of Azure, through obstore.

A put of bytes is one conditional request. A put of pieces streams into an object of its own,
`.unfinished/<owner>/<number>`, in parts; the store then copies that to the object's name, on the condition
that nobody has it, and the first one is deleted. Both conditions are the store's own (`If-None-Match`, and
`x-goog-if-generation-match` at Google): the first one wins, whoever asks. A store that does not know them is
refused when a broker tries it at its start.

What can fail, and what then holds:
- Killed in an upload: its parts, or the object of its own, stay, under this owner, and are no object of ours.
  `sweep_unfinished` of the owner's next life removes the object; parts that were never put together are seen
  by the bucket's rule for incomplete uploads only.
- The answer to a copy got lost, and it is sent again: the name is taken then, by this very upload. Whoever is
  told so reads what is there (E2).

obstore's own event loop may abort the interpreter at its exit, so its blocking calls are made, in threads of
the store's own. Credentials are the environment's, as each store's own tools name them (`AWS_ACCESS_KEY_ID`,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, and so on), or the machine's; nothing here
keeps or shows them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import secrets
from collections.abc import AsyncIterable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from ister.errors import ConfigError, DependencyMissing, ObjectExists, ObjectNotFound, StoreUnavailable
from ister.io.clock import SystemClock
from ister.io.object_store import ObjectInfo, Page, check_name

log = logging.getLogger("ister.io.bucket_store")

T = TypeVar("T")

UNFINISHED = ".unfinished"
PART_BYTES = 8 << 20
"""The least that S3 takes for a part is 5 MiB."""
KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    # A copy of S3 has no condition of its own; the end of an upload in parts has.
    "s3": ("S3Store", {"copy_if_not_exists": "multipart"}),
    "gs": ("GCSStore", {}),
    "az": ("AzureStore", {}),
}
"""By the scheme of the URL: obstore's class, and what it has to be told."""


class BucketStore:
    """One owner's way to the objects of a bucket, below a prefix. Of one owner only one lives at a time, or
    each sweeps by age."""

    def __init__(
        self, bucket: str, prefix: str, owner: str, *, scheme: str = "s3", threads: int = 4, **options: Any
    ) -> None:
        """`options` are obstore's, for a store at another address; the rest is the environment's."""
        check_name(owner)
        kind, told = KINDS[scheme]
        try:
            import obstore
            import obstore.exceptions
            import obstore.store
        except ImportError as error:
            raise DependencyMissing(
                "storage_url is of a bucket, and obstore is not installed", hint="pip install 'ister[s3]'"
            ) from error
        self._obstore: Any = obstore
        self._location = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        try:
            self._store: Any = getattr(obstore.store, kind)(bucket, prefix=prefix or None, **told, **options)
        except (obstore.exceptions.BaseError, ValueError) as error:
            # Of the error only its kind: its text may have something of what is in the environment.
            raise ConfigError(
                f"{self._location} cannot be used with what the environment says: {type(error).__name__}",
                hint="Check the variables that the store's own tools take, as docs/guides/history.md lists.",
            ) from None
        self._own = f"{UNFINISHED}/{owner}"
        self._under_way: set[str] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ister-store")

    @property
    def location(self) -> str:
        return self._location

    async def put_if_absent(self, name: str, data: bytes | AsyncIterable[bytes]) -> None:
        check_name(name)
        if isinstance(data, bytes):
            await self._run("put", name, lambda: self._obstore.put(self._store, name, data, mode="create"))
            return
        upload = f"{self._own}/{secrets.token_hex(8)}"
        self._under_way.add(upload)
        try:
            await self._upload(upload, name, data)
            await self._run(
                "put", name, lambda: self._obstore.copy(self._store, upload, name, overwrite=False)
            )
        finally:
            # In a thread, behind a request that may still be at work there when this task was cancelled.
            self._pool.submit(self._abandon, upload).add_done_callback(
                lambda _: self._under_way.discard(upload)
            )

    async def _upload(self, upload: str, name: str, pieces: AsyncIterable[bytes]) -> None:
        writer = self._obstore.open_writer(self._store, upload, buffer_size=PART_BYTES)
        async for piece in pieces:
            await self._run("put", name, lambda piece=piece: writer.write(piece))  # type: ignore[misc]
        await self._run("put", name, writer.close)

    def _abandon(self, upload: str) -> None:
        try:
            self._obstore.delete(self._store, upload)
        except (self._obstore.exceptions.BaseError, OSError) as error:
            log.debug("%s stays, and is swept at the next start: %s", upload, error)

    async def get(self, name: str, start: int, length: int) -> bytes:
        check_name(name)
        return await self._run("get", name, lambda: self._get(name, start, length))

    def _get(self, name: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            return bytes(self._obstore.get_range(self._store, name, start=start, length=length))
        except FileNotFoundError:
            raise
        except (self._obstore.exceptions.BaseError, OSError, ValueError):
            # A range that begins at the end is an error here, and the end of the object for us.
            if start >= self._obstore.head(self._store, name)["size"]:
                return b""
            raise

    async def head(self, name: str) -> ObjectInfo:
        check_name(name)
        found = await self._run("head", name, lambda: self._obstore.head(self._store, name))
        return ObjectInfo(name, found["size"])

    async def list_page(self, prefix: str, after: str | None, limit: int) -> Page:
        return await self._run("list", prefix, lambda: self._list(prefix, after, limit))

    def _list(self, prefix: str, after: str | None, limit: int) -> Page:
        """Not every server that speaks S3 lists in the order of names, or goes on behind a name: the next
        ones are looked for among all."""
        found = heapq.nsmallest(limit + 1, self._names(prefix, after or ""))
        objects = tuple(ObjectInfo(name, size) for name, size in found[:limit])
        return Page(objects, objects[-1].name if len(found) > limit else None)

    def _names(self, prefix: str, after: str) -> Iterator[tuple[str, int]]:
        for entries in self._obstore.list(self._store, prefix.rpartition("/")[0] or None):
            for entry in entries:
                name = entry["path"]
                hidden = any(part.startswith(".") for part in name.split("/"))
                if name > after and name.startswith(prefix) and not hidden:
                    yield name, entry["size"]

    async def delete(self, name: str) -> None:
        check_name(name)
        await self._run("delete", name, lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        try:
            self._obstore.delete(self._store, name)
        except FileNotFoundError:
            pass

    async def sweep_unfinished(self, older_than_s: float = 0.0) -> int:
        return await self._run("sweep", self._own, lambda: self._sweep(older_than_s))

    def _sweep(self, older_than_s: float) -> int:
        now_s = SystemClock().now_us() / 1e6
        spared = set(self._under_way)  # one that ends while the list is made is in it, and under way no more
        left = [
            entry["path"]
            for entries in self._obstore.list(self._store, self._own)
            for entry in entries
            if entry["path"] not in spared
            and entry["path"] not in self._under_way
            and (not older_than_s or now_s - entry["last_modified"].timestamp() >= older_than_s)
        ]
        for path in left:
            self._delete(path)
        return len(left)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    async def _run(self, operation: str, name: str, work: Callable[[], T]) -> T:
        errors = self._obstore.exceptions
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except errors.AlreadyExistsError as error:
            raise ObjectExists(f"object {name} is already in {self._location}") from error
        except FileNotFoundError as error:
            if operation in ("get", "head"):
                raise ObjectNotFound(f"object {name} is not in {self._location}") from error
            raise self._unavailable(operation, name, error) from error
        except (errors.BaseError, OSError, ValueError) as error:
            raise self._unavailable(operation, name, error) from error

    def _unavailable(self, operation: str, name: str, error: Exception) -> StoreUnavailable:
        reason = " ".join(str(error).split())[:300]
        return StoreUnavailable(f"{operation} of {name} in {self._location} failed: {reason}")
