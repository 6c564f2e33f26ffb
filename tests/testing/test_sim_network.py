"""The simulated network keeps TCP's promise until it breaks, and breaks as it is told to."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

import pytest

from ister.errors import AddressInUse, ConnectionFailed
from ister.io.network import Listener
from ister.testing import SimHost, SimNetwork, UnhandledErrors, VirtualLoop, simulate


class Peer(asyncio.BufferedProtocol):
    """Keeps what happens to it. Reads into a small buffer, to be fed in many pieces."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = bytearray()
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.stays_open_at_eof = False
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.stays_open_at_eof

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


async def pair(network: SimNetwork, make: Callable[[], Peer] = Peer) -> tuple[Peer, Peer]:
    """A connection from node-1 to node-2, as its two protocols."""
    accepted: list[Peer] = []

    def accept() -> Peer:
        accepted.append(make())
        return accepted[-1]

    listener = await network.host("node-2").listen(accept, "node-2", 0)
    client = await network.host("node-1").connect(Peer, *listener.address)
    listener.close()
    assert isinstance(client, Peer)
    return client, accepted[0]


def in_network(check: Callable[[SimNetwork], object], seed: int = 1) -> object:
    async def main(loop: VirtualLoop) -> object:
        network = SimNetwork(loop.fork("network"), trace=loop.trace)
        result = check(network)
        assert asyncio.iscoroutine(result)
        return await result

    return simulate(main, seed, limit_seconds=600)


def test_bytes_arrive_in_order_and_whole_whatever_the_delays() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        sent = bytearray()
        for number in range(300):
            chunk = f"{number},".encode() * (number % 50)
            client.transport.write(chunk)
            sent += chunk
            if number % 7 == 0:
                await asyncio.sleep(0.0005)
        await asyncio.sleep(1)
        assert server.received == sent

    for seed in range(10):
        in_network(check, seed)


def test_close_delivers_everything_and_then_the_end() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        client.transport.writelines([b"x" * 400_000, b"y" * 400_000])
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"too late")
        assert await server.lost is None
        assert await client.lost is None
        assert server.received == b"x" * 400_000 + b"y" * 400_000
        assert server.events == ["made", "eof", "lost"]
        assert network.connection_count == 0

    in_network(check)


def test_a_protocol_may_stay_open_at_the_peers_end() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        server.stays_open_at_eof = True
        client.transport.close()
        await asyncio.sleep(1)
        assert not server.transport.is_closing()
        server.transport.write(b"nobody listens")
        assert isinstance(await server.lost, ConnectionResetError)

    in_network(check)


