"""Directories that are another's, in use, damaged or incomplete, and ports that are taken.

Each is an error that a person can act on; none is an empty start over data that may be there (E6, I1).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from broker_helpers import Node, frame_of, on_real_disk, real_config, refusal

from ister.broker.node.data_directory import FORMAT, claim_directory
from ister.broker.node.process import start
from ister.errors import AddressInUse, CorruptSegment, DataDirectoryError, IsterError
from ister.io.clock import SystemClock
from ister.io.disk import LocalDisk
from ister.testing import Loss, SimDisk
from ister.testing.faults import DeadProcess


def fill(data_dir: Path, count: int = 5) -> None:
    """A directory with one topic in two segments: 0 to 2 sealed, 3 and 4 open."""

    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", segment_records=3)
        for number in range(count):
            await client.append("t", frame_of(b"%d" % number))

    on_real_disk(data_dir, scenario)


def refused_start(data_dir: Path, **settings: object) -> IsterError:
    """The error that the start ends in; nothing is left running, so that the next start can have a go."""

    async def main() -> IsterError:
        try:
            running = await start(real_config(data_dir, **settings))
        except IsterError as error:
            assert error.hint
            return error
        await running.stop()
        raise AssertionError("it started")

    error = asyncio.run(main())
    disk = LocalDisk(data_dir)
    assert disk.lock("lock"), "the refused start let go of the directory"
    disk.close()
    return error


@pytest.mark.parametrize("loss", Loss)
def test_a_start_that_is_cut_short_at_any_step_leaves_a_directory_that_can_be_started(loss: Loss) -> None:
    """The first one, in an empty directory, and the one after it; no number of a start comes twice."""
    steps = 0
    while True:
        disk, clock = SimDisk(Random(steps)), SystemClock()
        disk.crash_after(steps)
        begun = 0
        try:
            for _ in range(2):
                begun = claim_directory(disk.mount(), clock, 1).starts
                disk.kill()
        except DeadProcess:
            disk.crash(loss)
            assert claim_directory(disk.mount(), clock, 1).starts > begun
            steps += 1
            continue
        assert steps > 10
        return


def test_the_directory_of_another_node_is_refused_with_both_numbers(tmp_path: Path) -> None:
    fill(tmp_path)
    error = refused_start(tmp_path, node_id=2)
    assert type(error) is DataDirectoryError
    assert "belongs to node 1, this is node 2" in error.message
    assert "--node-id 1" in error.hint


def test_a_directory_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    holder = (
        "import sys; from pathlib import Path; from ister.io.disk import LocalDisk\n"
        "disk = LocalDisk(Path(sys.argv[1])); assert disk.lock('lock'); print('locked', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"

        async def main() -> None:
            error = await refusal(start(real_config(tmp_path)), DataDirectoryError)
            assert str(tmp_path) in error.message and "in use by another process" in error.message

        asyncio.run(main())
        process.communicate()
    fill(tmp_path)


def test_a_directory_with_foreign_files_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    error = refused_start(tmp_path)
    assert type(error) is DataDirectoryError
    assert "neither empty nor a data directory" in error.message and "thesis.tex" in error.message
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_with_both_versions(other: int, tmp_path: Path) -> None:
    fill(tmp_path)
    identity = json.loads((tmp_path / "ister.json").read_text())
    (tmp_path / "ister.json").write_text(json.dumps({**identity, "format": other}))
    error = refused_start(tmp_path)
    assert type(error) is DataDirectoryError
    assert f"has format {other}, this build reads format {FORMAT}" in error.message


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b'{"format": %d}' % FORMAT, b"\xff\xfe", b'{"format": 1e400}']
)
def test_a_damaged_identity_is_an_error_and_not_a_new_identity(text: bytes, tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "ister.json").write_bytes(text)
    error = refused_start(tmp_path)
    assert type(error) is DataDirectoryError
    assert "ister.json" in error.message and "Restore" in error.hint
    assert (tmp_path / "ister.json").read_bytes() == text


def test_a_missing_identity_over_data_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "ister.json").unlink()
    error = refused_start(tmp_path)
    assert type(error) is DataDirectoryError and "no ister.json" in error.message


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    async def main() -> None:
        await refusal(start(real_config(tmp_path / "file")), DataDirectoryError)
        await refusal(start(real_config(tmp_path / "file" / "below")), DataDirectoryError)

    asyncio.run(main())


def test_segments_without_their_metadata_are_an_error_and_are_kept(tmp_path: Path) -> None:
    """E6: a metadata error is never "empty"."""
    fill(tmp_path)
    before = sorted(path.name for path in (tmp_path / "segments").rglob("*"))
    shutil.rmtree(tmp_path / "raft")
    for _ in range(2):  # the second start is not fooled by what the first one left
        error = refused_start(tmp_path)
        assert type(error) is DataDirectoryError
        assert "raft is missing" in error.message and "Restore" in error.hint
    assert sorted(path.name for path in (tmp_path / "segments").rglob("*")) == before


def test_i1_metadata_of_another_cluster_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    """Its uids mean other topics: by them, files that hold records would be taken for leftovers."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    fill(mine)

    async def scenario(node: Node) -> None:
        client = await node.connect()
        uid = (await client.create("t")).uid
        assert f"{uid:016d}" in {path.name for path in (mine / "segments").iterdir()}
        await node.broker.delete_topic("t")
        for number in range(50):
            await client.append("u", frame_of(b"%d" % number))

    on_real_disk(other, scenario, segment_records=3)
    before = sorted(path.name for path in (mine / "segments").rglob("*"))
    shutil.rmtree(mine / "raft")
    shutil.copytree(other / "raft", mine / "raft")
    error = refused_start(mine)
    assert type(error) is DataDirectoryError
    assert "is of cluster" in error.message
    assert sorted(path.name for path in (mine / "segments").rglob("*")) == before


