"""The connection: pipelined, coalesced, bounded; when it breaks, everybody is told once."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from fake_broker import FakeBroker, Fault
from test_append import run

import ister
from ister.client.connection import Address, open_connection
from ister.client.routing import parse_bootstrap
from ister.errors import (
    ConfigError,
    ConnectionFailed,
    IsterError,
    NotLeader,
    RequestTimeout,
    TopicExists,
    UnknownTopic,
)
from ister.io.network import TcpNetwork
from ister.protocol.codec import PREFIX, encode_header
from ister.protocol.messages import Empty, Hello, Kind

EMPTY = encode_header(Empty())


def address_of(text: str) -> Address:
    return parse_bootstrap(text)[0]


async def connected(broker: FakeBroker) -> ister.client.connection.Connection:  # type: ignore[name-defined]
    at = address_of(await broker.start())
    return await open_connection(broker.network, at, Hello("test"), timeout_s=5)


def test_requests_of_one_turn_leave_in_one_write() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        connection = await connected(broker)
        writes: list[int] = []
        write = connection._transport.write
        connection._transport = Recording(connection._transport, writes, write)
        await asyncio.gather(*(connection.request(Kind.STATS, EMPTY) for _ in range(50)))
        assert len(writes) == 1
        await connection.request(Kind.STATS, EMPTY)
        assert len(writes) == 2
        connection.close()
        await broker.stop()

    asyncio.run(main())


class Recording:
    """A transport that counts its writes."""

    def __init__(self, transport: asyncio.Transport, writes: list[int], write: object) -> None:
        self._transport = transport
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(len(data))
        self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()


def test_a_broken_connection_fails_every_request_once() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        connection = await connected(broker)
        broker.on_request = lambda kind: Fault.SILENCE
        requests = [asyncio.ensure_future(connection.request(Kind.STATS, EMPTY)) for _ in range(20)]
        await broker.until_received(Kind.STATS, 20)
        broker.break_connections()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, ConnectionFailed) for result in results)
        assert len({id(result) for result in results}) == 20
        with pytest.raises(ConnectionFailed):
            await connection.request(Kind.STATS, EMPTY)
        await broker.stop()

    asyncio.run(main())


def test_a_request_left_unanswered_breaks_the_connection() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        connection = await connected(broker)
        broker.on_request = lambda kind: Fault.SILENCE
        late = asyncio.ensure_future(connection.request(Kind.STATS, EMPTY, timeout_s=0.02))
        other = asyncio.ensure_future(connection.request(Kind.STATS, EMPTY, timeout_s=60))
        with pytest.raises(RequestTimeout):
            await late
        with pytest.raises(ConnectionFailed):
            await other
        assert not connection.is_open
        await broker.stop()

    asyncio.run(main())


def test_more_requests_than_the_bound_wait_their_turn() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        connection = await connected(broker)
        broker.delay_s = 0.01
        await asyncio.gather(*(connection.request(Kind.STATS, EMPTY) for _ in range(3000)))
        assert broker.most_in_flight <= 1024
        connection.close()
        await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    "garbage",
    [
        PREFIX.pack(8, 999, 0, 0),  # an answer to no request
        PREFIX.pack(8, 1, 0, 500),  # a header larger than its message
        b"\xff" * 64,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_bytes_that_are_no_message_end_the_connection(garbage: bytes) -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        connection = await connected(broker)
        broker.on_request = lambda kind: Fault.SILENCE
        waiting = asyncio.ensure_future(connection.request(Kind.STATS, EMPTY))
        await broker.until_received(Kind.STATS)
        broker.connections[0].transport.write(garbage)
        with pytest.raises(ConnectionFailed, match="no message"):
            await waiting
        await broker.stop()

    asyncio.run(main())


def test_nobody_listening_fails_at_once_with_a_hint() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        address = await broker.start()
        await broker.stop()
        with pytest.raises(ConnectionFailed, match="cannot connect") as caught:
            async with ister.connect(address):
                pass
        assert "ister serve" in caught.value.hint

    asyncio.run(main())


def test_a_listener_that_never_answers_the_hello_is_given_up() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        broker.on_request = lambda kind: Fault.SILENCE
        with pytest.raises(ConnectionFailed, match=r"did not answer within 0\.05 s"):
            async with ister.connect(await broker.start(), connect_timeout_s=0.05):
                pass
        await broker.stop()

    asyncio.run(main())


def test_the_addresses_are_tried_in_turn_and_again_after_not_leader() -> None:
    async def main() -> None:
        dead, first, second = (FakeBroker(TcpNetwork()) for _ in range(3))
        addresses = [await broker.start() for broker in (dead, first, second)]
        await dead.stop()
        first.on_append = lambda header: NotLeader("somebody else")
        async with ister.connect(",".join(addresses)) as log:
            await log.append("orders", [b"a"])
        assert second.topics["default/orders"].values() == [b"a"]
        assert first.topics == {}
        for broker in (first, second):
            await broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["", ",", "host:port", "host:0", "host:99999", ":9091", "::1:9091", "[::1"])
def test_addresses_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        ister.connect(wrong)


def test_addresses_of_both_families_are_understood() -> None:
    found = parse_bootstrap("a:1, [::1]:2,b")
    assert found == [Address("a", 1), Address("::1", 2), Address("b", 9091)]
    assert list(map(str, found)) == ["a:1", "[::1]:2", "b:9091"]


def test_topics_are_made_listed_described_altered_and_deleted() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        assert (await log.create_topic("orders", segment_records=5)).topic == "default/orders"
        with pytest.raises(TopicExists):
            await log.create_topic("orders")
        await log.create_topic("orders", if_absent=True)
        await log.create_topic("other/things")
        assert [topic.topic for topic in await log.list_topics("other/")] == ["other/things"]
        assert (await log.alter_topic("orders", retention_ms=5)).topic == "default/orders"
        await log.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            await log.describe_topic("orders")
        assert (await log.cluster()).cluster_id == "c1"
        assert (await log.stats()).metrics == {"x": 3.0}

    run(body)


def test_a_delete_whose_answer_was_lost_has_succeeded() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await log.create_topic("orders")
        lost = iter([Fault.DROP_AFTER])
        broker.on_request = lambda kind: next(lost, None) if kind == Kind.DELETE_TOPIC else None
        await log.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            await log.delete_topic("orders")

    run(body)


def test_a_create_whose_answer_was_lost_says_that_it_may_have_been_this_call() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        lost = iter([Fault.DROP_AFTER])
        broker.on_request = lambda kind: next(lost, None) if kind == Kind.CREATE_TOPIC else None
        with pytest.raises(TopicExists) as caught:
            await log.create_topic("orders")
        assert "earlier attempt" in caught.value.hint

    run(body)


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'rich', 'click', 'asyncio', 'msgspec', 'pyspark'}"
    code = f"import sys, ister; print(sorted({heavy} & set(sys.modules))); ister.connect; ister.Record"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_names_that_are_not_there_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ister.nothing
    assert issubclass(ister.IsterError, Exception)
    assert ister.IsterError is IsterError
    assert {"connect", "sync", "Record"} <= set(dir(ister))
