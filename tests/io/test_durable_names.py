"""Real directories: what was made is durable before it is relied on (P2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ister.io import disk as disk_module
from ister.io.disk import LocalDisk


def test_every_directory_made_for_the_data_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--data-dir a/b/c on a machine that has none of them: a power cut must not take `a` away."""
    synced: list[str] = []
    sync = disk_module._sync_path
    monkeypatch.setattr(disk_module, "_sync_path", lambda path: (synced.append(str(path)), sync(path)))
    LocalDisk(tmp_path / "a" / "b" / "c").close()
    for made in ("a", "a/b", "a/b/c"):
        assert str((tmp_path / made).parent) in synced, f"the name of {made} is not durable"


def test_a_directory_that_a_killed_process_made_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: killed between mkdir and the sync of the parent; the next process finds it and relies on it."""
    disk = LocalDisk(tmp_path / "data")
    (tmp_path / "data" / "segments" / "1").mkdir(parents=True)
    synced: list[str] = []
    sync = disk_module._sync_path
    monkeypatch.setattr(disk_module, "_sync_path", lambda path: (synced.append(str(path)), sync(path)))
    disk.make_directory("segments/1")
    disk.close()
    assert str(tmp_path / "data" / "segments") in synced
