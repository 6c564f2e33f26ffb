"""NATS JetStream: a durable pull consumer, asked for batches, in its own protocol over sockets.

One consumer acknowledges each batch by its last message (`ack_policy: all`); several that share one have to
acknowledge each message (`explicit`). The subject that a message is acknowledged on comes with it.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.peers.nats import (
    Nats,
    as_json,
    connect,
    greet,
    make_stream,
    server_version,
    syncs_always,
)
from bench.peers.peer import Line, Missing, exchange, find_program, free_port, server
from bench.subscriptions.asked import Job
from ister.bench.figures import milliseconds, rounded
from ister.bench.target import scratch_directory
from ister.bench.workload import Workload

BATCH: Final = 1000
_MESSAGE: Final = re.compile(rb"MSG bench 1 (\$JS\.ACK\.\S+) (\d+)\r\n")
_STAMP: Final = struct.Struct("<d")
_PATIENCE_SECONDS: Final = 60


class Puller:
    """One consumer: asks for a batch, acknowledges it, asks again."""

    def __init__(self, port: int, durable: str, *, acks_each: bool) -> None:
        self.line = Line(port, b"")
        inbox = f"inbox.{durable}.{id(self)}"
        greet(self.line, inbox)
        ask = as_json({"batch": BATCH, "expires": _PATIENCE_SECONDS * 10**9})
        self._ask = b"PUB $JS.API.CONSUMER.MSG.NEXT.bench.%b %b %d\r\n%b\r\n" % (
            durable.encode(),
            inbox.encode(),
            len(ask),
            ask,
        )
        self._acks_each = acks_each
        self._asked = 0
        self._rest = b""

    def ask(self) -> None:
        self._asked += BATCH
        self.line.socket.sendall(self._ask)

    def take(self, seen: Callable[[bytes, int], None] | None = None) -> int:
        """What has come, acknowledged; how many messages that is. `seen` gets each payload's place."""
        data = self._rest + self.line.socket.recv(1 << 20)
        acks, place, count = [], 0, 0
        for found in _MESSAGE.finditer(data):
            end = found.end() + int(found[2]) + 2
            if end > len(data):
                break
            acks.append(found[1])
            count += 1
            if seen is not None:
                seen(data, found.end())
            place = end
        self._rest = data[place:]
        if acks:
            chosen = acks if self._acks_each else acks[-1:]
            self._asked -= count
            more = self._ask if self._asked < BATCH else b""
            self._asked += BATCH if more else 0
            self.line.socket.sendall(b"".join(b"PUB %b 4\r\n+ACK\r\n" % ack for ack in chosen) + more)
        return count


def make_consumer(port: int, durable: str, policy: str) -> None:
    line = Line(port, b"")
    greet(line, "made")
    config = {
        "durable_name": durable,
        "ack_policy": policy,
        "deliver_policy": "all",
        "max_ack_pending": -1,
        "ack_wait": _PATIENCE_SECONDS * 10**9,
    }
    asked = as_json({"stream_name": "bench", "config": config})
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.bench.{durable}".encode()
    line.socket.sendall(b"PUB %b made %d\r\n%b\r\n" % (subject, len(asked), asked))
    answer = line.await_text(b"}\r\n")
    if b'"error"' in answer:
        raise RuntimeError(f"JetStream made no consumer: {answer.decode(errors='replace')}")
    line.socket.close()


def consume(port: int, durable: str, consumers: int, records: int) -> float:
    make_consumer(port, durable, "all" if consumers == 1 else "explicit")
    pullers = [Puller(port, durable, acks_each=consumers > 1) for _ in range(consumers)]
    left, began = records, time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for one in pullers:
            selector.register(one.line.socket, selectors.EVENT_READ, one)
            one.ask()
            one.ask()
        while left > 0:
            ready = selector.select(_PATIENCE_SECONDS)
            if not ready:
                raise RuntimeError(f"{left} of {records} messages did not come")
            left -= sum(key.data.take() for key, _ in ready)
    seconds = time.perf_counter() - began
    for one in pullers:
        one.line.socket.close()
    return seconds


def deliver(port: int, job: Job) -> list[float]:
    """Seconds from each record's publishing until its consumer has it."""
    make_consumer(port, "delivery", "all")
    puller, publisher = Puller(port, "delivery", acks_each=False), Line(port, b"")
    publisher.await_text(b"INFO ")
    publisher.socket.sendall(b"CONNECT %b\r\n" % as_json({"verbose": False, "pedantic": False}))
    took: list[float] = []

    def seen(data: bytes, place: int) -> None:
        took.append(time.perf_counter() - _STAMP.unpack_from(data, place)[0])

    rest, count, sent = bytes(job.size - _STAMP.size), job.rate * job.seconds, 0
    puller.ask()
    puller.ask()
    began = time.perf_counter()
    while len(took) < count:
        due = min(int((time.perf_counter() - began) * job.rate), count)
        if due > sent:
            stamp = _STAMP.pack(time.perf_counter())
            publisher.socket.sendall((b"PUB bench %d\r\n%b%b\r\n" % (job.size, stamp, rest)) * (due - sent))
            sent = due
        _wait(puller.line.socket, 0.0005)
        if time.perf_counter() - began > job.seconds + _PATIENCE_SECONDS:
            raise RuntimeError(f"{len(took)} of {count} messages came")
        try:
            puller.line.socket.setblocking(False)
            puller.take(seen)
        except BlockingIOError:
            pass
        finally:
            puller.line.socket.setblocking(True)
    return took


def _wait(source: socket.socket, seconds: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        selector.select(seconds)


class NatsPulls:
    name = "nats"

    def run(self, job: Job) -> dict[str, Any]:
        found = Nats().find()
        if isinstance(found, Missing):
            return {"status": "missing", "how": found.how}
        with scratch_directory() as directory:
            try:
                results = self._run(job, directory)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                return {"status": "failed", "version": found.version, "how": str(error)}
        how = f"pull consumers; {found.how}"
        return {"status": "measured", "version": found.version, "how": how, **results}

    def _run(self, job: Job, directory: Path) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if job.consuming:
            results |= self._consuming(job, directory)
        if "delivery" in job.modes:
            with _jetstream(directory / "delivery") as port:
                times = {**milliseconds(took := deliver(port, job)), "max_ms": rounded(max(took) * 1000)}
            results["delivery"] = times
        return results

    def _consuming(self, job: Job, directory: Path) -> dict[str, Any]:
        results: dict[str, Any] = {}
        with _jetstream(directory / "consuming") as port:
            work = Workload(records=job.records, size=job.size, batch=BATCH, in_flight=8)
            lines = [connect(port, f"acks.{number}", work) for number in range(work.in_flight)]
            exchange(lines, work.batch_records, work.batch_count)
            for name, consumers in job.consuming.items():
                rates = [
                    job.records / consume(port, f"{name}-{number}", consumers, work.total_records)
                    for number in range(1 + job.repeats)
                ]
                results[name] = {"records_per_s": round(median(rates[1:])), "repeats": job.repeats}
        return results


@contextmanager
def _jetstream(directory: Path) -> Iterator[int]:
    """A server with a stream, in a directory of its own; yields its port."""
    program, port = find_program("nats-server"), free_port()
    assert program is not None
    directory.mkdir()
    config = directory / "nats.conf"
    always = ", sync_interval: always" if syncs_always(server_version(program)) else ""
    store = json.dumps(str(directory / "store"))
    config.write_text(
        f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store}{always} }}\nmax_pending: 256MB\n"
    )
    with server([program, "-c", str(config)], directory, port):
        make_stream(Line(port, b""))
        yield port