def test_a_reader_that_pauses_stops_the_writer_within_the_window() -> None:
    async def check(network: SimNetwork) -> None:
        network.window = 10_000
        client, server = await pair(network)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        for _ in range(100):
            client.transport.write(b"z" * 1_000)
        await asyncio.sleep(5)
        assert server.received == b""
        assert client.events == ["made", "pause"]
        assert client.transport.get_write_buffer_size() == 90_000
        server.transport.resume_reading()
        await asyncio.sleep(5)
        assert len(server.received) == 100_000
        assert client.events == ["made", "pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0

    in_network(check)


def test_write_buffer_limits_decide_when_writing_pauses() -> None:
    async def check(network: SimNetwork) -> None:
        client, _ = await pair(network)
        client.transport.set_write_buffer_limits(high=10)
        client.transport.write(b"12345")
        assert client.events == ["made"]
        client.transport.write(b"123456")
        assert client.events == ["made", "pause"]
        assert client.transport.can_write_eof() is False

    in_network(check)


def test_both_ends_know_their_names() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        assert client.transport.get_extra_info("peername")[0] == "node-2"
        assert client.transport.get_extra_info("sockname") == server.transport.get_extra_info("peername")
        assert server.transport.get_extra_info("sockname") == client.transport.get_extra_info("peername")

    in_network(check)


def test_an_abort_is_a_reset_to_the_peer() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        client.transport.abort()
        assert await client.lost is None
        assert isinstance(await server.lost, ConnectionResetError)

    in_network(check)


def test_bytes_on_the_way_may_be_lost_with_an_abort() -> None:
    async def check(network: SimNetwork) -> bytes:
        client, server = await pair(network)
        client.transport.write(b"maybe")
        await asyncio.sleep(0)
        client.transport.abort()
        await server.lost
        return bytes(server.received)

    assert {in_network(check, seed) for seed in range(40)} >= {b"", b"maybe"}


def test_connecting_where_nobody_listens_is_refused() -> None:
    async def check(network: SimNetwork) -> None:
        with pytest.raises(ConnectionFailed, match="refused"):
            await network.host("node-1").connect(Peer, "node-2", 9000)
        listener = await network.host("node-2").listen(Peer, "0.0.0.0", 9000)
        listener.close()
        with pytest.raises(ConnectionFailed, match="refused"):
            await network.host("node-1").connect(Peer, "node-2", 9000)

    in_network(check)


def test_a_rule_refuses_connections_of_one_link() -> None:
    async def check(network: SimNetwork) -> None:
        network.faults.add("connect", prefix="node-1>", count=1)
        await network.host("node-2").listen(Peer, "node-2", 9000)
        await network.host("node-3").connect(Peer, "node-2", 9000)
        with pytest.raises(ConnectionFailed, match="refused"):
            await network.host("node-1").connect(Peer, "node-2", 9000)
        await network.host("node-1").connect(Peer, "node-2", 9000)

    in_network(check)


def test_an_address_in_use_or_of_another_host_is_not_given() -> None:
    async def check(network: SimNetwork) -> None:
        host: SimHost = network.host("node-1")
        first: Listener = await host.listen(Peer, "127.0.0.1", 9000)
        assert first.address == ("node-1", 9000)
        with pytest.raises(AddressInUse, match="9000"):
            await host.listen(Peer, "node-1", 9000)
        with pytest.raises(AddressInUse, match="no address of node-1"):
            await host.listen(Peer, "node-2", 9000)
        await network.host("node-2").listen(Peer, "node-2", 9000)
        assert isinstance(await host.connect(Peer, "localhost", 9000), Peer)

    in_network(check)


def test_a_partition_holds_bytes_and_healing_delivers_them() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.partition("node-1", "node-2")
        client.transport.write(b"held")
        server.transport.write(b"held too")
        await asyncio.sleep(5)
        assert client.received + server.received == b""
        network.heal("node-2", "node-1")
        await asyncio.sleep(1)
        assert client.received == b"held too"
        assert server.received == b"held"

    in_network(check)


def test_a_long_partition_breaks_the_sender_and_after_it_the_other_end() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.partition("node-1", "node-2")
        client.transport.write(b"held")
        assert isinstance(await client.lost, TimeoutError)
        await asyncio.sleep(100)
        assert server.events == ["made"], "no news gets through a partition"
        network.heal()
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.received == b""

    in_network(check)


def test_an_idle_connection_outlives_a_partition() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.isolate("node-2")
        await asyncio.sleep(100)
        network.heal()
        client.transport.write(b"still here")
        await asyncio.sleep(1)
        assert server.received == b"still here"

    in_network(check)


def test_a_one_way_partition_lets_bytes_through_but_not_their_acknowledgement() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.partition("node-2", "node-1", one_way=True)
        client.transport.write(b"arrives")
        await asyncio.sleep(1)
        assert server.received == b"arrives"
        assert isinstance(await client.lost, TimeoutError)
        assert isinstance(await server.lost, ConnectionResetError)

    in_network(check)


def test_connecting_through_a_partition_waits_and_then_times_out() -> None:
    async def check(network: SimNetwork) -> None:
        await network.host("node-2").listen(Peer, "node-2", 9000)
        network.partition("node-1", "node-2")
        with pytest.raises(ConnectionFailed, match="timed out"):
            await network.host("node-1").connect(Peer, "node-2", 9000)
        waiting = asyncio.create_task(network.host("node-1").connect(Peer, "node-2", 9000))
        await asyncio.sleep(5)
        network.heal()
        assert isinstance(await waiting, Peer)

    in_network(check)


def test_the_peers_of_a_killed_process_are_reset_and_its_own_code_hears_nothing() -> None:
    async def check(network: SimNetwork) -> None:
        old = network.host("node-2")
        client, server = await pair(network)
        await old.listen(Peer, "node-2", 9000)
        network.kill("node-2")
        assert isinstance(await client.lost, ConnectionResetError)
        await asyncio.sleep(100)
        assert server.events == ["made"]
        server.transport.write(b"from the grave")
        with pytest.raises(ConnectionFailed, match="refused"):
            await network.host("node-1").connect(Peer, "node-2", 9000)
        with pytest.raises(ConnectionFailed):
            await old.connect(Peer, "node-2", 9000)
        with pytest.raises(AddressInUse):
            await old.listen(Peer, "node-2", 9000)
        await network.host("node-2").listen(Peer, "node-2", 9000)
        await network.host("node-1").connect(Peer, "node-2", 9000)

    in_network(check)


def test_a_power_cut_is_noticed_only_by_those_who_send() -> None:
    async def check(network: SimNetwork) -> None:
        client, _ = await pair(network)
        network.kill("node-2", silent=True)
        await asyncio.sleep(100)
        assert client.events == ["made"]
        client.transport.write(b"anybody there?")
        assert isinstance(await client.lost, TimeoutError)

    in_network(check)


def test_a_reset_by_rule_or_by_hand_breaks_both_ends() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.faults.add("reset", prefix="node-1>", after=1)
        client.transport.write(b"a")
        await asyncio.sleep(1)
        assert server.received == b"a"
        client.transport.write(b"b")
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.received == b"a"
        network.faults.clear()
        client, server = await pair(network)
        network.reset("node-2", "node-1")
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)

    in_network(check)


