"""Who takes part in the metadata: nodes join, are invited, come back on another disk, and are removed."""

from __future__ import annotations

import asyncio

import pytest

from ister.errors import BadRequest, IsterError, JoinFailed
from ister.metadata.commands import RemoveNode, Result
from ister.protocol.messages import Kind
from ister.protocol.peer import AdminRequest
from ister.testing import SimDisk, VirtualLoop, simulate
from tests.metadata.nodes import PEER_PORT, Cluster, Node


def double_of(cluster: Cluster, number: int) -> Node:
    """Another machine whose node has an id that is taken."""
    disk = SimDisk(cluster.loop.fork("double"))
    return Double(number, cluster.loop, cluster.network, disk, "00000000000000ff")


class Double(Node):
    @property
    def name(self) -> str:
        return f"double-{self.number}"


async def told_to_stop(node: Node) -> IsterError:
    async with asyncio.timeout(60):
        await node.stopping.wait()
    return node.fatal[0]


# Joining.


def test_a_node_joins_through_a_follower_as_well() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        leader = await cluster.leader()
        follower = next(number for number in cluster.nodes if number != leader.number)
        await cluster.make(4).start(join=[follower])
        await cluster.voters({1, 2, 3, 4})
        await cluster.announced()
        assert (await cluster.store(4).propose(cluster.topic("t", 4))).result is Result.CREATED

    simulate(main, seed=1, limit_seconds=300)


def test_a_node_joins_through_whichever_of_the_addresses_answers() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.make(2).start(join=[9, 1])
        await cluster.voters({1, 2})

    simulate(main, seed=2, limit_seconds=300)


def test_joining_waits_for_a_cluster_that_has_no_leader_yet() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in (2, 3):
            cluster.nodes[number].kill()
        joining = asyncio.create_task(cluster.make(4).start(join=[1], timeout=60))
        await asyncio.sleep(5)
        assert not joining.done()
        await cluster.nodes[2].start()
        await joining
        await cluster.nodes[3].start()
        await cluster.voters({1, 2, 3, 4})

    simulate(main, seed=3, limit_seconds=300)


def test_a_join_that_nobody_answers_names_the_addresses_and_ends_in_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.announced()
        before = cluster.store(1).state.to_bytes()
        async with asyncio.timeout(6):
            with pytest.raises(JoinFailed, match=r"node 2 .* node-8:6001, node-9:6001 within 5 s") as failure:
                await cluster.make(2).start(join=[8, 9], timeout=5)
        assert "--join" in failure.value.hint
        assert cluster.store(1).state.to_bytes() == before, "nobody has heard of it"
        assert cluster.nodes[2].disk.mount().list("") == [], "no half of a node is left behind"

    simulate(main, seed=4, limit_seconds=300)


def test_a_join_through_a_node_that_hears_nothing_ends_in_time_and_registers_nobody() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.announced()
        cluster.network.host("node-2")
        cluster.network.isolate("node-2")
        async with asyncio.timeout(6):
            with pytest.raises(JoinFailed, match="node-1:6001"):
                await cluster.make(2).start(join=[1], timeout=5)
        assert list(cluster.store(1).state.nodes) == [1]

    simulate(main, seed=5, limit_seconds=300)


