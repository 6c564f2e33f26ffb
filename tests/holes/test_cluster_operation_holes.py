"""Walrus's holes in how it is run (W11, W16, W19, W22), as a cluster could have them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

import ister
from ister.errors import (
    ControlRefused,
    JoinFailed,
    NodeUnreachable,
    NotLeader,
    OffsetOutOfRange,
    RequestTimeout,
)
from ister.metadata.commands import Outcome
from ister.protocol.messages import Control, Kind
from ister.protocol.peer import PeerKind, node_of
from ister.testing import Loss
from ister.testing.cluster import PEER_PORT, World, WorldNode, read_all, run_story
from tests.broker.broker_helpers import Node, RawClient, append_request, frame_of, on_real_disk, refusal
from tests.holes import cluster_plants as plants
from tests.holes.cluster_plants import fill, numbers

ISTER = [sys.executable, "-c", "from ister.cli.main import main; main()"]
PATIENCE_S = 60


@pytest.mark.slow
def test_w11_a_node_is_who_it_was_told_to_be_whatever_its_port() -> None:
    """W11: a node's id was taken from its port: two nodes with ports ten apart were one."""

    async def story(world: World) -> None:
        assert {node.broker.config.peer_port for node in world.up} == {PEER_PORT}
        state = world.nodes[1].broker.metadata.state
        assert sorted(state.nodes) == [1, 2, 3]
        assert len({node.member for node in state.nodes.values()}) == 3
        double = world.make(8)
        double.node_id = 2
        for _ in range(20):  # at any moment, also when Raft has just begun to count anew who is active
            with pytest.raises(JoinFailed, match="node 2 is in the cluster already, on another disk, and is"):
                await double.start(join=f"node-1:{PEER_PORT}")
            await asyncio.sleep(0.03)
        del world.nodes[8]
        await world.settle()
        assert sorted(state.nodes) == [1, 2, 3]
        assert state.nodes[2].member == world.nodes[2].member

    run_story(story)


def test_w11_test_controls_are_off_and_from_loopback_and_with_the_secret_only(tmp_path: Path) -> None:
    """W11: test control was reachable without authentication."""
    revoke = Control("secret", "revoke-leases")

    async def from_afar(world: World) -> None:
        client = await plants.raw_client(world, world.nodes[1])
        error = await refusal(client.call(Kind.CONTROL, revoke), ControlRefused)
        assert "loopback only" in error.message
        assert all(node.broker.leases.rejections.value == 0 for node in world.up)

    run_story(from_afar, test_controls=True, cluster_secret="secret")

    async def when_off(node: Node) -> None:
        error = await refusal((await node.connect()).call(Kind.CONTROL, revoke), ControlRefused)
        assert "test_controls is off" in error.message

    on_real_disk(tmp_path / "off", when_off, cluster_secret="secret")

    async def with_the_secret_only(node: Node) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"0"))
        for secret in ("", "wrong", "secret "):
            await refusal(client.call(Kind.CONTROL, Control(secret, "revoke-leases")), ControlRefused)
        await client.append("t", frame_of(b"1"))
        await client.call(Kind.CONTROL, revoke)
        await refusal(client.append("t", frame_of(b"no")), NotLeader)
        await client.call(Kind.CONTROL, Control("secret", "sync-leases"))
        await client.append("t", frame_of(b"2"))
        assert await client.values("t") == [b"0", b"1", b"2"]

    on_real_disk(tmp_path / "on", with_the_secret_only, test_controls=True, cluster_secret="secret")


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\xc1 no msgpack",
        msgspec.msgpack.encode(["Invented", 1, 2]),
        msgspec.msgpack.encode(["SealSegment", 1]),
        msgspec.msgpack.encode(["UpsertNode", 9, "no hexadecimal", 1, "h", 1, "h", 1]),
        msgspec.msgpack.encode(["UpsertNode", -9, "01", 1, "h", 1, "h", 1]),
        msgspec.msgpack.encode(["RemoveNode", 999]),
    ],
    ids=["empty", "garbage", "unknown", "too short", "no disk id", "no node id", "no such node"],
)
def test_w11_a_command_that_cannot_be_applied_poisons_nothing(command: bytes) -> None:
    """W11: an error while applying stopped a node at that entry, at every start anew."""

    async def story(world: World) -> None:
        leader = world.metadata_leader()
        asker = next(node for node in world.up if node is not leader).broker.metadata
        answer = await asker.peers.request(leader.member, PeerKind.PROPOSE, b"", command, timeout=5)
        outcome = msgspec.msgpack.decode(answer.header, type=Outcome)
        assert not outcome.ok and outcome.detail
        await fill(world, "t", 5)
        for node in world.up:
            node.kill(power=True, loss=Loss.ALL)
        for node in world.nodes.values():
            await node.start()
        await world.settle()
        async with world.connect(3) as log:
            assert await read_all(log, "t") == numbers(5)
        assert not any(node.fatal for node in world.up)

    run_story(story)


