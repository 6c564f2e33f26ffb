"""A text client's session: one command after the other, one reply each, and what becomes of a record (S5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ister.broker.text.get_service import Taken
from ister.broker.text.session import FULL_BYTES, RESUME_BYTES, TextSession
from ister.broker.text.shared_cursor import DeliveryId
from ister.errors import CorruptSegment, NotLeader, StorageFailed, UnknownTopic
from ister.protocol.text import DRAIN_BYTES, LENGTH, MAX_FRAME_BYTES, encode_frame
from ister.testing import VirtualLoop, simulate


class Backend:
    """Commands end when the test lets them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.records: list[bytes] = []
        self.settled: list[tuple[str, int]] = []
        self.errors: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self._handed = 0

    async def _begin(self, what: str) -> None:
        self.begun.append(what)
        await self.gate.wait()
        if what in self.errors:
            raise self.errors[what]

    async def register(self, topic: str) -> None:
        await self._begin(f"REGISTER {topic}")

    async def put(self, topic: str, payload: bytes) -> None:
        await self._begin(f"PUT {topic}")
        self.records.append(payload)

    async def take(self, topic: str) -> Taken | None:
        await self._begin(f"GET {topic}")
        if self._handed == len(self.records):
            return None
        self._handed += 1
        return Taken(self.records[self._handed - 1], DeliveryId(1, 1, self._handed - 1, 1), 1)

    def done(self, taken: Taken) -> None:
        self.settled.append(("done", taken.delivery_id.offset))

    def returned(self, taken: Taken) -> None:
        self.settled.append(("returned", taken.delivery_id.offset))

    async def state(self, topic: str) -> bytes:
        if f"STATE {topic}" in self.errors:
            raise self.errors[f"STATE {topic}"]
        return b'{"current_segment":1}'

    async def metrics(self) -> bytes:
        return b"{}"


class Client:
    """The other end of a session, and the socket between them."""

    def __init__(self) -> None:
        self.backend = Backend()
        self.received = bytearray()
        self.taking = asyncio.Event()
        self.taking.set()
        self.gone: Exception | None = None
        self.closed = False
        self.told: list[bool] = []
        self.session = TextSession(
            self.backend, self._write, self._flushed, self._close, on_full=self.told.append
        )

    def _write(self, data: bytes) -> None:
        self.received += data

    async def _flushed(self) -> None:
        await self.taking.wait()
        if self.gone is not None:
            raise self.gone

    def _close(self) -> None:
        self.closed = True

    def send(self, *commands: bytes) -> None:
        self.session.feed(b"".join(map(encode_frame, commands)))

    async def replies(self) -> list[bytes]:
        await self.session.ended()
        found, position = [], 0
        while position < len(self.received):
            (size,) = LENGTH.unpack_from(self.received, position)
            found.append(bytes(self.received[position + 4 : position + 4 + size]))
            position += 4 + size
        assert position == len(self.received)
        return found


def play(script: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        await script(Client())

    simulate(main, seed=1, limit_seconds=60)


def test_commands_sent_together_are_answered_one_by_one_in_order() -> None:
    async def script(client: Client) -> None:
        client.send(
            b"REGISTER t", b"PUT t one", b"PUT t ", b"GET t", b"GET t", b"GET t", b"STATE t", b"METRICS"
        )
        assert await client.replies() == [
            b"OK",
            b"OK",
            b"OK",
            b"OK one",
            b"OK ",
            b"EMPTY",
            b'{"current_segment":1}',
            b"{}",
        ]

    play(script)


def test_a_command_begins_when_the_reply_before_it_has_left() -> None:
    async def script(client: Client) -> None:
        client.taking.clear()
        client.send(b"PUT t one", b"PUT t two")
        await asyncio.sleep(1)
        assert client.backend.begun == ["PUT t"]
        client.taking.set()
        assert await client.replies() == [b"OK", b"OK"]

    play(script)


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (b"GET t", UnknownTopic("there is no topic default/t"), b"ERR unknown topic t"),
        (b"GET t", CorruptSegment("segment 1 is damaged at byte 70"), b"ERR corrupt-segment: segment 1"),
        (b"PUT t x", StorageFailed("the disk is full"), b"ERR storage-failed: the disk is full"),
        (b"PUT t x", NotLeader("node 2 leads it"), b"ERR NotLeaderForPartition: node 2 leads it"),
        (b"STATE t", UnknownTopic("there is no topic default/t"), b"ERR unknown topic t"),
        (b"REGISTER t", KeyError("a defect"), b"ERR internal: KeyError"),
    ],
)
def test_one_command_s_failure_is_its_own_err_and_nobody_else_s(
    command: bytes, error: Exception, said: bytes
) -> None:
    async def script(client: Client) -> None:
        word, topic = command.decode().split()[:2]
        client.backend.errors[f"{word} {topic}"] = error
        client.send(b"GET u", command, b"GET u")
        before, failed, after = await client.replies()
        assert (before, after) == (b"EMPTY", b"EMPTY")
        assert failed.startswith(said)

    play(script)