@pytest.mark.parametrize("damage", ["removed", "emptied", "renamed"])
def test_a_missing_metadata_journal_is_an_error(damage: str, tmp_path: Path) -> None:
    """I2, E6: a node that has forgotten its votes and its topics does not begin anew as the same one."""
    fill(tmp_path)
    (path,) = (tmp_path / "raft").glob("journal-*.log")
    match damage:
        case "removed":
            path.unlink()
        case "emptied":
            path.write_bytes(b"")
            path.with_suffix(".side").unlink()
        case "renamed":
            path.rename(path.with_name("journal-0000000000000009.log"))
    for _ in range(2):
        error = refused_start(tmp_path)
        assert type(error) is CorruptSegment and "metadata" in error.message and "Restore" in error.hint
    assert len(list((tmp_path / "segments").rglob("*.log"))) == 2


def test_damage_inside_the_metadata_journal_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    (path,) = (tmp_path / "raft").glob("journal-*.log")
    before = bytearray(path.read_bytes())
    for position in (70, before.rindex(b"SealSegment")):
        path.write_bytes(before)
        spoil(path, position)
        for side in (tmp_path / "raft").glob("*.side"):
            side.unlink()
        error = refused_start(tmp_path)
        assert type(error) is CorruptSegment and "metadata" in error.message and "Restore" in error.hint


def test_a_raft_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    fill(tmp_path)
    (path,) = (tmp_path / "raft").glob("journal-*.log")
    path.unlink()
    path.mkdir()
    error = refused_start(tmp_path)
    assert type(error) is DataDirectoryError and path.name in error.message


