"""The synchronous face: the same names, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_broker import FakeBroker, Fault

from ister import sync
from ister.errors import BadRequest, ConnectionFailed, LogClosed, MessageTooLarge, UnknownTopic
from ister.io.network import TcpNetwork

TOPIC = "default/orders"


@contextmanager
def serving() -> Iterator[tuple[FakeBroker, str]]:
    """A fake broker on a loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[FakeBroker, str]:
        broker = FakeBroker(TcpNetwork())
        return broker, await broker.start()

    broker, address = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield broker, address
    finally:
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "ister-sync"]


def test_what_is_appended_is_read_back_as_records_frames_and_batches() -> None:
    with serving() as (_, address), sync.connect(address) as log:
        wanted = [b"%d" % number for number in range(500)]
        assert log.append("orders", wanted[:300]).offsets == range(300)
        log.append("orders", wanted[300:])
        assert [record.value for record in log.read("orders", start=250)] == wanted[250:]
        assert [frame.header.count for frame in log.read("orders").frames()] == [300, 200]
        batches = list(log.read("orders", end=310).batches(columns=["value"]))
        assert [row for batch in batches for row in batch.column("value").to_pylist()] == wanted[:310]
        assert log.offsets_at("orders", "latest") == 500
        assert [topic.topic for topic in log.list_topics()] == [TOPIC]
        log.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            log.describe_topic("orders")
    assert threads_of_ours() == []


def test_a_producer_takes_records_from_many_threads_each_once_and_in_each_ones_order() -> None:
    with serving() as (broker, address), sync.connect(address) as log:
        with log.producer("orders") as producer:
            assert producer.send(b"first") == 0

            def work(name: int) -> None:
                for number in range(2000):
                    producer.submit(b"%d:%d" % (name, number))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
            assert producer.send_many([b"x", b"y"]) == range(6001, 6003)
        found = [value for value in broker.topics[TOPIC].values() if value and b":" in value]
        for name in range(3):
            own = [value for value in found if value.startswith(b"%d:" % name)]
            assert own == [b"%d:%d" % (name, number) for number in range(2000)]


def test_receipts_tell_offsets_and_errors() -> None:
    with serving() as (broker, address), sync.connect(address) as log:
        broker.max_frame_bytes = 1000
        with log.producer("orders", linger_ms=0, batch_bytes=900) as producer:
            good, bad = producer.submit(b"a"), producer.submit(b"b" * 2000)
            assert good.result() == 0
            with pytest.raises(MessageTooLarge):
                bad.result()
            with pytest.raises(BadRequest):
                producer.submit("text")  # type: ignore[arg-type]


def test_a_wait_that_timed_out_leaves_the_record_on_its_way() -> None:
    with serving() as (broker, address), sync.connect(address) as log:
        broker.delay_s = 0.2
        with log.producer("orders", linger_ms=0) as producer:
            receipt = producer.submit(b"a")
            with pytest.raises(TimeoutError):
                receipt.result(timeout_s=0.01)
            assert receipt.result() == 0


def test_an_iteration_that_is_left_early_leaves_nothing_behind() -> None:
    with serving() as (_, address):
        with sync.connect(address) as log:
            log.append("orders", [b"a", b"b"])
            for record in log.read("orders", follow=True):
                assert record.value == b"a"
                break
        assert threads_of_ours() == []


def test_a_closed_log_says_so_and_a_failed_connect_leaves_no_thread() -> None:
    with serving() as (_, address):
        with sync.connect(address) as log:
            log.append("orders", [b"a"])
        with pytest.raises(ConnectionFailed, match="closed"):
            log.append("orders", [b"b"])
        log.close()
    with pytest.raises(ConnectionFailed), sync.connect(address):
        pass
    assert threads_of_ours() == []


def test_an_interrupted_wait_is_cancelled_and_the_log_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives in the waiting thread as an exception out of the wait."""
    import concurrent.futures

    def interrupted(self: object, timeout: float | None = None) -> object:
        raise KeyboardInterrupt

    with serving() as (broker, address), sync.connect(address) as log:
        broker.on_append = lambda header: Fault.SILENCE
        with monkeypatch.context() as patched:
            patched.setattr(concurrent.futures.Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append("orders", [b"a"])
        assert log.list_topics() == []


# Without a thread.


def test_a_log_without_a_thread_reads_and_asks_as_the_other_one_does() -> None:
    with serving() as (_, address):
        with sync.connect(address) as log:
            for base in range(0, 500, 5):
                log.append(TOPIC, [b"%d" % number for number in range(base, base + 5)])
        threads = threading.active_count()
        with sync.connect_in_turns(address) as log:
            assert log.offsets_at(TOPIC, "latest") == 500
            numbers = [int(record.value or b"") for record in log.read(TOPIC, max_bytes=500)]
            assert threading.active_count() == threads
        assert numbers == list(range(500))


def test_a_log_without_a_thread_can_be_left_in_the_middle_of_reading() -> None:
    with serving() as (_, address), sync.connect_in_turns(address) as log:
        for _ in range(20):
            log.append(TOPIC, [b"x"] * 5)
        records = iter(log.read(TOPIC, max_bytes=100))
        assert next(records).offset == 0
        log.close()
        with pytest.raises(LogClosed):
            log.offsets_at(TOPIC, "latest")


def test_a_log_without_a_thread_refuses_a_producer_that_would_gather_for_ever() -> None:
    with (
        serving() as (_, address),
        sync.connect_in_turns(address) as log,
        pytest.raises(BadRequest, match="in turns"),
    ):
        log.producer(TOPIC)
