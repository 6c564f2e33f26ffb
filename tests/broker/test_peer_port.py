"""Whatever calls the port for other brokers is told what it reached, costs little, and harms nobody."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
from tests.broker.broker_helpers import RawClient, frame_of

import ister
from ister import callers
from ister.errors import BadRequest, IsterError, MessageTooLarge, Overloaded, RequestTimeout
from ister.peers import MAX_STRANGERS
from ister.protocol.codec import PREFIX, encode_header, encode_message, encode_preamble
from ister.protocol.messages import Hello, Kind
from ister.protocol.peer import NodeAddress, PeerHello, PeerKind, Removed, encode_peer_preamble
from ister.testing.cluster import CLIENT_PORT, PEER_PORT, World, read_all, run_story


async def call(world: World, *data: bytes, port: int = PEER_PORT, name: str = "stranger") -> RawClient:
    """Somebody connects to node 1 and sends this."""
    # In one piece: who goes on sending after it was refused may see a reset before the answer, as with TCP.
    world.network.split_probability = 0.0
    client = await world.network.host(name).connect(RawClient, "node-1", port)
    assert isinstance(client, RawClient)
    if data:
        client.send(*data)
    return client


async def turned_away(client: RawClient) -> IsterError:
    """Why it was: it was told, and the connection closed."""
    error = (await client.answer()).error
    assert error.message and error.hint
    await client.wait_closed()
    return error


def callers_of(world: World) -> callers.Callers:
    return world.nodes[1].broker.metadata.peers._callers


async def check_unharmed(world: World) -> None:
    await world.settle()
    assert not any(node.fatal for node in world.up)
    assert len(callers_of(world)) == len(world.up) - 1, "nobody but the members is connected"
    async with world.connect(1) as log:
        before = await log.offsets_at("check", "latest") if "check" in await names(log) else 0
        await log.append("check", [b"%d" % before])
        assert await read_all(log, "check") == [b"%d" % number for number in range(before + 1)]


async def names(log: ister.Log) -> list[str]:
    return [topic.topic.partition("/")[2] for topic in await log.list_topics()]


def order(correlation: int) -> bytes:
    """What a metadata leader tells a node that was removed."""
    return encode_message(correlation, PeerKind.REMOVED, encode_header(Removed("go", 1)))


def hello(cluster_id: str = "", node_id: int = 9, disk_id: str = "09") -> bytes:
    node = [node_id, disk_id, "stranger", PEER_PORT, "stranger", CLIENT_PORT]
    return encode_message(1, PeerKind.HELLO, msgspec.msgpack.encode([cluster_id, node, 1]))


def test_a_client_on_the_peer_port_is_told_which_port_it_wants() -> None:
    async def story(world: World) -> None:
        greeting = encode_message(1, Kind.HELLO, encode_header(Hello("raw")))
        error = await turned_away(await call(world, encode_preamble(), greeting))
        assert isinstance(error, BadRequest)
        assert "port for other brokers" in error.message and "a client" in error.message
        assert "client port" in error.hint
        host, clock = world.network.host("client"), world.nodes[1].clock
        with pytest.raises(BadRequest, match=r"node-1:6001 .*port for other brokers") as caught:
            async with ister.connect(f"node-1:{PEER_PORT}", network=host, clock=clock):
                raise AssertionError("connected to a port that is not for clients")
        assert "client port" in caught.value.hint
        await check_unharmed(world)

    run_story(story)


def test_a_broker_on_the_client_port_is_told_which_port_it_wants() -> None:
    async def story(world: World) -> None:
        client = await call(world, encode_peer_preamble(), hello(), port=CLIENT_PORT)
        error = await turned_away(client)
        assert isinstance(error, BadRequest)
        assert "port for clients" in error.message and "a broker" in error.message
        assert "peer port" in error.hint and "peer port" in error.hint
        await check_unharmed(world)

    run_story(story)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: node-1\r\n\r\n",
        bytes(64),
        b"\xff" * 5000,
        encode_peer_preamble()[:4] + b"\x63\x00\x64\x00",
        encode_peer_preamble() + b"\x00" * 12,
        encode_peer_preamble() + PREFIX.pack(20, 1, PeerKind.HELLO, 500) + bytes(100),
        encode_peer_preamble() + encode_message(1, PeerKind.HELLO, b"\xc1\xc1"),
        encode_peer_preamble() + encode_message(1, PeerKind.PING, b""),
        encode_peer_preamble() + encode_message(1, PeerKind.RAFT, b"", 4) + b"raft",
        encode_peer_preamble() + order(1),
        encode_peer_preamble() + hello() + encode_message(2, PeerKind.RAFT, b"", 4) + b"raft",
        encode_peer_preamble() + hello() + order(2),
        encode_peer_preamble() + hello() + hello(),
        encode_peer_preamble() + hello("another cluster"),
        encode_peer_preamble() + hello(node_id=-1),
        encode_peer_preamble() + hello(node_id=1 << 40),
        encode_peer_preamble() + hello(disk_id="no hexadecimal"),
        encode_peer_preamble() + hello(disk_id="f" * 1000),
    ],
    ids=[
        "http", "zeroes", "ones", "another version", "an empty message", "a header larger than its message",
        "no hello", "a ping first", "raft first", "an order first", "raft without a cluster",
        "an order without a cluster", "two hellos", "another cluster", "a negative node id", "a huge node id",
        "a disk id in words", "a long disk id",
    ],
)  # fmt: skip
def test_what_is_no_peer_is_told_why_and_its_connection_closed(data: bytes) -> None:
    async def story(world: World) -> None:
        client = await call(world, data)
        await client.wait_closed()
        told = [answer.error for answer in client.unread() if answer.kind]
        assert [isinstance(error, BadRequest) and bool(error.hint) for error in told] == [True]
        await check_unharmed(world)

    run_story(story)


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("size", [callers.GREETING_BYTES + 1, 1 << 31, (1 << 32) - 5])
def test_a_large_message_of_one_that_is_no_member_takes_no_memory(size: int, greeted: bool) -> None:
    async def story(world: World) -> None:
        client = await call(world, encode_peer_preamble())
        if greeted:
            client.send(hello())
            assert (await client.answer()).kind == 0
        stranger = next(reversed(callers_of(world)._all))
        client.send(PREFIX.pack(size - 4, 2, PeerKind.JOIN, 0), bytes(1000))
        error = await turned_away(client)
        assert isinstance(error, MessageTooLarge) and str(callers.GREETING_BYTES) in error.message
        assert len(stranger._buffer) <= callers.GREETING_BYTES
        await check_unharmed(world)

    run_story(story)


def test_the_largest_greeting_is_taken_and_a_members_messages_may_be_larger() -> None:
    async def story(world: World) -> None:
        padding = "x" * (callers.GREETING_BYTES - len(hello("")) - 3)
        client = await call(world, encode_peer_preamble(), hello(padding))
        assert "cluster xxx" in (await turned_away(client)).message, (
            "it was read, and refused for what it says"
        )
        member = world.nodes[2].broker.metadata
        payload = bytes(callers.GREETING_BYTES * 20)
        answer = await member.peers.request(world.nodes[1].member, PeerKind.PROPOSE, b"", payload, timeout=5)
        assert answer.header, "an unknown command, but one that was received"

    run_story(story, nodes=2)


def test_who_calls_and_says_nothing_is_let_go() -> None:
    async def story(world: World) -> None:
        silent, slow = await call(world), await call(world, encode_peer_preamble()[:5])
        for client in (silent, slow):
            error = await turned_away(client)
            assert isinstance(error, RequestTimeout) and "no hello" in error.message
        await check_unharmed(world)

    run_story(story)


@pytest.mark.parametrize("greeting", [b"", encode_peer_preamble() + hello()], ids=["silent", "greeted"])
def test_strangers_are_bounded_and_keep_no_member_out(greeting: bytes) -> None:
    async def story(world: World) -> None:
        clients = [await call(world, greeting) for _ in range(callers.MAX_CALLERS + 50)]
        assert len(callers_of(world)) <= callers.MAX_CALLERS
        refused = [answer.error for client in clients for answer in client.unread() if answer.kind]
        assert len(refused) >= 50 and {type(error) for error in refused} == {Overloaded}
        world.nodes[3].kill()
        await world.nodes[3].start()
        await world.settle()
        assert len(callers_of(world)) <= callers.MAX_CALLERS
        members = {node.member for node in world.up if node.node_id != 1}
        assert {node.member for node in callers_of(world).nodes()} == members
        for client in clients:
            client.transport.close()
        await asyncio.sleep(1)
        await check_unharmed(world)

    run_story(story)


def test_made_up_members_are_not_dialled_back_without_end() -> None:
    async def story(world: World) -> None:
        cluster_id = world.nodes[1].broker.metadata.cluster_id
        peers = world.nodes[1].broker.metadata.peers
        for number in range(MAX_STRANGERS * 3):
            client = await call(world, encode_peer_preamble(), hello(cluster_id, 100 + number))
            await client.answer()
            client.transport.close()
        assert len(peers._links) <= MAX_STRANGERS + 2
        assert all(peers.is_alive(node.member) for node in world.up)
        await asyncio.sleep(1)
        await check_unharmed(world)

    run_story(story)


def test_who_does_not_take_its_answers_is_not_read_from() -> None:
    async def story(world: World) -> None:
        client = await call(world, encode_peer_preamble(), hello())
        assert (await client.answer()).kind == 0
        stranger = next(reversed(callers_of(world)._all))
        client.transport.pause_reading()
        ping = encode_message(7, PeerKind.PING, b"")
        for _ in range(40):
            client.send(ping * 10_000)
            await asyncio.sleep(0.05)
        assert stranger._transport.get_write_buffer_size() < 1 << 20
        client.transport.abort()
        await asyncio.sleep(1)
        await check_unharmed(world)

    run_story(story)


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_behind_a_good_beginning_harm_nobody(seed: int) -> None:
    async def story(world: World) -> None:
        random = Random(seed)
        cluster_id = world.nodes[1].broker.metadata.cluster_id
        for _ in range(20):
            data = bytearray(encode_peer_preamble() + hello(random.choice(["", cluster_id]), 50))
            for _ in range(random.randrange(6)):
                header, payload = (
                    random.randbytes(random.randrange(40)),
                    random.randbytes(random.randrange(200)),
                )
                kind = random.choice([*map(int, PeerKind), random.randrange(1 << 16)])
                if kind != PeerKind.REMOVED:  # an order that a member may give, and that is obeyed
                    data += encode_message(random.randrange(1 << 32), kind, header, len(payload)) + payload
            for _ in range(random.randrange(4)):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
            client = await call(world, bytes(data))
            await asyncio.sleep(0.1)
            client.transport.close()
        await asyncio.sleep(1)
        await check_unharmed(world)

    run_story(story, seed=seed)


@pytest.mark.parametrize("first", [1, 2, 3, 5, 7])
def test_a_preamble_that_comes_in_pieces_is_not_mixed_with_what_another_client_sent(first: int) -> None:
    """All connections of a broker share the buffer that they are read into."""

    async def story(world: World) -> None:
        busy, slow = await call(world, port=CLIENT_PORT), await call(world, port=CLIENT_PORT, name="slow")
        await busy.greet()
        for _ in range(3):
            await busy.append("t", frame_of(b"x" * 1000))
            slow.send(encode_preamble()[:first])
            await asyncio.sleep(0.1)
            slow.send(encode_preamble()[first:], encode_message(5, Kind.HELLO, encode_header(Hello("slow"))))
            answer = await slow.answer()
            assert (answer.correlation, answer.kind) == (5, 0)
            slow.transport.close()
            slow = await call(world, port=CLIENT_PORT, name="slow")

    run_story(story, nodes=1)


def test_a_node_address_that_no_member_can_have_is_not_made() -> None:
    for node_id, disk_id in ((0, "01"), (-1, "01"), (1 << 31, "01"), (1, ""), (1, "xyz"), (1, "0" * 17)):
        with pytest.raises(ValueError, match="is no"):
            NodeAddress(node_id, disk_id, "h", 1, "h", 1)
    assert PeerHello("c", NodeAddress(1, "0f", "h", 1, "h", 1)).node.member == (1 << 31) + 15