@pytest.mark.parametrize("through_the_leader", [True, False])
def test_a_second_node_with_an_id_that_is_alive_is_refused(through_the_leader: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        leader = await cluster.leader()
        others = [number for number in cluster.nodes if number != leader.number]
        double = double_of(cluster, others[0])
        before = cluster.store(1).state.to_bytes()
        with pytest.raises(JoinFailed, match=f"node {others[0]} .*is alive") as failure:
            await double.start(join=[leader.number if through_the_leader else others[1]])
        assert "--node-id" in failure.value.hint
        await cluster.agree()
        assert cluster.store(1).state.to_bytes() == before

    simulate(main, seed=7, limit_seconds=300)


def test_a_second_node_with_the_leaders_own_id_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.announced()
        with pytest.raises(JoinFailed, match="is alive"):
            await double_of(cluster, 1).start(join=[1])

    simulate(main, seed=8, limit_seconds=300)


def test_a_node_that_was_let_in_leads_nothing_before_it_has_announced_itself() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.announced()
        await cluster.make(2).start(join=[1], announce=False)
        await cluster.voters({1, 2})
        assert (await cluster.store(1).propose(cluster.topic("t", 2))).result is Result.REFUSED
        cluster.store(2).announce("node-2", 9091)
        await cluster.announced()
        assert (await cluster.store(1).propose(cluster.topic("t", 2))).result is Result.CREATED

    simulate(main, seed=9, limit_seconds=300)


# Being invited.


def test_a_node_that_waits_is_invited_and_becomes_a_voter() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        waiting = cluster.make(4)
        await waiting.wait_to_be_invited()
        leader = await cluster.leader()
        follower = next(number for number in (1, 2, 3) if number != leader.number)
        answer = await cluster.store(follower).members.invite("node-4", PEER_PORT)
        assert answer.node_id == 4
        await cluster.until(lambda: waiting.cluster_id == "c1")
        await cluster.announced()
        await cluster.voters({1, 2, 3, 4})

    simulate(main, seed=10, limit_seconds=300)


def test_an_invitation_that_nobody_waits_for_is_refused_with_the_reason() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        with pytest.raises(BadRequest, match="node 2 does not wait to be added: it is in cluster c1"):
            await cluster.store(1).members.invite("node-2", PEER_PORT)
        with pytest.raises(JoinFailed, match="no node waits at node-9:6001") as caught:
            await cluster.store(1).members.invite("node-9", PEER_PORT)
        assert not caught.value.retriable, "who typed a wrong address hears it at once"

    simulate(main, seed=11, limit_seconds=300)


# Coming back.


def test_i2_a_wiped_node_comes_back_as_another_member_and_as_a_learner_first() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        await cluster.store(1).propose(cluster.topic("t"))
        wiped = cluster.nodes[3]
        old = wiped.member
        wiped.kill()
        wiped.wipe()
        learners: set[int] = set()
        cluster.store(1).watch(lambda *_: learners.update(cluster.store(1).status().membership.learners))
        await asyncio.sleep(3)
        await wiped.start(join=[1])
        await cluster.voters({1, 2, 3})
        voters = cluster.store(1).status().membership.voters
        assert wiped.member in voters and old not in voters
        assert wiped.member in learners
        await cluster.announced()

    simulate(main, seed=12, limit_seconds=600)


def test_i2_a_copied_directory_is_found_out_by_its_start_number() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        node = cluster.nodes[2]
        node.kill()
        await node.start()
        await cluster.announced()
        node.kill()
        node.starts = 0  # an old copy of its directory
        await node.start()
        assert "copy" in (await told_to_stop(node)).message

    simulate(main, seed=13, limit_seconds=300)


def test_i2_a_node_whose_place_another_disk_has_taken_does_not_push_that_one_out() -> None:
    """Two machines with one id: whoever was let in last has it, and the other one is told."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        old = cluster.nodes[3]
        old.kill()
        await asyncio.sleep(3)
        new = cluster.nodes[3] = double_of(cluster, 3)
        await new.start(join=[1])
        await cluster.announced()
        await old.start()
        assert "another disk" in (await told_to_stop(old)).message
        await cluster.voters({1, 2, 3})
        await cluster.agree()
        assert cluster.store(1).state.nodes[3].member == new.member
        assert not new.fatal

    simulate(main, seed=14, limit_seconds=300)


# Leaving.


def test_r2_a_node_that_holds_something_cannot_be_removed_and_one_that_does_not_leaves_and_is_told() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        await cluster.store(1).propose(cluster.topic("t", leader=3))
        outcome = await cluster.store(1).propose(RemoveNode(3))
        assert (outcome.result, "the open default/t:1" in outcome.detail) == (Result.REFUSED, True)
        removed = cluster.nodes.pop(2)
        assert (await cluster.store(1).propose(RemoveNode(2))).result is Result.APPLIED
        told = await told_to_stop(removed)
        assert isinstance(told, JoinFailed)
        assert "node 2 was removed from the cluster" in told.message
        assert "--join" in told.hint
        await cluster.voters({1, 3})

    simulate(main, seed=15, limit_seconds=300)


def test_a_leader_that_is_removed_hands_over_and_is_told() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.make(2).start(join=[1])
        await cluster.voters({1, 2})
        await cluster.announced()
        leader = await cluster.leader()
        other = cluster.store(3 - leader.number)
        request = AdminRequest(Kind.REMOVE_NODE, leader.number)
        assert (await other.members.administer(request)).node_id == leader.number
        assert isinstance(await told_to_stop(leader), JoinFailed)
        leader.kill()
        await cluster.voters({3 - leader.number})
        assert (await other.propose(cluster.topic("t", 3 - leader.number), timeout=30)).ok

    simulate(main, seed=16, limit_seconds=300)


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_was_removed_while_it_was_down_is_told_when_it_comes_back(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        removed = cluster.nodes.pop(2)
        removed.kill()
        assert (await cluster.store(3).propose(RemoveNode(2), timeout=30)).ok
        await cluster.voters({1, 3})
        await removed.start()
        assert "node 2 was removed from the cluster" in (await told_to_stop(removed)).message
        await cluster.voters({1, 3})
        await cluster.agree()
        assert sorted(cluster.store(1).state.nodes) == [1, 3]

    simulate(main, seed=seed, limit_seconds=300)


def test_a_removed_node_joins_again_on_an_empty_disk() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        removed = cluster.nodes[2]
        assert (await cluster.store(1).propose(RemoveNode(2))).ok
        await told_to_stop(removed)
        removed.kill()
        await cluster.voters({1, 3})
        removed.wipe()
        await removed.start(join=[1])
        await cluster.voters({1, 2, 3})
        await cluster.announced()

    simulate(main, seed=17, limit_seconds=300)


def test_the_last_node_is_not_removed() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.make(1).start(found=True)
        await cluster.announced()
        with pytest.raises(BadRequest, match="node 1 was not removed: node 1 is the last one"):
            await cluster.store(1).members.administer(AdminRequest(Kind.REMOVE_NODE, 1))

    simulate(main, seed=18, limit_seconds=300)


# Handing over.


@pytest.mark.parametrize("ask_the_leader", [True, False])
def test_the_leadership_is_handed_to_the_node_named_whoever_is_asked(ask_the_leader: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        leader = await cluster.leader()
        others = [number for number in cluster.nodes if number != leader.number]
        asked = cluster.store(leader.number if ask_the_leader else others[0])
        answer = await asked.members.administer(AdminRequest(Kind.TRANSFER_LEADER, others[1]))
        assert answer.node_id == others[1]
        assert (await cluster.leader()).number == others[1]
        with pytest.raises(BadRequest, match="node 9 is no voter that answers"):
            await asked.members.administer(AdminRequest(Kind.TRANSFER_LEADER, 9))

    simulate(main, seed=19, limit_seconds=300)
