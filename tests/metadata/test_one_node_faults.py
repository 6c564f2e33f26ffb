"""A node alone: killed at any step, on a disk that fails, fills up or rots. Nothing answered is lost."""

from __future__ import annotations

import asyncio
import errno

import pytest

from ister.errors import CorruptSegment, IsterError, StorageFailed
from ister.metadata.commands import Result, TrimTopic
from ister.testing import Loss, VirtualLoop, simulate
from ister.testing.mount import OpenFile
from tests.metadata.chains import seal
from tests.metadata.nodes import Node, alone, create, names, numbered, run_alone, topic


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries stay behind a snapshot, so that the snapshots are what counts."""
    monkeypatch.setattr("ister.raft.driver.KEPT_BEHIND_SNAPSHOT", 3)


# However the process stopped (P2).


class Fuse:
    """Kills the process right before one of the changes that it makes on its disk."""

    def __init__(self, node: Node, after: int, begin: str = "") -> None:
        """`after` changes pass, counted from the first one whose description begins with `begin`."""
        self._node = node
        self._left = after
        self._begin = begin
        self._burn = node.disk._burn
        self.blown = False
        node.disk._burn = self._step  # type: ignore[method-assign]

    def _step(self, what: str) -> None:
        if what.startswith(self._begin):
            self._begin = ""
        if not self._begin:
            self._left -= 1
            if self._left < 0:
                self.blown = True
                self.remove()
                self._node.disk.kill()
                raise OSError(errno.EIO, "killed")
        self._burn(what)

    def remove(self) -> None:
        self._node.disk._burn = self._burn  # type: ignore[method-assign]


@pytest.mark.parametrize("at", range(24))
def test_names_that_a_killed_process_made_are_durable_before_they_are_relied_on(at: int) -> None:
    """P2, for names: kill -9 during the first start, a second start and a command; then the power fails."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        fuse = Fuse(node, at)
        starting = asyncio.create_task(run_alone(node))
        await asyncio.wait([starting], timeout=5)
        assert fuse.blown or starting.done()
        fuse.remove()
        node.kill()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await run_alone(node)
        await create(node, 0)
        node.kill(power=True, loss=Loss.ALL)
        store = await run_alone(node)
        assert (names(store), store.state.cluster_id) == (["t0"], "c1")

    simulate(main, seed=at, limit_seconds=600)


@pytest.mark.parametrize("at", range(24))
def test_a_snapshot_seen_after_a_kill_is_durable_before_a_command_relies_on_it(at: int) -> None:
    """P2: kill -9 while a snapshot replaces the journal, another start, one command; then power fails."""

    async def main(loop: VirtualLoop) -> bool:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        fuse = Fuse(node, at, begin="create raft/snapshot.new")
        count = 0
        while not fuse.blown and count < 30:
            asked = asyncio.create_task(create(node, count))
            await asyncio.wait([asked], timeout=5)
            if not asked.done():
                asked.cancel()
                break
            count += 1
        fuse.remove()
        node.kill()
        store = await run_alone(node)
        found = names(store)
        assert found[:count] == numbered(count)
        await create(node, 99)
        node.kill(power=True, loss=Loss.ALL)
        assert names(await run_alone(node)) == [*found, "t99"]
        return fuse.blown

    assert simulate(main, seed=at, limit_seconds=600), "the process was killed within the snapshot"


# A disk that fails, fills up, or rots.


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_p1_a_failed_write_or_sync_of_the_journal_stops_the_node_and_is_not_answered(operation: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        store = await run_alone(node)
        await create(node, 0)
        node.disk.faults.add(operation, prefix="raft/journal", count=1, error=errno.EIO)
        with pytest.raises(IsterError, match="journal"):
            await store.propose(topic("t1", node.member))
        assert [type(error) for error in node.fatal] == [StorageFailed]
        assert "cannot be written" in node.fatal[0].message
        with pytest.raises(IsterError, match="journal"):
            await store.propose(topic("t2", node.member))
        with pytest.raises(IsterError, match="journal"):
            await store.read_index()
        assert names(store) == ["t0"]
        node.kill(power=True, loss=Loss.ALL)
        assert names(await run_alone(node))[:1] == ["t0"]

    simulate(main, seed=5, limit_seconds=600)


@pytest.mark.parametrize("after", range(12))
def test_a_journal_that_fails_while_a_snapshot_is_written_does_not_hold_up_the_stop(after: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=5)
        store = await run_alone(node)
        node.disk.faults.add("sync", prefix="raft/journal-0000000000000001", after=after)
        node.disk.faults.add("sync", prefix="raft/journal-0000000000000002", after=max(0, after - 6))
        with pytest.raises(IsterError):
            await create(node, *range(30))
        assert len(node.fatal) == 1, "the node was told to stop"
        async with asyncio.timeout(60):
            await store.stop()

    simulate(main, seed=6, limit_seconds=600)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [50, 100_000])
