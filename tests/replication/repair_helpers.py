"""What the stories of repair and scrub share: a topic with sealed segments, and what is on the disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ister.broker.topic.known import segment_path
from ister.errors import CorruptFrame
from ister.frame import frames_in
from ister.metadata.state import SegmentState
from ister.protocol.peer import node_of
from ister.testing.cluster import PEER_PORT, World, WorldNode


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def until(condition: Callable[[], bool], seconds: float = 300, step: float = 0.1) -> None:
    """What is waited for is the state of many nodes: there is no one event for it."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(step)


async def fill(world: World, count: int, first: int = 0, topic: str = "t") -> None:
    async with world.connect() as log:
        for number in range(first, first + count):
            await log.append(topic, numbers(1, number))


async def come_back_wiped(world: World, node: WorldNode) -> None:
    """Killed, with another disk in its place, and in the cluster again."""
    if node.is_up:
        node.kill(power=True)
    node.wipe()
    other = next(one for one in world.up if one is not node)
    await node.start(bootstrap_cluster=False, join=f"{other.host}:{PEER_PORT}", join_timeout_ms=60_000)


def newest(world: World) -> WorldNode:
    return max(world.up, key=lambda node: node.broker.metadata.state.applied_index)


def sealed(world: World, topic: str = "t") -> list[SegmentState]:
    return [one for one in newest(world).topic(topic).state.segments if one.is_sealed]


def path_of(world: World, segment: SegmentState, topic: str = "t") -> str:
    return segment_path(newest(world).topic(topic).state.uid, segment)


def durable(world: World, node: WorldNode, segment: SegmentState, topic: str = "t") -> bytes:
    """What is on that disk of a sealed segment; nothing if there is no file."""
    try:
        return node.disk.durable_bytes(path_of(world, segment, topic) + ".log")
    except OSError:
        return b""


def is_whole(world: World, node: WorldNode, segment: SegmentState, topic: str = "t") -> bool:
    """Whether a node's disk has every record of a sealed segment, each frame intact."""
    data = durable(world, node, segment, topic)
    if not segment.end_position:
        return data in (b"", b"\0")  # never opened here, or with nothing but its head
    if len(data) != segment.end_position:
        return False
    try:
        frames = frames_in(data)
    except CorruptFrame:
        return False
    ends = [segment.base_offset, *(frame.header.end_offset for frame in frames)]
    return ends[-1] == segment.end_offset and all(
        frame.header.base_offset == end for frame, end in zip(frames, ends, strict=False)
    )


def is_healed(world: World, copies: int = 3, topic: str = "t") -> bool:
    """Whether every sealed segment has so many replicas, all of them up, whole on disk and served."""
    members = {node.member: node for node in world.up}
    for segment in sealed(world, topic):
        nodes = [members.get(member) for member in segment.replicas]
        if len(nodes) != copies or None in nodes:
            return False
        for node in nodes:
            assert node is not None
            if not node.broker.replication.completions.is_whole(segment.uid):
                return False
            if not is_whole(world, node, segment, topic):
                return False
    return True


def has_files(world: World, node: WorldNode, segment: SegmentState, topic: str = "t") -> bool:
    path = path_of(world, segment, topic)
    directory, _, name = path.rpartition("/")
    return any(file.startswith(name) for file in node.disk.list(directory))


def holders(segment: SegmentState) -> list[int]:
    return [node_of(member) for member in segment.replicas]


def replicas_of(world: World, uid: int, topic: str = "t") -> list[int]:
    """Of a sealed segment, by its uid: the members that have it now."""
    return next(one.replicas for one in sealed(world, topic) if one.uid == uid)
