"""The simulation of clusters is worth what it finds: bugs that were put in on purpose, each by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from ister.metadata.commands import Command, Outcome, SealSegment
from ister.raft import RaftCore, Role, SoftState, driver
from ister.raft.driver import RaftNode
from ister.testing import Loss
from ister.testing.checkers import check_history
from tests.cluster import planted, test_handoffs
from tests.cluster.planted import FOUND_BY_SCHEDULE, FOUND_BY_SEEDS, Plant
from tests.cluster.scenario import ClusterRun
from tests.cluster.small import World, play
from tests.cluster.test_handoffs import lead_elsewhere
from tests.planting import is_found, shows
from tests.raft.cluster import Faults
from tests.raft.random_run import RandomRun
from tests.raft.transcript import FOLDER, Transcript


@pytest.mark.slow
@pytest.mark.parametrize("plant", FOUND_BY_SEEDS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_within_the_stated_number_of_seeds(plant: Plant) -> None:
    assert is_found(plant, ClusterRun, FOUND_BY_SEEDS[plant])


def a_voter_is_started_again_and_asked_by_another_candidate() -> None:
    """A new leader is elected by one vote besides its own, and is cut off before it says a word. Its voter
    is started again, and asked at once for its vote in the same term, by the leader of the term before."""

    async def script(world: World) -> None:
        names = {number: node.name for number, node in world.nodes.items()}
        await world.elect(1)
        elected: list[int] = []
        note = RaftNode._note_soft_state

        def cut_off_when_elected(raft: RaftNode, soft: SoftState) -> None:
            note(raft, soft)
            if soft.role is Role.LEADER and not elected:
                number = raft._config.node_id >> 31
                elected.append(number)
                for other in names.values():
                    if other != names[number]:
                        world.network.partition(names[number], other)

        with mock.patch.object(RaftNode, "_note_soft_state", cut_off_when_elected):
            for other in (2, 3):
                world.network.partition(names[1], names[other])
            await world.until(lambda: bool(elected))
            voter = 5 - elected[0]
            world.nodes[voter].kill()
            first = world.nodes[1].running.metadata
            await world.until(lambda: not first.raft.is_leader)  # it says nothing of its old term any more
            await world.nodes[voter].start()
            world.network.heal(names[1], names[voter])
            await asyncio.sleep(0.1)  # they greet each other, and none of them stands for election yet
            first.raft.core._ask_in_earnest(by_transfer=False)  # its pre-vote was granted before all this
            first.raft._pump()
            await world.until(lambda: world.metadata_leader in (1, voter))
        check_history(world.history)

    play(script)


def a_seal_arrives_twice() -> None:
    """The answer was lost, the proposer asks again, and both proposals are in the log."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world, segment_records=3)
        seals: list[SealSegment] = []
        metadata = world.nodes[leader].running.metadata
        propose = metadata.propose

        async def remember(command: Command, *args: Any, **options: Any) -> Outcome:
            if isinstance(command, SealSegment):
                seals.append(command)
            return await propose(command, *args, **options)

        metadata.propose = remember  # type: ignore[method-assign]
        async with world.at(other) as log:
            await world.send(log, "t", b"1", b"2", b"3")
            await world.until(lambda: world.leader("t", seen_by=other) != leader)
            await world.send(log, "t", b"4")
            await world.nodes[other].running.metadata.propose(seals[0])
            await world.send(log, "t", b"5")
        await world.judge("t")

    play(script)


def a_node_comes_back_with_old_metadata_and_without_the_others() -> None:
    """Its segment was sealed and given to another node; then it lost power, and what it had heard last."""

    async def script(world: World) -> None:
        leader, other = await lead_elsewhere(world, segment_records=3)
        node = world.nodes[leader]
        async with world.at(other) as log:
            await world.send(log, "t", b"1", b"2", b"3")
            await world.until(lambda: world.leader("t", seen_by=other) != leader)
            node.lose_power(Loss.ALL)
            for number in world.nodes:
                if number != leader:
                    world.network.partition(node.name, world.nodes[number].name)
            await node.start()
            async with world.at(leader, "client-2.y") as cut_off:
                late = world.send(cut_off, "t", b"at the old leader", session="y")
                sending = asyncio.ensure_future(late)
                await asyncio.sleep(3)
                await world.send(log, "t", b"4")
                world.network.heal()
                await sending
        await world.judge("t")

    play(script)


def _core() -> type[RaftCore]:
    """The one that brokers would run on now: with its bug, if one is planted."""
    core: type[RaftCore] = vars(driver)["RaftCore"]
    return core


def _transcript(name: str) -> Callable[[], None]:
    def schedule() -> None:
        Transcript(_core(), Faults()).replay((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))

    return schedule


def cores_without_brokers() -> None:
    """Ten seeds of Raft's core alone, on a network that doubles and reorders, which streams do not."""
    for seed in range(10):
        RandomRun(seed, _core()).run()


SCHEDULES: dict[Plant, Callable[[], None]] = {
    planted.a_vote_is_not_persisted: a_voter_is_started_again_and_asked_by_another_candidate,
    planted.a_seal_of_an_earlier_life_applies: (
        test_handoffs.test_a_seal_that_a_dead_process_proposed_does_not_cut_what_its_successor_appends
    ),
    planted.a_seal_is_no_compare_and_set: a_seal_arrives_twice,
    planted.a_node_leads_before_it_was_announced: a_node_comes_back_with_old_metadata_and_without_the_others,
    planted.an_entry_of_an_old_term_is_committed_by_counting: _transcript("figure_8"),
    planted.a_stale_acknowledgement_is_counted: _transcript("stale_acknowledgement"),
    planted.the_log_is_always_truncated: cores_without_brokers,
}


@pytest.mark.parametrize("plant", FOUND_BY_SCHEDULE, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_its_schedule(plant: Plant) -> None:
    SCHEDULES[plant]()  # without the bug it is clean
    with plant():
        assert shows(SCHEDULES[plant])
