"""The broker's open files: each is closed, and closed once, whatever happens to its segment meanwhile."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from broker_helpers import Node, SimNode, append_request, frame_of, on_real_disk, simulated

from ister.errors import Overloaded
from ister.metadata.commands import Command, OpenedSegment, Outcome, TrimTopic
from ister.protocol.messages import Append, Fetch, Kind
from ister.testing.mount import OpenFile


def test_a_topic_deleted_while_its_failed_segment_is_reopened_closes_no_file_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """os.close of a number that was given away meanwhile closes another segment's log, or a socket."""
    twice: list[str] = []
    close = OpenFile.close

    def watched(self: OpenFile) -> None:
        if not self._open:
            twice.append(self._path)
            return
        close(self)

    monkeypatch.setattr(OpenFile, "close", watched)

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"one"))
        node.disk.faults.add("write", prefix="segments/", count=1, error=errno.ENOSPC)
        client.send(append_request(1, "t", frame_of(b"two")))
        topic = node.broker.topics["default/t"]
        node.disk.slow(0.5)  # the reopening takes a while
        while topic.led.opening is None:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        await node.broker.delete_topic("t")
        await topic.settled()

    simulated(scenario)
    assert not twice


def test_the_files_of_sealed_segments_are_closed_when_the_broker_stops(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        found = []
        for link in Path("/proc/self/fd").iterdir():
            try:
                found.append(str(link.readlink()))
            except OSError:
                continue
        return [name for name in found if str(tmp_path) in name]

    async def scenario(node: Node) -> None:
        client = await node.connect()
        await client.create("t", segment_records=1)
        for number in range(5):
            await client.append("t", frame_of(b"%d" % number))
        assert len(await client.values("t")) == 5

    on_real_disk(tmp_path / "data", scenario)
    assert open_files() == []


def test_a_segment_that_cannot_be_made_leaks_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = [0], [0]
    make, close = OpenFile.__init__, OpenFile.close

    def counting_make(self: OpenFile, *args: object) -> None:
        opened[0] += 1
        make(self, *args)  # type: ignore[arg-type]

    def counting_close(self: OpenFile) -> None:
        closed[0] += 1
        close(self)

    monkeypatch.setattr(OpenFile, "__init__", counting_make)
    monkeypatch.setattr(OpenFile, "close", counting_close)

    async def scenario(node: SimNode) -> int:
        client = await node.connect()
        node.disk.faults.add("sync_directory", prefix="segments/", error=errno.EIO)
        await client.ask(Kind.APPEND, Append("t"), frame_of(b"x"))
        before = opened[0] - closed[0]
        for _ in range(10):
            await asyncio.sleep(1.1)
            await client.ask(Kind.APPEND, Append("t"), frame_of(b"x"))
        return opened[0] - closed[0] - before

    assert simulated(scenario) == 0


def test_a_sealed_segment_that_was_being_opened_when_its_topic_went_is_closed() -> None:
    async def scenario(node: SimNode) -> list[str]:
        client, other = await node.connect(), await node.connect()
        await client.create("t", segment_records=1)
        for _ in range(3):
            await client.append("t", frame_of(b"x"))
        sealed = node.broker.storage.sealed
        node.disk.slow(0.5, count=1)
        reading = asyncio.ensure_future(other.ask(Kind.FETCH, Fetch("t", 0, 1)))
        while not sealed._opening:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        await node.broker.delete_topic("t")
        await reading
        await asyncio.sleep(5)
        return list(sealed._files)

    assert simulated(scenario) == []


def test_a_segment_whose_opening_is_not_recorded_leaks_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OpenFile] = []
    make = OpenFile.__init__

    def remembering(self: OpenFile, *args: object) -> None:
        make(self, *args)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(OpenFile, "__init__", remembering)

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        propose = node.broker.metadata.propose

        async def unwilling(command: Command) -> Outcome:
            if isinstance(command, OpenedSegment):
                raise Overloaded("not now")
            return await propose(command)

        node.broker.metadata.propose = unwilling  # type: ignore[method-assign]
        for _ in range(5):
            answer = await client.ask(Kind.APPEND, Append("t"), frame_of(b"x"))
            assert answer.kind == Overloaded.wire
            await asyncio.sleep(1.1)
        tried = [file for file in made if file._path.startswith("segments/")]
        assert len(tried) >= 10
        assert not any(file._open for file in tried)

    simulated(scenario)


def test_trimming_closes_what_it_removes_and_nothing_else() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.create("t", segment_records=1)
        for number in range(5):
            await client.append("t", frame_of(b"%d" % number))
        assert len(await client.values("t")) == 5
        sealed, topic = node.broker.storage.sealed, node.broker.topics["default/t"]
        before = list(sealed._files)
        await node.broker.metadata.propose(TrimTopic(topic.state.uid, 2))
        await asyncio.sleep(1)
        assert list(sealed._files) == before[2:]
        assert await client.values("t", 2) == [b"2", b"3", b"4"]

    simulated(scenario)


def test_a_topic_deleted_while_its_failed_segment_is_reopened_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[OpenFile] = []
    make = OpenFile.__init__

    def remembering(self: OpenFile, *args: object) -> None:
        make(self, *args)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(OpenFile, "__init__", remembering)

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"one"))
        node.disk.faults.add("write", prefix="segments/", count=1, error=errno.ENOSPC)
        client.send(append_request(1, "t", frame_of(b"two")))
        topic = node.broker.topics["default/t"]
        node.disk.slow(0.5)
        while topic.led.opening is None:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        await node.broker.delete_topic("t")
        await topic.settled()
        files = [file for file in made if file._path.startswith("segments/")]
        assert len(files) >= 4, "it was opened twice"
        assert not any(file._open for file in files)

    simulated(scenario)
