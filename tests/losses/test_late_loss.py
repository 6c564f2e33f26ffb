"""A loss that was accepted when too few replicas answered, and is applied when enough do."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from ister.errors import BadRequest
from ister.metadata.commands import AcceptLoss
from ister.replication.recovery.failover import Phase
from ister.replication.recovery.recovering import Attempt
from ister.testing.cluster import World, run_story
from tests.losses.stories import others, waiting
from tests.losses.test_several_replicas import SETTINGS, left_behind


def test_a_loss_is_not_applied_once_a_recovery_has_found_what_was_to_be_given_up() -> None:
    """The command is on its way for a while. Meanwhile a replica with all that was acknowledged is back: the
    recovery has heard it, has chosen its end and copies it. The late command ends all that, and gives up what
    two of three replicas are known to be able to bring together: nothing in it says on whose answers it rests
    (F6: what is reachable is not given up)."""

    async def story(world: World) -> None:
        found = await left_behind(world)
        metadata = found.behind.broker.metadata
        propose, is_proposed, may_arrive = metadata.propose, asyncio.Event(), asyncio.Event()

        async def late(command: Any, *args: Any) -> Any:
            if isinstance(command, AcceptLoss):
                is_proposed.set()
                await may_arrive.wait()
            return await propose(command, *args)

        async def slowly(attempt: Attempt, effect: Any) -> Any:
            await asyncio.sleep(1000)

        recoveries = found.behind.broker.replication.recoveries
        segment = found.behind.topic("t").state.open_segment
        with mock.patch.object(metadata, "propose", late), mock.patch.object(Attempt, "_copy", slowly):
            async with others(world, *found.ahead) as log:
                shown = await waiting(log)
                giving_up = asyncio.ensure_future(log.accept_loss(shown, node_stopped=True))
                await is_proposed.wait()
                world.network.heal()
                await found.ahead[1].start()
                async with asyncio.timeout(30):
                    while (  # noqa: ASYNC110 (there is no one event for it)
                        segment.uid not in recoveries._running
                        or recoveries._running[segment.uid]._machine.phase is not Phase.COPYING
                    ):
                        await asyncio.sleep(0.05)
                assert recoveries._running[segment.uid]._machine.end_offset == 10
                may_arrive.set()
                with pytest.raises(BadRequest, match="nothing is given up"):
                    await giving_up

    run_story(story, **SETTINGS)


def test_a_loss_rests_on_the_recovery_that_was_answered_and_not_on_the_last_one_that_is_known() -> None:
    """The same, while the log that is kept is being folded: a later recovery begins and hears more before the
    command is made, and the command takes that one's number."""

    async def story(world: World) -> None:
        found = await left_behind(world)
        copies, topic = found.behind.broker.replication.copies, found.behind.topic("t")
        fold, is_folding, may_go_on = copies.fold, asyncio.Event(), asyncio.Event()

        async def late(*args: Any) -> Any:
            is_folding.set()
            await may_go_on.wait()
            return await fold(*args)

        async def slowly(attempt: Attempt, effect: Any) -> Any:
            await asyncio.sleep(1000)

        uid = topic.state.open_segment.uid
        with mock.patch.object(copies, "fold", late), mock.patch.object(Attempt, "_copy", slowly):
            async with others(world, *found.ahead) as log:
                shown = await waiting(log)
                giving_up = asyncio.ensure_future(log.accept_loss(shown, node_stopped=True))
                await is_folding.wait()
                world.network.heal()
                await found.ahead[1].start()

                def has_found_it() -> bool:
                    running = [
                        node.broker.replication.recoveries._running.get(uid)
                        for node in (found.behind, found.ahead[1])
                    ]
                    return any(one is not None and one._machine.end_offset == 10 for one in running)

                async with asyncio.timeout(60):
                    while not has_found_it():  # noqa: ASYNC110 (there is no one event for it)
                        await asyncio.sleep(0.05)
                may_go_on.set()
                with pytest.raises(BadRequest, match="nothing is given up"):
                    await giving_up

    run_story(story, **SETTINGS)