def test_p5_a_full_disk_can_still_seal_and_trim(every: int, seed: int) -> None:
    """However much of the reserve was used when it filled up; also after a restart; with snapshots due."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=every)
        store = await run_alone(node)
        uid = (await store.propose(topic("t", node.member))).topic_uid
        for _ in range(seed):  # some of the reserve is used
            waiting = (store.propose(topic(f"{n:0200}", node.member)) for n in range(900))
            await asyncio.gather(*waiting)
        segment = 1
        node.disk.capacity = 0
        for _ in range(3):
            for _ in range(120):
                command = seal(
                    uid, segment, segment * 10, by=node.member, starts=node.starts, then=node.member
                )
                assert (await store.propose(command)).result is Result.APPLIED
                segment += 1
            assert (await store.propose(TrimTopic(uid, (segment - 1) * 10))).result is Result.APPLIED
            node.kill(power=True)
            store = await run_alone(node)
        assert node.fatal == []
        assert store.state.topics["default/t"].open_segment.segment == segment
        node.disk.capacity = 1 << 40
        before = store.status().snapshot_index
        await create(node, *range(100))
        if every == 50:
            assert store.status().snapshot_index > before, "once there is room, snapshots are taken again"

    simulate(main, seed=seed, limit_seconds=600)


NO_ROOM = [
    ("open", "raft/snapshot.new", 0),
    ("write", "raft/snapshot.new", 0),
    ("sync", "raft/snapshot.new", 0),
    ("open", "raft/journal-0000000000000002.log", 0),
    ("open", "raft/journal-0000000000000002.side", 0),
    ("sync", "raft/journal-0000000000000002.log", 0),
    ("allocate", "raft/journal-0000000000000002.log", 0),
    ("write", "raft/journal-0000000000000002.log", 0),
]


@pytest.mark.parametrize(("operation", "path", "after"), NO_ROOM)
def test_a_snapshot_that_finds_no_room_is_tried_again_and_nothing_stops(
    operation: str, path: str, after: int
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        store = await run_alone(node)
        fault = node.disk.faults.add(operation, prefix=path, after=after, count=2, error=errno.ENOSPC)
        await create(node, *range(40))
        await asyncio.sleep(1)
        assert fault.struck, "the fault was met"
        assert node.fatal == []
        assert store.status().snapshot_index > 0
        node.kill(power=True, loss=Loss.ALL)
        assert names(await run_alone(node)) == numbered(40)

    simulate(main, seed=7, limit_seconds=600)


@pytest.mark.parametrize("after", range(3))
def test_p1_names_that_nobody_knows_to_be_durable_stop_the_node_and_lose_nothing(after: int) -> None:
    """The snapshot's rename took effect and the sync of its directory failed, or the new journal's did."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        fault = node.disk.faults.add("sync_directory", prefix="raft", after=after)
        answered = 0
        for _ in range(40):
            try:
                await create(node, answered)
            except IsterError:
                break
            answered += 1
        assert fault.struck
        assert [type(error) for error in node.fatal] == [StorageFailed]
        node.kill(power=True)
        node.disk.faults.clear()
        assert names(await run_alone(node))[:answered] == numbered(answered)

    simulate(main, seed=after, limit_seconds=600)


@pytest.mark.parametrize(("operation", "after"), [("allocate", 0), ("write", 0), ("sync", 0)])
@pytest.mark.parametrize("power", [True, False])
def test_a_journal_that_could_not_be_shortened_is_the_one_that_counts_after_a_crash(
    operation: str, after: int, power: bool
) -> None:
    """What is left of the attempt must not be taken for the newest journal: more was answered since."""

    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        path = "raft/journal-0000000000000002.log"
        fault = node.disk.faults.add(operation, prefix=path, after=after, error=errno.ENOSPC)
        await create(node, *range(14))
        assert fault.struck
        assert node.fatal == []
        node.kill(power=power)
        node.disk.faults.clear()
        assert names(await run_alone(node)) == numbered(14)

    simulate(main, seed=11, limit_seconds=600)


def test_a_snapshot_that_cannot_be_written_leaks_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def main(loop: VirtualLoop) -> tuple[int, int]:
        node = alone(loop, snapshot_every=2)
        await run_alone(node)
        node.disk.faults.add("write", prefix="raft/snapshot.new", error=errno.ENOSPC, count=10)
        before = opened[0] - closed[0]
        await create(node, *range(60))  # then they succeed again, one in place of the other
        await asyncio.sleep(1)
        assert not node.fatal
        return before, opened[0] - closed[0]

    before, after = simulate(main, seed=8, limit_seconds=600)
    assert after <= before + 2, f"{after - before} files more are open after 60 commands"


@pytest.mark.parametrize("name", ["snapshot", "journal"])
@pytest.mark.parametrize("position", [3, 30, 90])
def test_damaged_metadata_is_an_error_never_an_empty_state(name: str, position: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        await create(node, *range(25))
        node.kill()
        found = next(
            found
            for found in node.disk.mount().list("raft")
            if found.startswith(name) and not found.endswith(".side")
        )
        node.disk.rot(f"raft/{found}", position, bit=2)
        for _ in range(2):
            with pytest.raises(CorruptSegment) as failure:
                await run_alone(node)
            assert "Restore" in failure.value.hint
            node.kill()

    simulate(main, seed=9, limit_seconds=600)


def test_i2_a_node_that_was_there_before_does_not_start_without_what_it_knew() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop)
        await run_alone(node)
        await create(node, 0)
        node.kill()
        node.disk.mount().remove("raft")
        for _ in range(2):
            with pytest.raises(CorruptSegment, match="journal"):
                await node.start()
            node.kill()

    simulate(main, seed=12, limit_seconds=600)


def test_a_missing_journal_behind_a_snapshot_is_an_error() -> None:
    async def main(loop: VirtualLoop) -> None:
        node = alone(loop, snapshot_every=10)
        await run_alone(node)
        await create(node, *range(25))
        node.kill()
        mount = node.disk.mount()
        for found in mount.list("raft"):
            if found.endswith(".log"):
                mount.remove(f"raft/{found}")
        for _ in range(2):
            with pytest.raises(CorruptSegment, match="journal"):
                await run_alone(node)
            node.kill()

    simulate(main, seed=10, limit_seconds=600)