def test_a_delay_rule_makes_packets_late() -> None:
    async def check(network: SimNetwork) -> None:
        client, server = await pair(network)
        network.faults.add("packet", suffix=">node-2", delay=3.0)
        client.transport.write(b"slow")
        await asyncio.sleep(2.9)
        assert server.received == b""
        await asyncio.sleep(1)
        assert server.received == b"slow"

    in_network(check)


def test_a_packet_does_not_overtake_a_late_one() -> None:
    async def check(network: SimNetwork) -> None:
        network.split_probability = 0
        client, server = await pair(network)
        network.faults.add("packet", suffix=">node-2", delay=3.0, count=1)
        client.transport.write(b"late ")
        await asyncio.sleep(0.1)
        client.transport.write(b"behind it")
        await asyncio.sleep(2)
        assert server.received == b""
        await asyncio.sleep(2)
        assert server.received == b"late behind it"

    in_network(check)


def test_an_error_in_a_protocol_ends_the_connection_and_fails_the_run() -> None:
    class Broken(Peer):
        def buffer_updated(self, nbytes: int) -> None:
            raise ValueError("a defect in the protocol")

    async def check(network: SimNetwork) -> None:
        client, server = await pair(network, Broken)
        client.transport.write(b"x")
        assert isinstance(await server.lost, ValueError)
        assert isinstance(await client.lost, ConnectionResetError)

    with pytest.raises(UnhandledErrors, match="a defect in the protocol"):
        in_network(check)


def test_each_side_runs_in_the_context_it_was_made_in() -> None:
    node = contextvars.ContextVar("node", default="nobody")

    class Aware(Peer):
        def buffer_updated(self, nbytes: int) -> None:
            self.events.append(node.get())

    async def check(network: SimNetwork) -> None:
        accepted: list[Aware] = []

        def accept() -> Aware:
            accepted.append(Aware())
            return accepted[-1]

        async def serve() -> Listener:
            node.set("server")
            return await network.host("node-2").listen(accept, "node-2", 9000)

        async def use() -> Aware:
            node.set("client")
            protocol = await network.host("node-1").connect(Aware, "node-2", 9000)
            assert isinstance(protocol, Aware)
            protocol.transport.write(b"hello")
            return protocol

        await asyncio.create_task(serve())
        client = await asyncio.create_task(use())
        network.split_probability = 0
        await asyncio.sleep(1)
        accepted[0].transport.write(b"hello")
        await asyncio.sleep(1)
        assert set(accepted[0].events) == {"made", "server"}
        assert set(client.events) == {"made", "client"}

    in_network(check)