def spoil(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("lost", ["OpenedSegment", "SealSegment", "CreateTopic"])
def test_metadata_that_lost_its_last_commands_does_not_hide_records(lost: str, tmp_path: Path) -> None:
    """E6: rot in the journal's tail looks torn (P3); the segments on the disk tell that something is gone."""
    fill(tmp_path, count=5)
    (path,) = (tmp_path / "raft").glob("journal-*.log")
    for side in (tmp_path / "raft").glob("*.side"):
        side.unlink()
    data = path.read_bytes()
    data = data[: data.rindex(lost.encode())]  # from the last such command on
    path.write_bytes(data[: data.rindex(b"ISTF")])
    if lost == "OpenedSegment":

        async def scenario(node: Node) -> None:
            assert await (await node.connect()).values("t") == [b"%d" % number for number in range(5)]

        on_real_disk(tmp_path, scenario)
    else:
        for _ in range(2):  # what the refused start itself adds to the journal changes nothing
            error = refused_start(tmp_path)
            assert type(error) is DataDirectoryError and "segment" in error.message
        assert len(list((tmp_path / "segments").rglob("*.log"))) == 2


@pytest.mark.parametrize("damage", ["missing", "short", "rotten"])
def test_a_damaged_metadata_snapshot_is_an_error(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ister.raft.driver.KEPT_BEHIND_SNAPSHOT", 0)

    async def scenario(node: Node) -> None:
        client = await node.connect()
        number = 0
        while not node.broker.metadata.status().snapshot_index:
            await client.create(f"t{number}")
            number += 1

    on_real_disk(tmp_path, scenario, snapshot_entries=10)
    path = tmp_path / "raft" / "snapshot"
    match damage:
        case "missing":
            path.unlink()
        case "short":
            path.write_bytes(path.read_bytes()[:10])
        case "rotten":
            spoil(path, 30)
    error = refused_start(tmp_path)
    assert type(error) is CorruptSegment and "metadata" in error.message and "Restore" in error.hint


def open_log(data_dir: Path) -> Path:
    return max((data_dir / "segments").rglob("*.log"))


def sealed_log(data_dir: Path) -> Path:
    return min((data_dir / "segments").rglob("*.log"))


def without_side(path: Path) -> None:
    path.with_suffix(".side").unlink()


def test_a_missing_log_of_the_open_segment_is_an_error_and_never_an_empty_start(tmp_path: Path) -> None:
    """E6."""
    fill(tmp_path)
    gone = open_log(tmp_path)
    gone.unlink()

    async def scenario(node: Node) -> None:
        client = await node.connect()
        for work in (client.append("t", frame_of(b"x")), client.fetch("t", 3), client.offsets_at("t", -1)):
            error = await refusal(work, CorruptSegment)
            assert "default/t:2 has no log" in error.message and "Restore" in error.hint
        assert [frame.records()[0].value for frame in await client.fetch("t", 0)] == [b"0", b"1", b"2"]
        assert any("has no log" in note for note in (await client.describe("t")).notes)
        assert (await client.append("other", frame_of(b"x"))).base_offset == 0

    on_real_disk(tmp_path, scenario)
    assert not gone.exists()


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [cut_in_half, remove])
def test_a_damaged_sealed_segment_is_an_error_for_its_readers_and_no_end(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """W7: the cursor never jumps over what cannot be read."""
    fill(tmp_path)
    without_side(sealed_log(tmp_path))
    damage(sealed_log(tmp_path))

    async def scenario(node: Node) -> None:
        client = await node.connect()
        error = await refusal(client.fetch("t", 0), CorruptSegment)
        assert "default/t:1" in error.message
        assert await client.values("t", 3) == [b"3", b"4"]
        assert (await client.append("t", frame_of(b"5"))).base_offset == 5

    on_real_disk(tmp_path, scenario)


def test_an_open_log_shorter_than_its_checkpoint_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    cut_in_half(open_log(tmp_path))

    async def scenario(node: Node) -> None:
        client = await node.connect()
        error = await refusal(client.append("t", frame_of(b"x")), CorruptSegment)
        assert "were durable (up to offset 5)" in error.message

    on_real_disk(tmp_path, scenario)


def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P3, D3: with one replica the cut is reported; recovery logs its source, the end and what it cut."""
    fill(tmp_path)
    path = open_log(tmp_path)
    without_side(path)
    with path.open("ab") as file:
        file.write(b"ISTF torn")

    async def scenario(node: Node) -> None:
        client = await node.connect()
        assert await client.values("t") == [b"%d" % number for number in range(5)]
        (note,) = (await client.describe("t")).notes
        assert "recovery cut 9 bytes after the end at offset 5" in note

    with caplog.at_level("INFO", "ister.broker.topic"):
        on_real_disk(tmp_path, scenario)
    opened = [record for record in caplog.records if record.getMessage() == "segment opened"]
    facts = [record.fields for record in opened if record.fields["segment"] == "default/t:2"]  # type: ignore[attr-defined]
    assert (facts[0]["source"], facts[0]["end"], facts[0]["cut_bytes"]) == ("scan", 5, 9)


@pytest.mark.parametrize("which", ["client_port", "admin_port"])
def test_a_taken_port_is_named_and_the_directory_is_let_go(which: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refused_start(tmp_path, **{which: port})
    assert type(error) is AddressInUse
    assert f"127.0.0.1:{port} is already in use" in error.message
    assert f"--{which.replace('_', '-')}" in error.hint
    assert not list(tmp_path.glob("raft/*")), "it has not come so far as to join a cluster, or to found one"
    fill(tmp_path)