def test_frames_that_are_no_command_are_answered_and_the_rest_is_understood() -> None:
    async def script(client: Client) -> None:
        client.session.feed(LENGTH.pack(0) + encode_frame(b"HELLO") + LENGTH.pack(MAX_FRAME_BYTES + 1))
        for _ in range(8):
            client.session.feed(b"\x01" * (MAX_FRAME_BYTES // 8))
        client.session.feed(b"\x01" + encode_frame(b"METRICS"))
        empty, unknown, oversize, metrics = await client.replies()
        assert empty.startswith(b"ERR invalid frame length: 0 bytes")
        assert unknown.startswith(b"ERR unknown command HELLO")
        assert oversize.startswith(b"ERR invalid frame length: 65537 bytes")
        assert metrics == b"{}"
        assert not client.closed

    play(script)


def test_a_length_that_can_t_be_read_past_is_told_and_the_connection_closed() -> None:
    async def script(client: Client) -> None:
        client.session.feed(encode_frame(b"METRICS") + LENGTH.pack(DRAIN_BYTES + 1) + b"anything")
        metrics, refused = await client.replies()
        assert metrics == b"{}"
        assert refused.startswith(b"ERR invalid frame length")
        assert client.closed
        client.send(b"PUT t late")
        assert await client.replies() == [metrics, refused]

    play(script)


def test_s5_a_record_is_done_only_when_its_whole_reply_has_left() -> None:
    async def script(client: Client) -> None:
        client.backend.records = [b"one"]
        client.taking.clear()
        client.send(b"GET t")
        await asyncio.sleep(1)
        assert client.received and client.backend.settled == []
        client.taking.set()
        await client.session.ended()
        assert client.backend.settled == [("done", 0)]

    play(script)


def test_s5_a_record_whose_client_is_gone_is_given_back() -> None:
    async def script(client: Client) -> None:
        client.backend.records = [b"one"]
        client.gone = ConnectionResetError("reset")
        client.send(b"GET t", b"PUT t x")
        await client.session.ended()
        assert client.backend.settled == [("returned", 0)]
        assert client.closed
        assert client.backend.begun == ["GET t"], "nothing more is done for a client that is gone"

    play(script)


def test_s5_a_record_whose_client_goes_while_its_reply_waits_is_given_back() -> None:
    async def script(client: Client) -> None:
        client.backend.records = [b"one"]
        client.taking.clear()
        client.send(b"GET t")
        await asyncio.sleep(1)
        client.session.lost()
        await client.session.ended()
        assert client.backend.settled == [("returned", 0)]

    play(script)


def test_a_client_that_goes_during_a_get_leaves_nothing_handed_out() -> None:
    async def script(client: Client) -> None:
        client.backend.records = [b"one"]
        client.backend.gate.clear()
        client.send(b"GET t")
        await asyncio.sleep(1)
        client.session.lost()
        await client.session.ended()
        assert (client.backend.settled, bytes(client.received)) == ([], b"")

    play(script)


def test_a_client_that_sends_no_more_gets_its_replies_first() -> None:
    async def script(client: Client) -> None:
        client.backend.gate.clear()
        client.send(b"PUT t one", b"PUT t two", b"GET t")
        client.session.eof()
        await asyncio.sleep(1)
        assert not client.closed
        client.backend.gate.set()
        assert await client.replies() == [b"OK", b"OK", b"OK one"]
        assert client.closed

    play(script)


def test_an_idle_client_that_sends_no_more_is_let_go() -> None:
    async def script(client: Client) -> None:
        client.session.eof()
        await client.session.ended()
        assert client.closed

    play(script)


def test_reading_stops_while_much_is_unanswered_and_goes_on_with_room_for_any_frame() -> None:
    async def script(client: Client) -> None:
        client.backend.gate.clear()
        frame = encode_frame(b"PUT t " + b"x" * 20_000)
        sent = 0
        while not client.session.is_full:
            client.session.feed(frame)
            sent += 1
            await asyncio.sleep(0)
        assert (sent - 1) * len(frame) >= FULL_BYTES
        assert client.told == [True]
        client.backend.gate.set()
        assert await client.replies() == [b"OK"] * sent
        assert client.told == [True, False]
        assert RESUME_BYTES >= MAX_FRAME_BYTES + 4, "a frame that was begun can always be finished"

    play(script)


def test_a_frame_that_comes_byte_by_byte_is_never_held_up() -> None:
    async def script(client: Client) -> None:
        frame = encode_frame(b"PUT t " + b"x" * (MAX_FRAME_BYTES - 6))
        for start in range(0, len(frame), 1000):
            assert not client.session.is_full
            client.session.feed(frame[start : start + 1000])
        assert await client.replies() == [b"OK"]

    play(script)
