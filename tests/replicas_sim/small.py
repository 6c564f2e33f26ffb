"""A small cluster with replicated segments, for directed schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ister.metadata.state import SegmentState
from ister.protocol.peer import node_of
from tests.cluster import small
from tests.cluster.node import PEER_PORT
from tests.replicas_sim.watch import ReplicaWatch

T = TypeVar("T")


class World(small.World):
    watch: ReplicaWatch

    def make_watch(self) -> ReplicaWatch:
        return ReplicaWatch(self.history)

    async def make_topic(self, name: str = "t", **settings: Any) -> tuple[int, list[int]]:
        """Make a topic; the node that leads it, and those that follow."""
        async with self.at(1) as log:
            await log.create_topic(name, **settings)
        await self.agree()
        replicas = [node_of(member) for member in self.segment(name).replicas]
        return replicas[0], replicas[1:]

    def segment(self, name: str = "t", number: int = 0, *, seen_by: int = 0) -> SegmentState:
        """A topic's open segment, or the one with this number, as one node sees it."""
        first = next(number for number, node in self.nodes.items() if node.is_up)
        topic = self.topic(seen_by or first, name).state
        found = topic.segment(number) if number else topic.open_segment
        assert found is not None
        return found

    def path(self, segment: SegmentState, name: str = "t") -> str:
        first = next(number for number, node in self.nodes.items() if node.is_up)
        uid = self.topic(first, name).state.uid
        return f"segments/{uid:016d}/{segment.segment:08d}-{segment.uid:016d}"

    def end_on(self, number: int, segment: SegmentState, name: str = "t") -> int:
        """How far a node's copy is durable."""
        first = next(number for number, node in self.nodes.items() if node.is_up)
        member = next(m for m in self.watch.replicas_of(segment) if node_of(m) == number)
        return self.watch.copies.end_of(member, self.topic(first, name).state, segment)

    def write_in_a_worker(self, number: int) -> None:
        """This process writes nothing on its event loop: what it is sent and what it has synced differ."""
        self.nodes[number].running.commits._may_run_inline = lambda jobs: False  # type: ignore[method-assign]

    def cut(self, a: int, b: int, *, one_way: bool = False) -> None:
        self.network.partition(self.nodes[a].name, self.nodes[b].name, one_way=one_way)

    def forget_what_is_on_the_wire(self, a: int, b: int) -> None:
        """What was held at a cut link never comes, if the cut is healed."""
        self.network.reset(self.nodes[a].name, self.nodes[b].name)

    def heal(self, a: int, b: int) -> None:
        self.network.heal(self.nodes[a].name, self.nodes[b].name)

    def lose_disk(self, number: int) -> None:
        """The node is dead, and whoever starts it does so on an empty disk."""
        node = self.nodes[number]
        node.lose_power()
        others = [other.name for other in self.nodes.values() if other is not node]
        node.wipe(",".join(f"{name}:{PEER_PORT}" for name in others))


def play(
    script: Callable[[World], Awaitable[T]], *, size: int = 3, seed: int = 0, replicas: int = 3, **config: Any
) -> T:
    return small.play(script, size=size, seed=seed, kind=World, replicas=replicas, **config)
