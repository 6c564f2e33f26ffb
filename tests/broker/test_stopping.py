"""SIGTERM and SIGKILL, on real files and in a real process.

Hole D1 of the ancestors: acknowledged data sat in memory, and an ordinary stop lost it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_helpers import ENOUGH_SECONDS, RawClient, append_request, frame_of, request

from ister.errors import BY_WIRE, ShuttingDown
from ister.io.network import TcpNetwork
from ister.protocol import messages
from ister.protocol.codec import decode_appended

SERVE = "import sys; from ister.cli.main import main; sys.exit(main())"


@contextmanager
def broker(data_dir: Path, *settings: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    command = [sys.executable, "-c", SERVE, "serve", "--data-dir", str(data_dir), "--client-port", "0"]
    command += ["--admin-port", "-1", "--output", "json", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield process, ready["client_port"]
        finally:
            if process.poll() is None:
                process.kill()


async def connect(port: int) -> RawClient:
    client = await TcpNetwork().connect(RawClient, "127.0.0.1", port)
    assert isinstance(client, RawClient)
    await client.greet()
    return client


async def send_until(
    client: RawClient, process: subprocess.Popen[bytes], number: signal.Signals
) -> tuple[dict[int, int], set[int]]:
    """Appends without end, the signal among them; what was acknowledged, and the kinds of refusal."""
    sent = 0
    signalled = False
    acknowledged: dict[int, int] = {}
    refusals: set[int] = set()
    while not client.closed.is_set():
        if sent - client.answer_count < 2000:
            client.send(*(append_request(n, "t", frame_of(b"%d" % n)) for n in range(sent, sent + 50)))
            sent += 50
        if client.answer_count > 1000 and not signalled:
            signalled = True
            process.send_signal(number)
        await asyncio.sleep(0)
    for answer in client.unread():
        if answer.kind == 0:
            acknowledged[decode_appended(answer.header).base_offset] = answer.correlation
        else:
            refusals.add(answer.kind)
    return acknowledged, refusals


async def stored(port: int) -> list[bytes | None]:
    return await (await connect(port)).values("t")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_every_acknowledged_record_is_there_after_a_stop_under_load(
    number: signal.Signals, tmp_path: Path
) -> None:
    async def load(port: int) -> tuple[dict[int, int], set[int]]:
        client = await connect(port)
        await client.append("t", frame_of(b"first"))
        return await send_until(client, process, number)

    with broker(tmp_path, "--set", "segment_records=500") as (process, port):
        acknowledged, refusals = asyncio.run(load(port))
        code = process.wait(ENOUGH_SECONDS)
    assert code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert acknowledged, "the signal came after some were acknowledged"
    assert all(BY_WIRE[kind].retriable for kind in refusals)
    with broker(tmp_path) as (process, port):
        records = asyncio.run(stored(port))
        process.terminate()
        assert process.wait(ENOUGH_SECONDS) == 0
    assert sorted(acknowledged) == list(range(1, len(acknowledged) + 1))
    assert len(records) > len(acknowledged)
    assert all(records[offset] == b"%d" % sent for offset, sent in acknowledged.items())


def test_appends_sent_before_the_signal_are_answered(tmp_path: Path) -> None:
    async def main(port: int, process: subprocess.Popen[bytes]) -> None:
        client = await connect(port)
        await client.append("t", frame_of(b"first"))
        client.send(*(append_request(number, "t", frame_of(b"x")) for number in range(2000)))
        await client.answer()
        process.terminate()
        answers = await client.answers(1999)
        assert {answer.kind for answer in answers.values()} <= {0, ShuttingDown.wire}
        await client.wait_closed()

    with broker(tmp_path) as (process, port):
        asyncio.run(main(port, process))
        assert process.wait(ENOUGH_SECONDS) == 0


def test_a_stop_does_not_wait_for_readers_that_wait_for_records(tmp_path: Path) -> None:
    async def main(port: int, process: subprocess.Popen[bytes]) -> None:
        client = await connect(port)
        await client.append("t", frame_of(b"first"))
        client.send(request(1, messages.Kind.FETCH, messages.Fetch("t", 1, 100, wait_ms=60_000)))
        await asyncio.sleep(0.2)
        process.terminate()
        await client.wait_closed()

    with broker(tmp_path, "--set", "drain_timeout_ms=1h") as (process, port):
        asyncio.run(main(port, process))
        assert process.wait(ENOUGH_SECONDS) == 0


def test_a_metadata_journal_that_cannot_be_written_ends_the_process_with_an_error(tmp_path: Path) -> None:
    """P1: the exit code and the last words say so."""
    patch = (
        "import ister.io.disk as disk, os\n"
        "real = os.fdatasync\n"
        "def broken(fd):\n"
        "    if 'journal' in os.readlink(f'/proc/self/fd/{fd}') and os.path.exists(os.environ['BREAK']):\n"
        "        raise OSError(5, 'Input/output error')\n"
        "    real(fd)\n"
        "disk.os.fdatasync = broken\n"
    )
    flag = tmp_path / "break"
    command = [sys.executable, "-c", patch + SERVE, "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--client-port", "0", "--admin-port", "-1", "--output", "json"]
    environment = {**os.environ, "BREAK": str(flag)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["client_port"]

        async def main() -> None:
            client = await connect(port)
            flag.touch()
            client.send(append_request(1, "t", frame_of(b"x")))
            await client.wait_closed()

        asyncio.run(main())
        _, errors = process.communicate(timeout=ENOUGH_SECONDS)
    assert process.returncode not in (0, None) and process.returncode > 0
    assert b"metadata journal cannot be written" in errors
    assert b"The node stops" in errors
