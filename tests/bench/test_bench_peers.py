"""The adapters' client side, against a server that answers as the peer would."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest
from bench.peers.kafka import Part, measure_parts
from bench.peers.kafka_load import BATCH_BYTES, KafkaLoad, Run
from bench.peers.nats import publish_records, syncs_always
from bench.peers.peer import Line, exchange
from bench.peers.redis import add_records

from ister.bench.figures import Repetition
from ister.bench.workload import Workload


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


class Answers:
    """In place of the driver in Java: says what it is asked, and answers as it would."""

    def __init__(self) -> None:
        self.jobs: list[tuple[object, ...]] = []
        self._seconds = iter([9.0, 1.0, 2.0, 3.0] * 4)

    def create_topic(self, topic: str, options: Sequence[str], *, partitions: int, replicas: int) -> None:
        self.jobs.append(("create", topic, partitions, replicas, *options))

    def delete_topic(self, topic: str) -> None:
        self.jobs.append(("delete", topic))

    def batches(self, topic: str, records: int, size: int) -> Run:
        self.jobs.append(("batches", topic, records, size))
        return Run(next(self._seconds), 0.25, 0.5, 0.75)

    def lone(self, topic: str, records: int, size: int) -> Run:
        self.jobs.append(("lone", topic, records, size))
        return Run(next(self._seconds), 0.25, 0.5, 0.75)


def test_kafka_is_measured_flushed_and_not_and_the_first_run_only_warms_up() -> None:
    def beside(asked: Workload) -> Callable[[float, list[float]], Repetition]:
        cycle = asked.batch_records * asked.size
        return lambda seconds, latencies: Repetition(100_000, 10_000_000, seconds, latencies, 0.5, cycle)

    answers = Answers()
    parts = [
        Part("append", Workload(records=100_000, size=100, batch=1000, in_flight=8, repeats=3), 3),
        Part("latency", Workload(records=10, size=100, batch=1, in_flight=1, repeats=3)),
    ]
    results = measure_parts(cast(KafkaLoad, answers), parts, [os.getpid()], beside, replicas=3)
    assert list(results) == ["append", "append_unsynced", "latency", "latency_unsynced"]
    append = results["append"]
    assert (append["records_per_s"], append["repeats"]) == (50_000, 3), "the median of three, 9 s left out"
    assert (append["p50_ms"], append["cycle_bytes"]) == (0.25, BATCH_BYTES), "parts of a millisecond"
    created = [job for job in answers.jobs if job[0] == "create"]
    assert ["flush.messages=1" in job for job in created] == [True, False] * 2
    assert {job[2:4] for job in created} == {(3, 3), (1, 3)}
    assert sum(job[0] == "batches" for job in answers.jobs) == 8
