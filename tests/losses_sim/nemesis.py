"""What goes wrong where records are lost for good: a majority of a segment's replicas at once, an operator.

Besides the faults of replicated clusters, a hand takes so many replicas of an open segment that nobody can
recover it, while a majority of the cluster is left. An operator then accepts the loss, if he is let: some of
the nodes may be back by then, or be cut off and not dead at all, though he says that they are stopped. In
some runs the disks are gone for good, with what was sealed on them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from msgspec.structs import replace

from ister.errors import BadRequest, IsterError
from ister.metadata.state import SegmentState, TopicState
from tests.cluster.node import PEER_PORT, ClusterNode
from tests.replicas_sim.nemesis import ReplicaNemesis

PATIENCE_SECONDS = 20.0
MOST_TRIES = 20


class LossNemesis(ReplicaNemesis):
    def __init__(self, *args: Any, takes_disks: bool, **options: Any) -> None:
        super().__init__(*args, **options, may_wipe=False)
        self.given_up = self.refused = 0
        self._takes_disks = takes_disks
        self._hands[-1] = (
            [
                (3, self.kill_a_leader),
                (2, self.restart_a_leader),
                (2, self.pause_a_leader),
                (3, self.power_cut_in_a_recovery),
                (8, self.lose_a_majority),
                (4, self.cut_off_a_majority),
            ],
            (0.5, 4.0),
        )

    async def run(self, seconds: float) -> None:
        await super().run(seconds)
        for _ in range(MOST_TRIES):  # among all the faults nobody may have had the peace to give anything up
            if not self.given_up:
                await self.lose_a_majority()

    def _may_wipe_who_joins(self) -> bool:
        return False

    def _some_victims(self) -> tuple[TopicState, list[ClusterNode]] | None:
        """So many replicas of an open segment that the rest cannot recover it; a minority of the nodes."""
        topic = self.dice.choice(list(self.health.view().topics.values()) or [None])
        if topic is None:
            return None
        segment: SegmentState = topic.open_segment
        nodes = [node for member in segment.replicas if (node := self._node_of(member)) is not None]
        count = len(segment.replicas) // 2 + 1
        if len(nodes) < count or count > (len(self.nodes) - 1) // 2:
            return None
        return topic, self.dice.sample(nodes, count)

    async def lose_a_majority(self) -> None:
        found = self._some_victims()
        if found is None:
            return
        topic, victims = found
        takes_disks = self._takes_disks and self.health.all_vote() and self.dice.random() < 0.6
        async with contextlib.AsyncExitStack() as kept_down:
            for node in sorted(victims, key=lambda node: node.number):
                await kept_down.enter_async_context(self._starting.setdefault(node.number, asyncio.Lock()))
            for node in victims:
                if self.dice.random() < 0.5 or takes_disks:
                    node.lose_power()
                else:
                    node.kill()
            if takes_disks:
                for node in victims:
                    self._take_disk(node)
            if self.dice.random() < 0.7:
                await self._give_up(topic.name)
        if self.dice.random() < 0.4:  # they come back, or come anew, while he gives it up
            await asyncio.gather(self._give_up(topic.name), self._down_for_a_while(*victims))
        else:
            await self._down_for_a_while(*victims)

    async def cut_off_a_majority(self) -> None:
        """They run, and take appends as long as they believe that they lead; he takes them for stopped."""
        found = self._some_victims()
        if found is None:
            return
        topic, victims = found
        for node in victims:
            for other in self.nodes:
                if other not in victims:
                    self.network.partition(node.name, other.name)
        await self._give_up(topic.name)
        self.network.heal()

    def _take_disk(self, node: ClusterNode) -> None:
        self.wiped += 1
        others = [other for other in self.nodes if other is not node]
        node.wipe(",".join(f"{other.name}:{PEER_PORT}" for other in others))
        node.config = replace(node.config, replace_disk=True)

    # The operator.

    async def _give_up(self, topic: str) -> None:
        """Look how it stands until the loss can be accepted, or for as long as he has patience."""
        until = self.loop.time() + PATIENCE_SECONDS
        while self.loop.time() < until:
            if await self.is_settled(topic):
                return
            await asyncio.sleep(self.dice.uniform(0.1, 1.0))

    async def is_settled(self, topic: str) -> bool:
        """Whether there is nothing to give up. If there is, and it can be done now, it is."""
        try:
            async with asyncio.timeout(8), self.clients.connect("client-3.gives-up") as log:
                shown = await log.recovery_of(topic)
                if shown.state == "open":
                    return True
                if shown.state != "incomplete" and (shown.refusal or shown.state != "waits"):
                    return False
                if self.dice.random() < 0.2:
                    await asyncio.sleep(self.dice.choice((0.2, 2.0)))  # it may be different meanwhile
                told = await log.accept_loss(shown, node_stopped=True)
                self.given_up += told.accepted
                self.loop.trace.note(f"gave up {topic} from {told.lost_from} to {told.lost_end}")
        except BadRequest:
            self.refused += 1
        except (IsterError, TimeoutError) as error:
            self.loop.trace.note(f"nobody gives up {topic}: {type(error).__name__}")
        return False

    async def keep_up(self) -> None:
        """Once the world is well, nobody waits for what is not coming back."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().keep_up())
            if self.healed:
                tasks.create_task(self._mind())

    async def _mind(self) -> None:
        while True:
            for topic in list(self.clients.lines):
                await self.is_settled(topic)
            await asyncio.sleep(2)
