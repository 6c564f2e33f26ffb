"""What goes wrong where segments have several replicas: all of `tests.cluster.nemesis`, and a fourth hand.

That hand goes after the leaders of segments, and after copies. Leaders are killed, started again at once,
frozen past their failover, and cut off in one direction or both; recoveries are met by a power cut at any
step; disks are lost and bytes rot, within what `health` lets happen.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from ister.broker.topic.known import segment_path
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.peer import node_of
from ister.testing import Loss
from ister.testing.image import roll_loss
from tests.cluster.load import HOSTS
from tests.cluster.nemesis import Nemesis
from tests.cluster.node import PEER_PORT, ClusterNode
from tests.replicas_sim.health import Health
from tests.replicas_sim.watch import ReplicaWatch

WIPE_PATIENCE_SECONDS = 12.0


class ReplicaNemesis(Nemesis):
    def __init__(self, *args: Any, watch: ReplicaWatch, may_wipe: bool) -> None:
        super().__init__(*args)
        self.health = Health(watch, self.nodes)
        self.rotted = 0
        self._may_wipe = may_wipe
        self._watch = watch
        for node in self.nodes:
            self._load_dice(node)
        self._hands.append(
            (
                [
                    (4, self.kill_a_leader),
                    (4, self.restart_a_leader),
                    (4, self.pause_a_leader),
                    (3, self.cut_off_a_leader),
                    (3, self.cut_off_one_way),
                    (5, self.power_cut_in_a_recovery),
                    (5, self.lose_a_disk),
                    (4, self.rot_a_sealed_copy),
                    (3, self.rot_an_open_copy),
                ],
                (0.5, 4.0),
            )
        )

    def _load_dice(self, node: ClusterNode) -> None:
        def roll(random: Random) -> Loss:
            return Loss.ALL if self.health.is_grave else roll_loss(random)

        node.disk.roll_loss = roll

    async def _join(self, node: ClusterNode) -> None:
        self._load_dice(node)
        await super()._join(node)

    def _may_wipe_who_joins(self) -> bool:
        return self.health.all_vote()

    # Disks that fail, but not while that would be one too many.

    async def full_disk(self) -> None:
        if not self.health.is_grave:
            await super().full_disk()

    async def _fail(self, operation: str, prefix: str, suffix: str = "") -> None:
        if not self.health.is_grave:
            await super()._fail(operation, prefix, suffix)

    # Leaders.

    def _some_segment(self) -> tuple[TopicState, SegmentState] | None:
        """An open one with several replicas."""
        found = [(topic, segment) for topic, segment in self.health.segments() if not segment.is_sealed]
        return self.dice.choice(found) if found else None

    def _node_of(self, member: int) -> ClusterNode | None:
        return next((node for node in self.nodes if node.number == node_of(member)), None)

    def _some_leader(self) -> ClusterNode:
        found = self._some_segment()
        return (self._node_of(found[1].leader) if found else None) or self._some_node()

    async def kill_a_leader(self) -> None:
        node = self._some_leader()
        if self.dice.random() < 0.5:
            node.kill()
        else:
            node.lose_power()
        await asyncio.sleep(self.dice.choice((0.3, 2.0, 5.0)))
        await self.bring_up(node)

    async def restart_a_leader(self) -> None:
        """It is back before anybody has missed it, and must not go on where it was (A3)."""
        node = self._some_leader()
        if self.dice.random() < 0.5:
            node.kill()
        else:
            node.lose_power()
        await self.bring_up(node)

    async def pause_a_leader(self) -> None:
        """SIGSTOP until somebody has sealed its segment, or for a while: it wakes and knows of nothing."""
        found = self._some_segment()
        if found is None:
            return
        topic, segment = found
        node = self._node_of(segment.leader)
        if node is None:
            return
        node.freeze()
        for _ in range(self.dice.choice((5, 40, 100))):
            await asyncio.sleep(0.1)
            now = self.health.view().topic_by_uid(topic.uid)
            if now is None or now.open_segment.uid != segment.uid:
                break
        await asyncio.sleep(self.dice.choice((0.0, 0.05, 1.0)))
        node.thaw()

    async def cut_off_a_leader(self) -> None:
        """From its followers, not from its clients; they may reach it while it does not reach them."""
        found = self._some_segment()
        if found is None:
            return
        leader = self._node_of(found[1].leader)
        for member in found[1].replicas:
            follower = self._node_of(member)
            if leader is not None and follower is not None and follower is not leader:
                match self.dice.randrange(3):
                    case 0:
                        self.network.partition(leader.name, follower.name)
                    case 1:
                        self.network.partition(leader.name, follower.name, one_way=True)
                    case 2:
                        self.network.partition(follower.name, leader.name, one_way=True)
        await self._for_a_while()

    async def cut_off_one_way(self) -> None:
        """A node that hears everybody and that nobody hears, or the other way round."""
        node = self._some_node()
        is_mute = self.dice.random() < 0.5
        others = [other.name for other in self.nodes if other is not node]
        for other in others + list(HOSTS if self.dice.random() < 0.3 else ()):
            if is_mute:
                self.network.partition(node.name, other, one_way=True)
            else:
                self.network.partition(other, node.name, one_way=True)
        await self._for_a_while()

    async def power_cut_in_a_recovery(self) -> None:
        """A leader dies, and one of those who recover its segment loses power at some step: between a fence
        and its answer, in the middle of a copy, before or after the seal."""
        found = self._some_segment()
        if found is None:
            return
        _, segment = found
        leader = self._node_of(segment.leader)
        others = [node for m in segment.replicas if (node := self._node_of(m)) not in (None, leader)]
        if leader is None or not others:
            return
        leader.kill()
        for _ in range(50):
            if self._watch.begun.get(segment.uid):
                break
            await asyncio.sleep(0.05)
        victim = self.dice.choice(others)
        assert victim is not None
        generation = victim.disk.generation
        victim.lose_power_after(self.dice.choice((0, 1, 2, 3, 4, 6, 9, 14)))
        for _ in range(20):
            await asyncio.sleep(0.05)
            if victim.disk.generation != generation:
                break
        else:
            victim.lose_power()
        await self._down_for_a_while(leader, victim)

    # Copies.

    async def lose_a_disk(self) -> None:
        """It comes back empty: as another member, that has no copies and no vote (I2)."""
        if not self._may_wipe:
            return
        until = self.loop.time() + WIPE_PATIENCE_SECONDS
        while self.loop.time() < until:
            node = self._some_leader() if self.dice.random() < 0.5 else self._some_node()
            if node.is_up and self.health.may_lose(node):
                await self._lose(node)
                return
            await asyncio.sleep(0.3)

    async def _lose(self, node: ClusterNode) -> None:
        member = node.running.metadata.member
        for _, segment in self.health.segments():
            if member in segment.replicas:
                self.health.struck(member, segment)
        self.wiped += 1
        node.lose_power()
        others = [other for other in self.nodes if other is not node]
        node.wipe(",".join(f"{other.name}:{PEER_PORT}" for other in others))
        await self._down_for_a_while(node)

    async def rot_a_sealed_copy(self) -> None:
        found = [
            (member, topic, segment)
            for topic, segment in self.health.segments()
            if segment.end_position
            for member in segment.replicas
        ]
        self._rot_one_of(found)

    async def rot_an_open_copy(self) -> None:
        """While it is written to: a follower's, or the leader's."""
        found = [
            (member, topic, segment)
            for topic, segment in self.health.segments()
            if not segment.is_sealed
            for member in segment.replicas
        ]
        self._rot_one_of(found)

    def _rot_one_of(self, found: list[tuple[int, TopicState, SegmentState]]) -> None:
        for member, topic, segment in self.dice.sample(found, min(8, len(found))):
            if not self.health.may_rot(member, topic, segment):
                continue
            path, disk = segment_path(topic.uid, segment) + ".log", self._watch.disk_of(member)
            self._watch.copies.end_of(member, topic, segment)
            size = self._watch.copies.size_of(member, segment.uid)
            if not size or not disk.exists(path):  # its topic may be gone, and the view be old
                continue
            self.rotted += 1
            self.health.rots(member, segment)
            if self.dice.random() < 0.7:
                disk.rot(path, self.dice.randrange(size), self.dice.randrange(8))
            elif segment.is_sealed:
                disk.tear(path, self.dice.randrange(size))
            else:
                # In the middle of a frame: a disk that loses whole frames, and says nothing, is a lying one.
                last = self._watch.copies.frames(segment.uid)[0].size
                disk.tear(path, self.dice.randrange(1, last))
            return
