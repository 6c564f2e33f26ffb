"""A segment's frames come from the member that leads it, and from nobody else (A3)."""

from __future__ import annotations

import msgspec
import pytest

from ister.errors import BadRequest
from ister.frame import stamp
from ister.protocol.codec import encode_header, encode_message
from ister.protocol.peer import PeerKind, encode_peer_preamble
from ister.protocol.replication import Replicate
from ister.testing.cluster import PEER_PORT, World, WorldNode, run_story
from ister.wal.segment import FsyncPolicy
from tests.broker.broker_helpers import RawClient, frame_of
from tests.holes.cluster_plants import check_line, until


def forged(node: WorldNode, base_offset: int) -> bytes:
    """A frame that follows what the copy on this node has, and that its leader knows nothing of."""
    topic = node.topic("t").state
    segment = topic.open_segment
    frame = bytearray(frame_of(b"forged"))
    stamp(frame, base_offset, segment.uid, segment.opened_at_us + 1)
    header = encode_header(Replicate(topic.uid, segment.uid, base_offset, base_offset + 1, "none"))
    return encode_message(0, PeerKind.REPLICATE, header, len(frame)) + frame


def hello(world: World, node_id: int, disk_id: str) -> bytes:
    cluster = world.nodes[1].broker.metadata.cluster_id
    node = [node_id, disk_id, "stranger", PEER_PORT, "stranger", 9091]
    return encode_message(1, PeerKind.HELLO, msgspec.msgpack.encode([cluster, node, 1]))


@pytest.mark.parametrize("is_open", [True, False], ids=["an open copy", "a copy that is not open yet"])
@pytest.mark.parametrize("has_leaders_id", [False, True], ids=["another node", "another disk of the leader"])
def test_frames_of_a_member_that_does_not_lead_are_refused(has_leaders_id: bool, is_open: bool) -> None:
    """Taken, one frame would be in a copy and not in the leader's log: two records at one offset, as soon as
    a recovery finds that copy the longest."""

    async def story(world: World) -> None:
        world.network.split_probability = 0.0
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
            leader = world.leader_of("t")
            follower = next(node for node in world.up if node is not leader)
            copies, uid = follower.broker.replication.copies, leader.topic("t").state.open_segment.uid
            await until(lambda: (found := copies.follower(uid)) is not None and found.committed_end == 1)
            if not is_open:
                follower.kill()
                world.network.partition(leader.host, follower.host)
                await follower.start()
                copies = follower.broker.replication.copies
                assert copies.follower(uid) is None
            client = await world.network.host("stranger").connect(RawClient, follower.host, PEER_PORT)
            assert isinstance(client, RawClient)
            node_id = leader.node_id if has_leaders_id else 9
            client.send(encode_peer_preamble(), hello(world, node_id, "09"), forged(follower, 1))
            await client.wait_closed()
            told = [answer.error for answer in client.unread() if answer.kind]
            assert [type(error) for error in told] == [BadRequest]
            assert f"node {leader.node_id} leads it" in told[0].message and told[0].hint
            found = copies.follower(uid)
            assert found is not None and found.end_offset == 1, "nothing of it was taken"
            assert found.policy is FsyncPolicy.FSYNC, "nor its word on when records are synced"
            world.network.heal()
            assert (await log.append("t", [b"1"])).base_offset == 1
            await until(lambda: found.committed_end == 2)
            leader.kill(power=True)
            leader.wipe()
            assert (await log.append("t", [b"2"])).base_offset == 2
        await check_line(world, "t", {0: b"0", 1: b"1", 2: b"2"})

    run_story(story, replicas=3)
