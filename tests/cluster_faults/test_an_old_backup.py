"""A node started from an old backup of its data directory, where only a node that is down knows better."""

from __future__ import annotations

from unittest import mock

from ister.errors import IsterError, MetadataContradicts
from ister.io.disk import read_whole, write_whole
from ister.testing import SimDisk
from ister.testing.cluster import World, WorldNode, run_story


def backup_of(disk: SimDisk, folder: str = "") -> dict[str, bytes]:
    """All files, by their paths."""
    found: dict[str, bytes] = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            found[path] = read_whole(disk, path)
        except OSError:
            found.update(backup_of(disk, path))
    return found


def restore(node: WorldNode, files: dict[str, bytes]) -> None:
    node.wipe()
    for path, data in files.items():
        node.disk.make_directory(path.rpartition("/")[0])
        write_whole(node.disk, path, data)


def note(node: WorldNode, error: IsterError) -> None:
    node.fatal.append(error)


def test_histories_that_contradict_each_other_end_with_the_directory_and_what_to_do() -> None:
    """Not with "a defect in Ister": an operator has put the backup there, and can mend it."""

    async def story(world: World) -> list[IsterError]:
        one, two, three = (world.nodes[number] for number in (1, 2, 3))
        await two.stop()
        backup = backup_of(two.disk)
        three.kill()
        await two.start()
        await world.settle()
        async with world.connect(1, 2) as log:
            for number in range(5):
                await log.create_topic(f"since-{number}")
        one.kill()
        two.kill()
        restore(two, backup)
        await two.start()
        await three.start()
        async with world.connect(2, 3) as log:
            await log.create_topic("another")
            try:
                await one.start()
            except IsterError as error:
                one.fatal.append(error)
            for number in range(20):
                if any(node.fatal for node in world.nodes.values()):
                    break
                await log.create_topic(f"more-{number}")
        return [error for node in world.nodes.values() for error in node.fatal]

    with mock.patch.object(WorldNode, "_on_fatal", note):
        fatal = run_story(story)
    assert fatal, "nobody noticed"
    for error in fatal:
        assert isinstance(error, MetadataContradicts), error
        assert "simulated:disk/raft" in error.message
        assert "old backup" in error.hint and "defect" not in error.hint