def test_w16_a_reader_overtaken_by_retention_is_told_and_dropped_files_go_on_every_node() -> None:
    """W16: cursors were places in the chain, so that a deleted file made them skip; and files that were
    found by a recovery were never deleted."""

    async def story(world: World) -> None:
        await fill(world, "t", 60)
        away = next(node for node in world.up if node is not world.leader_of("t"))
        state = away.topic("t").state
        assert any(segment.leader == away.member for segment in state.segments[:4])
        folder = f"segments/{state.uid:016d}"
        away.kill()
        async with world.connect(*[node.node_id for node in world.up]) as log:
            await log.alter_topic("t", retention_bytes=1500)
            chain = world.up[0].topic("t")
            await plants.until(lambda: chain.state.start_offset >= 30)
            with pytest.raises(OffsetOutOfRange, match=f"{chain.state.start_offset}"):
                await read_from(log, "t", 3)
        await away.start()
        await world.settle()

        def kept(node: WorldNode) -> bool:
            wanted = [
                f"{s.segment:08d}-{s.uid:016d}" for s in chain.state.segments if s.leader == node.member
            ]
            files = node.disk.mount().list(folder) if node.disk.mount().exists(folder) else []
            return sorted({file.partition(".")[0] for file in files}) == wanted

        await plants.until(lambda: all(map(kept, world.up)))
        async with world.connect(away.node_id) as log:
            assert (
                await read_from(log, "t", chain.state.start_offset) == numbers(60)[chain.state.start_offset :]
            )

    run_story(story, segment_records=5, monitor_check_ms=50)


async def read_from(log: ister.Log, topic: str, offset: int) -> list[bytes | None]:
    return [record.value async for record in log.read(topic, start=offset)]


def test_w19_reads_of_a_dead_nodes_topic_hold_up_no_other() -> None:
    """W19: one mutex over all cursors was held across calls: a dead node stalled every read for 15 s."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            for name in "abcdefgh":
                await log.append(name, [b"x"])
        dead = next(node for node in world.up if node.node_id != 1 and led(world, node))
        stalled = led(world, dead)
        async with world.connect(1, retry_deadline_s=5) as log:
            dead.kill(power=True)  # silently: nobody is told
            waiting = [asyncio.ensure_future(read_all(log, name)) for name in stalled for _ in range(5)]
            await asyncio.sleep(0)
            for name in set("abcdefgh") - stalled:
                assert await read_all(log, name) == [b"x"]
                await log.append(name, [b"y"])
            assert not any(reading.done() for reading in waiting), "the others did not wait for them"
            for outcome in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(outcome, NodeUnreachable | RequestTimeout), outcome

    run_story(story)


def led(world: World, node: WorldNode) -> set[str]:
    return {name for name in "abcdefgh" if world.leader_of(name) is node}


@pytest.mark.parametrize("through", [1, 2, 3])
def test_w22_a_rollover_is_not_seen_by_a_client_that_never_retries(through: int) -> None:
    """W22: a rollover showed as NotLeader."""

    async def story(world: World) -> None:
        client = await plants.raw_client(world, world.nodes[through])
        for number in range(60):
            assert (await client.append("t", frame_of(b"%d" % number))).base_offset == number
        client.send(*(append_request(n, "t", frame_of(b"%d" % n)) for n in range(60, 120)))
        answers = await client.answers(60)
        assert {answer.kind for answer in answers.values()} == {0}
        assert len({node_of(s.leader) for s in world.nodes[1].topic("t").state.segments}) == 3
        assert await client.values("t") == numbers(120)

    run_story(story, segment_records=4)


@pytest.mark.parametrize("answers_with", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n" * 3, b"\xff" * 64])
def test_w22_a_join_that_reaches_no_broker_ends_and_leaves_nothing(answers_with: bytes) -> None:
    """W22: a join that failed left the node running, in no cluster."""

    class Stranger(RawClient):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.send(answers_with)

    async def story(world: World) -> None:
        await world.network.host("stranger").listen(Stranger, "stranger", 80)
        alone = world.make(5)
        with pytest.raises(JoinFailed, match="stranger:80") as caught:
            await alone.start(join="stranger:80", join_timeout_ms=3000)
        assert "--join" in caught.value.hint
        assert not alone.is_up
        assert alone.disk.mount().list("raft") == [], "nothing of a cluster was made"
        await alone.start(join=f"node-1:{PEER_PORT}")
        await world.settle()

    run_story(story, nodes=1)


def test_w22_a_join_to_a_port_for_clients_ends_the_process_with_what_to_do(tmp_path: Path) -> None:
    """W22: a join that failed left the node running, in no cluster."""

    async def scenario(node: Node) -> None:
        serve = [*ISTER, "serve", "--node-id", "2", "--data-dir", str(tmp_path / "two"), "--client-port", "0"]
        address = f"127.0.0.1:{node.address[1]}"
        process = await asyncio.create_subprocess_exec(
            *serve, "--admin-port", "-1", "--peer-port", "0", "--join", address,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            out, told = await process.communicate()
        assert process.returncode == 1
        assert b"ready" not in out
        assert f"error [join-failed]: {address} does not let node 2 in: ".encode() in told
        assert b"this is the port for clients, and a broker has called" in told
        assert b"hint: Give the broker's peer port instead" in told
        assert b"Traceback" not in told
        assert not (tmp_path / "two" / "raft").exists(), "no half of a node"
        assert list(node.broker.metadata.state.nodes) == [1]

    on_real_disk(tmp_path / "one", scenario, peer_port=0, bootstrap_cluster=True)
