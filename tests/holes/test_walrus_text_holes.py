"""Walrus's holes in its text protocol: what it did is in each docstring, that Ister does not is the test.

The client is one that Walrus's own documents describe, on a real socket.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest

from tests.text.fakes import FakeCluster
from tests.text.served import Served, WalrusClient, serve


@pytest.fixture
def one() -> Iterator[Served]:
    with serve() as served:
        yield served


@pytest.fixture
def three() -> Iterator[Served]:
    with serve(nodes=3) as served:
        yield served


def test_an_unchanged_client_registers_puts_gets_and_looks(one: Served) -> None:
    with WalrusClient(one.address()) as client:
        assert client.ask(b"REGISTER logs") == b"OK"
        assert client.ask(b"REGISTER logs") == b"OK", "as often as it likes"
        assert client.ask(b"PUT logs application started") == b"OK"
        assert client.ask(b"PUT logs request processed") == b"OK"
        assert client.ask(b"GET logs") == b"OK application started"
        assert client.ask(b"GET logs") == b"OK request processed"
        assert client.ask(b"GET logs") == b"EMPTY"
        assert json.loads(client.ask(b"STATE logs")) == {
            "current_segment": 1,
            "leader_node": 1,
            "last_sealed_entry_offset": 0,
            "sealed_segments": {},
            "segment_leaders": {"1": 1},
        }
        assert json.loads(client.ask(b"METRICS"))["state"] == "Leader"
        assert client.ask(b"GET nowhere").startswith(b"ERR unknown topic nowhere")
        assert client.ask(b"STATE nowhere").startswith(b"ERR unknown topic nowhere")
        assert client.ask(b"FLUSH logs").startswith(b"ERR unknown command")
        assert client.ask(b"GET a:b").startswith(b"ERR invalid-topic-name")


def test_w6_the_cursor_is_one_for_the_clients_of_all_nodes(three: Served) -> None:
    """W6: the "shared" cursor was one for each node, and each node handed out everything again."""
    clients = [WalrusClient(three.address(number)) for number in (1, 2, 3)]
    clients[0].ask(b"REGISTER logs")
    for number in range(12):
        assert clients[number % 3].ask(b"PUT logs %d" % number) == b"OK"
    got = [clients[number % 3].ask(b"GET logs") for number in range(12)]
    assert got == [b"OK %d" % number for number in range(12)]
    assert [client.ask(b"GET logs") for client in clients] == [b"EMPTY"] * 3
    for client in clients:
        client.socket.close()


@pytest.mark.parametrize("number", [1, 2])
def test_w6_a_record_whose_client_vanished_before_the_reply_goes_to_the_next(
    three: Served, number: int
) -> None:
    """W6: the cursor was stored before the reply was sent: who vanished took the record with it."""
    with WalrusClient(three.address(1)) as client:
        client.ask(b"PUT logs first")
        client.ask(b"PUT logs second")
        client.ask(b"PUT logs third")
        assert client.ask(b"GET logs") == b"OK first"  # node 1 owns the cursor

        async def hold(cluster: FakeCluster) -> None:
            cluster.nodes[1].hold_reads(hold=True)

        async def is_reading(cluster: FakeCluster) -> None:
            await cluster.nodes[1].is_reading.wait()

        async def go_on(cluster: FakeCluster) -> None:
            cluster.nodes[1].hold_reads(hold=False)

        three.call(hold)
        leaving = WalrusClient(three.address(number))
        leaving.send(b"GET logs")
        three.call(is_reading)
        leaving.vanish()
        three.wait_for_clients(1)
        three.call(go_on)
        assert client.ask(b"GET logs") == b"OK second"
        assert client.ask(b"GET logs") == b"OK third"
        assert client.ask(b"GET logs") == b"EMPTY"


@pytest.mark.parametrize("length", [65_537, 200_000, 5_000_000])
def test_w21_an_oversize_frame_is_read_to_its_end_and_the_next_command_understood(
    one: Served, length: int
) -> None:
    """W21: an oversize frame was answered but not drained, and its bytes were taken for commands."""
    with WalrusClient(one.address()) as client:
        body = struct.pack("<I", 5) + b"PUT t" + b"\x00" * (length - 9)
        client.send(body)
        client.send(b"PUT logs small")
        assert client.receive().startswith(b"ERR invalid frame length: %d bytes" % length)
        assert client.receive() == b"OK"
        assert client.ask(b"GET logs") == b"OK small"


def test_w21_an_empty_frame_is_answered_and_the_next_command_understood(one: Served) -> None:
    """W21, the other end of the range."""
    with WalrusClient(one.address()) as client:
        assert client.ask(b"").startswith(b"ERR invalid frame length: 0 bytes")
        assert client.ask(b"REGISTER logs") == b"OK"


@pytest.mark.parametrize(
    "payload", [b"  spaces  ", b"\n", b"line\r\n", b"", b"\xff\x00\xfe", bytes(range(256)), b"x" * 65_526]
)
def test_w21_a_payload_comes_back_byte_for_byte(one: Served, payload: bytes) -> None:
    """W21: payloads were trimmed, and what was not UTF-8 was rejected."""
    with WalrusClient(one.address()) as client:
        assert client.ask(b"PUT logs " + payload) == b"OK"
        assert client.ask(b"GET logs") == b"OK " + payload


def test_commands_sent_without_waiting_are_all_answered_even_if_no_more_follow(one: Served) -> None:
    with WalrusClient(one.address()) as client:
        for number in range(500):
            client.send(b"PUT logs %d" % number)
        client.socket.shutdown(1)
        assert [client.receive() for _ in range(500)] == [b"OK"] * 500
        with pytest.raises(ConnectionError):
            client.receive()
    with WalrusClient(one.address()) as client:
        assert [client.ask(b"GET logs") for _ in range(500)] == [b"OK %d" % number for number in range(500)]
