"""The producer: batches, receipts, back-pressure, and the identity that makes retries safe (A5)."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker, Fault
from test_append import once, run

import ister
from ister.errors import (
    BadRequest,
    ConfigError,
    ConnectionFailed,
    MessageTooLarge,
    Overloaded,
    UnknownProducer,
)
from ister.protocol.messages import Kind

TOPIC = "default/orders"


def test_records_sent_together_share_a_frame_and_get_their_own_offsets() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders", linger_ms=1) as producer:
            offsets = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(100)))
        assert offsets == list(range(100))
        assert len(broker.topics[TOPIC].frames) == 1

    run(body)


@pytest.mark.parametrize("limit", [{"batch_records": 10}, {"batch_bytes": 10 * (100 + 16)}])
def test_a_full_batch_does_not_linger(limit: dict[str, int]) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders", linger_ms=3_600_000, **limit) as producer:  # type: ignore[arg-type]
            receipts = [await producer.submit(b"x" * 100) for _ in range(30)]
            assert [await receipt for receipt in receipts] == list(range(30))
        assert [header.count for header in broker.topics[TOPIC].headers] == [10, 10, 10]

    run(body)


def test_without_linger_what_comes_while_the_window_is_full_gathers() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.holds_answers = True
        async with log.producer("orders", linger_ms=0, max_in_flight=1) as producer:
            first = asyncio.ensure_future(producer.send(b"first"))
            await broker.until_received(Kind.APPEND)
            receipts = []
            for number in range(50):
                receipts.append(await producer.submit(b"%d" % number))
                await asyncio.sleep(0)  # time to send it, if the window were not full
            broker.release_answers()
            assert [await receipt for receipt in receipts] == list(range(1, 51))
            assert await first == 0
        assert [header.count for header in broker.topics[TOPIC].headers] == [1, 50]

    run(body)


def test_keys_headers_and_event_times_arrive_with_their_records() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders") as producer:
            await producer.submit(b"a")
            await producer.submit(b"b", key=b"k")
            await producer.submit(b"c", headers=[("h", b"1")])
            await producer.submit(b"d", timestamp_us=77)
            await producer.submit(None, key=b"gone")
        found = [record async for record in log.read("orders")]
        assert [record.value for record in found] == [b"a", b"b", b"c", b"d", None]
        assert [record.key for record in found] == [None, b"k", None, None, b"gone"]
        assert [list(record.headers) for record in found] == [[], [], [("h", b"1")], [], []]
        assert found[3].timestamp_us == 77
        assert found[4].timestamp_us > 1000  # no event time was given: the time of the append

    run(body)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_many_records_are_sent_in_batches_and_come_back_the_same(compression: str) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        wanted = [b"%d" % number * 10 for number in range(1000)]
        async with log.producer("orders", batch_records=300, compression=compression) as producer:
            await producer.submit(b"before")
            assert await producer.send_many(wanted) == range(1, 1001)
        assert [header.count for header in broker.topics[TOPIC].headers] == [1, 300, 300, 300, 100]
        assert [record.value async for record in log.read("orders")] == [b"before", *wanted]

    run(body)


def test_offsets_are_a_list_where_another_writer_came_in_between() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders", batch_records=1, max_in_flight=1) as one:
            many = asyncio.ensure_future(one.send_many([b"a", b"b"]))
            await asyncio.sleep(0)
            await log.append("orders", [b"between"])
            assert list(await many) == [0, 2]

    run(body)


def test_a_full_buffer_holds_the_producer_back_until_there_is_room() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = lambda header: Fault.SILENCE
        async with log.producer("orders", batch_bytes=1000, buffer_bytes=4000) as producer:
            taken = 0

            async def fill() -> None:
                nonlocal taken
                for _ in range(20):
                    await producer.submit(b"x" * 984)
                    taken += 1

            filling = asyncio.ensure_future(fill())
            await broker.until_received(Kind.APPEND, 4)
            assert taken == 4
            broker.on_append = lambda header: None
            broker.break_connections()
            await filling
        assert len(broker.topics[TOPIC].values()) == 20

    run(body)


def test_an_error_that_nobody_waited_for_is_raised_by_the_flush() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.max_frame_bytes = 1000
        async with log.producer("orders", linger_ms=0) as producer:
            receipt = await producer.submit(b"x" * 5000)
            await broker.until_received(Kind.APPEND)
            await log.list_topics()  # its answer comes behind the refusal
            with pytest.raises(MessageTooLarge):
                await producer.flush()
            await producer.flush()  # said once
            with pytest.raises(MessageTooLarge):
                await receipt
            assert await producer.send(b"small") == 0

    run(body)


def test_a_record_too_large_for_the_log_takes_no_other_along() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.max_frame_bytes = 3000
        async with log.producer("orders", batch_bytes=2000) as producer:
            sends = [producer.send(value) for value in (b"a", b"b" * 5000, b"c")]
            results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["int", "MessageTooLarge", "int"]
        assert broker.topics[TOPIC].values() == [b"a", b"c"]

    run(body)


def test_a_producer_that_the_log_forgot_says_so_and_takes_no_new_identity() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders", linger_ms=0) as producer:
            await producer.send(b"a")
            broker.topics[TOPIC].producers.clear()
            for _ in range(2):
                with pytest.raises(UnknownProducer):
                    await producer.send(b"b")
        assert broker.topics[TOPIC].values() == [b"a"]

    run(body)


def test_without_idempotence_a_lost_answer_is_a_second_copy() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = once(Fault.DROP_AFTER)
        async with log.producer("orders", idempotent=False) as producer:
            await producer.send(b"a")
        assert broker.topics[TOPIC].values() == [b"a", b"a"]
        assert broker.topics[TOPIC].producers == {}

    run(body)


@pytest.mark.parametrize("refused", [0, 2])
def test_an_out_of_sequence_answer_is_put_right_by_resending_from_the_oldest(refused: int) -> None:
    """Where the very first frame was refused, the log says of the next that it does not know the producer."""

    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = once(Overloaded("busy"), at=refused)
        async with log.producer("orders", linger_ms=0, batch_records=1) as producer:
            receipts = [await producer.submit(b"%d" % number) for number in range(20)]
            assert [await receipt for receipt in receipts] == list(range(20))
        assert broker.topics[TOPIC].values() == [b"%d" % number for number in range(20)]
        assert len(broker.topics[TOPIC].producers) == 1

    run(body)


def test_a_cancelled_send_does_not_cancel_its_neighbours_in_the_batch() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        async with log.producer("orders", linger_ms=10) as producer:
            first = asyncio.ensure_future(producer.send(b"a"))
            second = asyncio.ensure_future(producer.send(b"b"))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == 1

    run(body)


def test_leaving_by_an_exception_gives_up_what_is_not_acknowledged() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        with pytest.raises(ZeroDivisionError):
            async with log.producer("orders", linger_ms=3_600_000) as producer:
                receipt = await producer.submit(b"a")
                raise ZeroDivisionError
        with pytest.raises(ConnectionFailed, match="left by an exception"):
            await receipt
        with pytest.raises(ConnectionFailed, match="is closed"):
            await producer.submit(b"b")

    run(body)


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        for wrong in (
            {"max_in_flight": 9},
            {"max_in_flight": 0},
            {"compression": "gzip"},
            {"batch_bytes": 0},
            {"buffer_bytes": 10},
        ):
            with pytest.raises(ConfigError):
                log.producer("orders", **wrong)  # type: ignore[arg-type]
        async with log.producer("orders") as producer:
            for send in (producer.send("text"), producer.send(b"a", key="text")):  # type: ignore[arg-type]
                with pytest.raises(BadRequest):
                    await send

    run(body)
