"""Which store a URL means. A URL has a scheme, a host and a path, and no secrets: those it is refused for."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ister.errors import ConfigError
from ister.io.bucket_store import KINDS, BucketStore
from ister.io.file_store import FilesystemStore
from ister.io.object_store import ObjectStore

MODES = ("local", "shared_fs", "object_store")
SCHEMES = {"shared_fs": ("file",), "object_store": tuple(KINDS)}
_EXAMPLE = {"shared_fs": "file:///mnt/ister-history", "object_store": "s3://bucket/prefix"}


def check_store_url(mode: str, url: str) -> None:
    """Raise `ConfigError` unless the URL is one that goes with the mode."""
    if mode == "local":
        if url:
            raise ConfigError(
                f"storage_url = {url!r} is given, and storage_mode = local has no store",
                hint="Set storage_mode to shared_fs or object_store, or leave storage_url out.",
            )
        return
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES[mode]:
        what = f"storage_url = {url!r}" if url else "no storage_url"
        raise ConfigError(
            f"storage_mode = {mode} has {what}", hint=f"Give one like storage_url = {_EXAMPLE[mode]}."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"storage_url has more than a place in it, after {parts.scheme}://",
            hint="Give credentials in the environment, as the store's own tools take them.",
        )
    if parts.scheme in KINDS and not parts.netloc:
        raise ConfigError(f"storage_url = {url!r} names no bucket", hint=f"As {_EXAMPLE[mode]}.")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigError(f"storage_url = {url!r} is no absolute path", hint=f"As {_EXAMPLE[mode]}.")


def open_store(mode: str, url: str, owner: str) -> ObjectStore | None:
    """The store that a broker is told to use; None in local mode."""
    check_store_url(mode, url)
    if mode == "local":
        return None
    parts = urlsplit(url)
    if parts.scheme in KINDS:
        return BucketStore(parts.netloc, parts.path.strip("/"), owner, scheme=parts.scheme)
    return FilesystemStore(Path(unquote(parts.path)), owner)


def open_for_reading(url: str, owner: str) -> ObjectStore:
    """The store of a cluster, for who is none of its brokers and reads it from another place."""
    mode = next((mode for mode, schemes in SCHEMES.items() if urlsplit(url).scheme in schemes), "")
    if not mode:
        raise ConfigError(f"the history is in {url}, and this build knows no such store", hint="Upgrade it.")
    store = open_store(mode, url, owner)
    assert store is not None
    if isinstance(store, FilesystemStore) and not store.is_there:
        raise ConfigError(
            f"the history is in {url}, and there is no such directory here",
            hint="Mount it here as on the brokers, or read from the brokers: read.tier=hot.",
        )
    return store
