"""The adapters' client side, against a server that answers as the peer would."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from bench.peers.kafka import _LAST_LINE
from bench.peers.nats import publish_records, syncs_always
from bench.peers.peer import Line, exchange
from bench.peers.redis import add_records


@contextmanager
def answering(answer: Callable[[bytes], list[bytes]]) -> Iterator[int]:
    """A server that answers whatever comes, in the pieces given."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=converse, args=(connection,), daemon=True).start()

    def converse(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := connection.recv(1 << 16):
                for piece in answer(data):
                    connection.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


@pytest.mark.parametrize("lines", [1, 3])
def test_every_request_is_answered_once_for_each_of_its_records(lines: int) -> None:
    with answering(lambda data: [b"$15\r\n1-0\r\n" * data.count(b"XADD")]) as port:
        open_lines = [Line(port, b"$") for _ in range(lines)]
        for line in open_lines:
            line.request = add_records(5, 10)
        latencies = exchange(open_lines, 5, 7)
        for line in open_lines:
            line.socket.close()
    assert len(latencies) == 7
    assert all(seconds > 0 for seconds in latencies)


def test_a_marker_that_comes_in_two_pieces_is_one_answer() -> None:
    with answering(lambda data: [b"xxMS", b"G acks 1 2\r\n{}\r\nM", b"SG acks 1 2\r\n{}\r\n"]) as port:
        line = Line(port, b"MSG ")
        line.request = b"PUB"
        assert len(exchange([line], 2, 3)) == 3
        line.socket.close()


def test_a_peer_that_hangs_up_is_an_error_and_not_a_figure() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    line = Line(listener.getsockname()[1], b"$")
    line.request = b"x"
    listener.accept()[0].close()
    with pytest.raises((RuntimeError, ConnectionError)):
        exchange([line], 1, 1)
    listener.close()
    line.socket.close()


def test_requests_are_in_the_peer_s_own_protocol() -> None:
    assert add_records(2, 3).count(b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nv\r\n$3\r\n") == 2
    assert publish_records(2, 3, "acks.1").count(b"PUB bench acks.1 3\r\n") == 2


@pytest.mark.parametrize(("version", "always"), [("2.9.10", False), ("2.10.0", True), ("3.0.1", True)])
def test_whether_nats_syncs_before_it_acknowledges_is_known_by_its_version(
    version: str, always: bool
) -> None:
    assert syncs_always(version) is always


def test_the_last_line_of_kafka_s_tool_is_understood() -> None:
    said = (
        "50000 records sent, 9000.0 records/sec (0.86 MB/sec), 12.0 ms avg latency, 300.0 ms max latency.\n"
        "100000 records sent, 89525.5 records/sec (8.54 MB/sec), 100.51 ms avg latency, "
        "357.00 ms max latency, "
        "39 ms 50th, 110 ms 95th, 125 ms 99th, 126 ms 99.9th.\n"
    )
    (found,) = _LAST_LINE.finditer(said)
    assert found.groupdict() == {
        "records": "100000",
        "rate": "89525.5",
        "p50": "39",
        "p99": "125",
        "p999": "126",
    }
