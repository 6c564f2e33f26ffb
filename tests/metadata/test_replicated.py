"""Metadata that many nodes share: any of them proposes, what was answered stays, disks are told apart."""

from __future__ import annotations

import asyncio
import random

import pytest

from ister.errors import BadRequest, NotLeader, RequestTimeout
from ister.metadata.commands import Result
from ister.peers import Peers
from ister.protocol.peer import NodeAddress, PeerHello
from ister.testing import VirtualLoop, simulate
from tests.metadata.nodes import PEER_PORT, Cluster


async def _nothing(node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
    raise BadRequest("nothing is served here")


def of_another_cluster(cluster: Cluster) -> Peers:
    """What a node has to do with others' sockets, of one that belongs elsewhere."""
    return Peers(
        cluster.network.host("stranger"),
        lambda: PeerHello("c2", NodeAddress(9, "00", "stranger", 1, "stranger", 1)),
        on_raft=lambda sender, data: None,
        serve=_nothing,
        accepts=lambda hello: None,
    )


def test_three_nodes_join_are_promoted_and_any_of_them_proposes() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in (1, 2, 3):
            outcome = await cluster.store(number).propose(cluster.topic(f"t{number}", number))
            assert outcome.result is Result.CREATED
            assert f"default/t{number}" in cluster.store(number).state.topics, (
                "applied here before the answer"
            )
        await cluster.agree()
        assert cluster.store(1).state.cluster_id == "c1"

    simulate(main, seed=1, limit_seconds=300)


def test_two_first_writes_racing_create_one_topic() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        outcomes = await asyncio.gather(
            *(cluster.store(n).propose(cluster.topic("same", n)) for n in (1, 2, 3))
        )
        assert sorted(o.result for o in outcomes) == [Result.CREATED, Result.EXISTS, Result.EXISTS]
        assert len({o.topic_uid for o in outcomes}) == 1

    simulate(main, seed=2, limit_seconds=300)


def test_w3_two_proposals_of_the_same_rollover_seal_once() -> None:
    """W3: rollover is no compare-and-set; each proposal seals a later segment with a wrong count."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        uid = (await cluster.store(1).propose(cluster.topic("t"))).topic_uid
        seals = [cluster.seal(uid, 1, end, by=n, then=n) for n, end in ((1, 10), (2, 12), (3, 11))]
        outcomes = await asyncio.gather(
            *(cluster.store(n).propose(s) for n, s in zip((1, 2, 3), seals, strict=True))
        )
        assert sorted(o.result for o in outcomes) == [Result.APPLIED, Result.STALE, Result.STALE]
        assert len(cluster.store(1).state.topics["default/t"].segments) == 2

    simulate(main, seed=3, limit_seconds=300)


def test_a_seal_that_is_late_on_the_wire_does_not_cut_what_the_next_process_acknowledged() -> None:
    """The process that proposed it is gone; the one after it has announced itself, and appends again."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        leader = await cluster.leader()
        number = next(n for n in cluster.nodes if n != leader.number)
        uid = (await cluster.store(number).propose(cluster.topic("t", number))).topic_uid
        late = cluster.seal(uid, 1, 10, by=number, then=leader.number)
        cluster.nodes[number].kill()
        await cluster.nodes[number].start()
        await cluster.announced()
        outcome = await cluster.store(leader.number).propose(late)
        assert (outcome.result, "started again" in outcome.detail) == (Result.REFUSED, True)
        assert cluster.store(number).state.topics["default/t"].open_segment.segment == 1
        now = cluster.seal(uid, 1, 15, by=number, then=leader.number)
        assert (await cluster.store(number).propose(now)).result is Result.APPLIED

    simulate(main, seed=4, limit_seconds=300)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_answered_survives_kills_of_any_node_at_any_time(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        rng = random.Random(seed)
        answered: list[str] = []
        for number in range(60):
            command = cluster.topic(f"t{number}")
            outcome = await rng.choice(cluster.running).propose(command, timeout=30)
            assert outcome.ok
            answered.append(command.name)
            if rng.random() < 0.15:
                victim = rng.choice(list(cluster.nodes.values()))
                victim.kill(power=rng.random() < 0.5)
                await asyncio.sleep(rng.random())
                await victim.start()
        await cluster.announced()
        assert set(answered) == set(cluster.store(1).state.topics)
        assert not any(node.fatal for node in cluster.nodes.values())

    simulate(main, seed=seed, limit_seconds=1200)


def test_a_full_restart_twice_in_a_row_finds_everything_and_everybody() -> None:
    """W8; and nobody but the addresses file knows where the others are."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in range(40):  # more than the snapshot threshold: W9, D17
            await cluster.store(1 + number % 3).propose(cluster.topic(f"t{number}"))
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill(power=True)
            for node in cluster.nodes.values():
                await node.start()
            await cluster.store(2).propose(cluster.topic("after"), timeout=30)
        await cluster.announced()
        assert len(cluster.store(3).state.topics) == 41
        assert all(node.restored for node in cluster.nodes.values()), (
            "each began with a snapshot, and said so"
        )

    simulate(main, seed=5, limit_seconds=600)


@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_moved_is_found_after_a_full_restart(seed: int) -> None:
    """Where the others are, the last life knew better than what is known to be committed at a start."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for node in cluster.nodes.values():
            node.kill()
            node.peer_port += node.number
            await node.start()
            await cluster.announced()
        for node in cluster.nodes.values():
            node.kill(power=True)
        for node in cluster.nodes.values():
            await node.start()
        assert (await cluster.store(2).propose(cluster.topic("after"), timeout=30)).ok

    simulate(main, seed=seed, limit_seconds=600)


def test_others_may_call_while_a_node_still_reads_its_log() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        late = cluster.nodes[3]
        late.kill()
        late.disk.slow(5.0, count=2)
        starting = asyncio.create_task(late.start())
        await cluster.until(lambda: cluster.store(1).is_alive(late.member))
        assert not starting.done()
        await cluster.store(1).propose(cluster.topic("t"))
        await starting
        await cluster.announced()
        assert "default/t" in cluster.store(3).state.topics

    simulate(main, seed=8, limit_seconds=300)


def test_a_damaged_hint_of_where_the_others_are_is_no_reason_not_to_start() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        node = cluster.nodes[2]
        node.kill()
        node.disk.tear("raft/addresses", 7)
        await node.start()
        await cluster.announced()

    simulate(main, seed=9, limit_seconds=300)


def test_a_node_is_announced_only_when_it_knows_what_the_cluster_knew_before() -> None:
    """What it has on disk may be older than its own last life: until then it must not lead anything."""

    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        behind = cluster.nodes[3]
        behind.kill()
        for number in range(60):
            await cluster.store(1).propose(cluster.topic(f"t{number}"))
        await behind.start(announce=False)
        store = cluster.store(3)
        await store.read_index(timeout=30)
        assert not store.announced.is_set(), "the cluster does not know of this start"
        assert store.state.nodes[3].starts == behind.starts - 1
        store.announce("node-3", 9091)
        await store.announced.wait()
        assert len(store.state.topics) == 60
        assert store.state.nodes[3].starts == behind.starts

    simulate(main, seed=6, limit_seconds=300)


def test_reading_at_an_index_sees_what_another_node_was_answered() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        for number in range(10):
            await cluster.store(1 + number % 3).propose(cluster.topic(f"t{number}"))
            reader = cluster.store(1 + (number + 1) % 3)
            await reader.read_index()
            assert f"default/t{number}" in reader.state.topics

    simulate(main, seed=7, limit_seconds=300)


def test_i1_a_node_of_another_cluster_is_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        stranger = of_another_cluster(cluster)
        with pytest.raises(BadRequest, match="cluster c2 called, this is cluster c1"):
            await stranger.ask("node-1", PEER_PORT, 4, b"", timeout=5)

    simulate(main, seed=9, limit_seconds=300)


def test_a_node_of_another_cluster_that_calls_again_and_again_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        stranger = of_another_cluster(cluster)
        stranger.know([cluster.store(1).myself], 0)  # as a wrong address makes it: it dials for ever
        await asyncio.sleep(150)
        await stranger.stop()

    simulate(main, seed=9, limit_seconds=300)
    said = [record for record in caplog.records if "cluster c2 called" in record.getMessage()]
    assert len(said) == 3, "at once, and then once a minute"


def test_a_minority_refuses_changes_with_a_reason() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()
        cluster.network.isolate("node-3")
        await asyncio.sleep(3)
        with pytest.raises((RequestTimeout, NotLeader), match="metadata"):
            await cluster.store(3).propose(cluster.topic("t"), timeout=4)
        assert (await cluster.store(1).propose(cluster.topic("t"))).result is Result.CREATED
        cluster.network.heal()
        await cluster.agree()

    simulate(main, seed=10, limit_seconds=300)


def test_a_defect_in_the_care_of_the_members_ends_the_node() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = Cluster(loop)
        await cluster.of_three()

        def a_defect() -> None:
            raise KeyError("a defect")

        cluster.store(2).refresh_links = a_defect  # type: ignore[method-assign]
        await asyncio.sleep(10)
        assert ["keep ended: KeyError" in error.message for error in cluster.nodes[2].fatal] == [True]
        assert loop.unhandled == cluster.nodes[2].fatal
        loop.unhandled.clear()

    simulate(main, seed=1, limit_seconds=300)
