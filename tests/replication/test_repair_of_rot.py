"""Rotten bytes among the replicas of a sealed segment: none is copied, and what is good is put together."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from ister.frame import HEADER_SIZE, FrameHeader, decode_header
from ister.protocol.peer import node_of
from ister.replication.copies.sealed_copies import Finished, SealedCopies
from ister.replication.places import Place
from ister.testing.cluster import World, WorldNode, run_story
from ister.wal.reader import plan_read
from tests.replication.repair_helpers import (
    durable,
    fill,
    holders,
    is_healed,
    path_of,
    replicas_of,
    sealed,
    until,
)


def test_what_was_on_a_disk_before_is_not_taken_for_the_copy() -> None:
    """A rotten log under a checkpoint looks complete to whoever goes on from the checkpoint."""

    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        holder = world.nodes[holders(segment)[0]]
        silent = world.nodes[holders(segment)[2]]
        target = next(node for node in world.up if node.member not in segment.replicas)
        path = path_of(world, segment)
        for suffix in (".log", ".side"):
            data = bytearray(holder.disk.durable_bytes(path + suffix))
            if suffix == ".log":
                data[100] ^= 1
            target.disk.make_directory(path.rpartition("/")[0])
            file = target.disk.open(path + suffix, create=True)
            file.write([data], 0)
            file.sync()
            file.close()
        silent.kill()
        await until(lambda: is_healed(world))
        assert target.member in replicas_of(world, segment.uid)
        assert durable(world, target, segment) == durable(world, holder, segment)

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=5_000)


def rotten_source(world: World) -> tuple[WorldNode, WorldNode, WorldNode]:
    """A sealed segment's first replica gets a rotten byte, its last one dies; and who is left to copy it."""
    segment = sealed(world)[0]
    first, second, third = (world.nodes[number] for number in holders(segment))
    first.disk.rot(path_of(world, segment) + ".log", 80 + HEADER_SIZE + 5)
    third.kill()
    return first, second, next(node for node in world.up if node.member not in segment.replicas)


def test_rot_in_the_source_is_never_copied_and_the_source_is_mended() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        good = durable(world, world.nodes[holders(segment)[1]], segment)
        first, _, target = rotten_source(world)
        await until(lambda: is_healed(world))
        assert target.member in replicas_of(world, segment.uid)
        assert durable(world, target, segment) == durable(world, first, segment) == good
        assert first.broker.replication.completions.found_corrupt.value == 1
        assert first.broker.replication.completions.replaced.value == 1

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=5_000, scrub_bytes_per_second=0)


def test_a_repair_from_a_corrupt_copy_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: neither side checks what is copied. Then the new replica has what is rotten, and the
    check of the stories above sees it."""
    monkeypatch.setattr("ister.replication.copies.copying._GrowingLog._checked", _unchecked)
    monkeypatch.setattr("ister.broker.node.sealed.read_frames", _unchecked_frames)

    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        rotten_source(world)
        await until(lambda: len(set(replicas_of(world, segment.uid)) & {n.member for n in world.up}) == 3)
        assert (
            len({durable(world, world.nodes[node_of(m)], segment) for m in replicas_of(world, segment.uid)})
            == 2
        )
        assert not is_healed(world)

    run_story(story, nodes=4, replicas=3, segment_records=4, repair_after_ms=5_000, scrub_bytes_per_second=0)


def test_a_replica_that_comes_back_while_a_damaged_copy_is_replaced_was_not_asked() -> None:
    """Without it nobody has what is damaged. That is no reason to serve the copy as it is, for as long as a
    hopeless one is: simulation, seed 1727."""

    async def story(world: World) -> tuple[bool, bool]:
        await fill(world, 8)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        rotten, away = (world.nodes[number] for number in holders(segment))
        completions, finish = rotten.broker.replication.completions, SealedCopies.finish
        was_served: list[bool] = []

        async def back_meanwhile(
            self: SealedCopies, place: Place, sources: list[int], **named: Any
        ) -> Finished:
            finished = await finish(self, place, sources, **named)
            if self is rotten.broker.replication.sealed_copies and not away.is_up:
                await away.start()
                await until(lambda: rotten.broker.metadata.is_alive(away.member))
            return finished

        rotten.disk.rot(path_of(world, segment) + ".log", 80 + HEADER_SIZE + 5)
        away.kill()
        await until(lambda: not rotten.broker.metadata.is_alive(away.member))
        with mock.patch.object(SealedCopies, "finish", back_meanwhile):
            await rotten.broker.replication.scrubbing.round()
            await until(lambda: away.is_up)
            for _ in range(100):
                was_served.append(not completions.is_incomplete(segment.uid))
                if completions.is_whole(segment.uid):
                    break
                await asyncio.sleep(0.5)
        return completions.is_whole(segment.uid), any(was_served[:-1])

    settings = {"segment_records": 4, "repair_after_ms": 600_000, "scrub_bytes_per_second": 1 << 20}
    assert run_story(story, nodes=3, replicas=2, **settings) == (True, False)


def _unchecked(growing: Any, data: bytes) -> list[Any]:
    headers, position = [], 0
    while position < len(data):
        header = decode_header(data, position)
        assert isinstance(header, FrameHeader)
        headers.append(header)
        position += header.size
    return headers


def _unchecked_frames(file: Any, index: Any, key: str, limit: int, end: int, offset: int, size: int) -> bytes:
    return b"".join(plan_read(key, file, index, limit, end, offset, size).run().buffers)


def test_records_that_two_replicas_have_damaged_in_different_places_are_put_together() -> None:
    async def story(world: World) -> None:
        await fill(world, 8)
        segment = sealed(world)[0]
        good = durable(world, world.nodes[holders(segment)[0]], segment)
        first, second, third = (world.nodes[number] for number in holders(segment))
        path = path_of(world, segment) + ".log"
        first.disk.rot(path, 80 + HEADER_SIZE + 5)  # in the bodies: what lies behind can still be found
        second.disk.rot(path, len(good) - 5)
        third.kill(power=True)
        third.wipe()
        for node in (first, second):
            await node.broker.replication.scrubbing.round()
        await until(lambda: durable(world, first, segment) == durable(world, second, segment) == good)

    run_story(story, replicas=3, segment_records=4, scrub_bytes_per_second=1 << 20)
