"""A leader that is still making its segment's log while a recovery of that segment begins."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from ister.metadata.commands import OpenedSegment
from ister.metadata.replicated import ReplicatedMetadata
from ister.protocol.peer import node_of
from ister.replication.recovery.recovering import Attempt
from tests.replicas_sim.small import World, play


def test_a_leader_that_was_fenced_while_it_opened_its_segment_acknowledges_nothing() -> None:
    """The answer to `OpenedSegment` is late. Meanwhile a recovery fences the leader, which has no segment to
    stop, and another replica; both say that they are empty. Then the leader opens, and appends with the
    third one: what is acknowledged is not in what the recovery seals (A3, H4, F2)."""

    async def script(world: World) -> None:
        first, _ = await world.make_topic(segment_records=1)
        is_answered, may_go_on = asyncio.Event(), asyncio.Event()
        is_sealing, may_seal = asyncio.Event(), asyncio.Event()
        propose, seal = ReplicatedMetadata.propose, Attempt._seal

        async def late(metadata: ReplicatedMetadata, command: Any, *args: Any) -> Any:
            outcome = await propose(metadata, command, *args)
            if isinstance(command, OpenedSegment) and command.segment == 2:
                is_answered.set()
                await may_go_on.wait()
            return outcome

        async def slowly(attempt: Attempt, *args: Any) -> Any:
            is_sealing.set()
            await may_seal.wait()
            return await seal(attempt, *args)

        async with asyncio.timeout(120), world.at(first) as log:
            with (
                mock.patch.object(ReplicatedMetadata, "propose", late),
                mock.patch.object(Attempt, "_seal", slowly),
            ):
                await world.send(log, "t", b"1")
                await is_answered.wait()
                await world.agree()
                leader, coordinator, other = [node_of(member) for member in world.segment().replicas]
                await world.elect(coordinator)
                world.cut(coordinator, other)  # which hears nothing of the recovery
                broker = world.nodes[coordinator].running
                broker.replication.recoveries.begin(world.topic(coordinator).state)
                await is_sealing.wait()  # the leader and the coordinator are fenced, and agree on the end
                world.cut(coordinator, leader)
                may_go_on.set()
                async with world.at(leader, "client-2.y") as elsewhere:
                    sending = asyncio.ensure_future(world.send(elsewhere, "t", b"2", session="y"))
                    await asyncio.sleep(1.5)
                    world.network.heal()
                    may_seal.set()
                    await sending
            await world.judge("t")

    play(script, election_min_ms=10_000, election_max_ms=15_000)
