"""`Log.append`: one frame, all or nothing, and a retry is never a second copy (A5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_broker import AppendFault, FakeBroker, Fault

import ister
from ister.errors import (
    BadRequest,
    ConnectionFailed,
    IsterError,
    MessageTooLarge,
    NotLeader,
    Overloaded,
    RequestTimeout,
    StorageFailed,
    UnknownProducer,
)
from ister.frame import FrameHeader
from ister.io.network import TcpNetwork
from ister.protocol.messages import Kind

Body = Callable[[FakeBroker, ister.Log], Awaitable[None]]


def run(body: Body, **options: float) -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        async with ister.connect(await broker.start(), **options) as log:  # type: ignore[arg-type]
            await body(broker, log)
        await broker.stop()

    asyncio.run(main())


def once(fault: AppendFault, at: int = 0) -> Callable[[FrameHeader], AppendFault]:
    """The fault for the append number `at` that arrives, and good behaviour for all others."""
    seen = iter(range(1 << 30))
    return lambda header: fault if next(seen) == at else None


def test_an_append_says_where_its_records_are() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await log.append("orders", [b"a", b"b"])
        appended = await log.append("orders", [b"c", None, b"e"], keys=[b"k", None, b""])
        assert (appended.base_offset, appended.count, appended.offsets) == (2, 3, range(2, 5))
        assert broker.topics["default/orders"].values() == [b"a", b"b", b"c", None, b"e"]

    run(body)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.DROP_BEFORE,
        Fault.DROP_AFTER,
        NotLeader("moved"),
        Overloaded("busy"),
        StorageFailed("no space"),
    ],
    ids=str,
)
def test_an_append_that_met_trouble_is_there_once(fault: AppendFault) -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = once(fault, at=1)
        for number in range(4):
            assert (await log.append("orders", [b"%d" % number])).base_offset == number
        assert broker.topics["default/orders"].values() == [b"0", b"1", b"2", b"3"]

    run(body)


def test_concurrent_appends_keep_their_order_through_a_lost_answer() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = once(Fault.DROP_AFTER, at=3)
        wanted = [b"%d" % number for number in range(40)]
        appended = await asyncio.gather(*(log.append("orders", [value]) for value in wanted))
        assert [one.base_offset for one in appended] == list(range(40))
        assert broker.topics["default/orders"].values() == wanted

    run(body)


def test_at_most_eight_frames_are_unacknowledged() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.delay_s = 0.005
        await asyncio.gather(*(log.append("orders", [b"x"]) for _ in range(50)))
        assert broker.most_in_flight == 8  # what the log remembers of a producer (A5)

    run(body)


def test_a_frame_refused_for_good_does_not_stop_those_behind_it() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.max_frame_bytes = 1000
        values = [b"a", b"b" * 2000, b"c", b"d"]
        results = await asyncio.gather(
            *(log.append("orders", [value]) for value in values), return_exceptions=True
        )
        assert isinstance(results[1], MessageTooLarge)
        assert broker.topics["default/orders"].values() == [b"a", b"c", b"d"]
        assert len(broker.topics["default/orders"].producers) == 2  # its sequence was never used
        await log.append("orders", [b"e"])
        assert broker.topics["default/orders"].values() == [b"a", b"c", b"d", b"e"]

    run(body)


def test_a_first_frame_refused_for_good_does_not_make_the_second_an_unknown_producer() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.max_frame_bytes = 1000
        results = await asyncio.gather(
            *(log.append("orders", [value]) for value in (b"a" * 2000, b"b", b"c")), return_exceptions=True
        )
        assert [type(result).__name__ for result in results] == ["MessageTooLarge", "Appended", "Appended"]
        assert broker.topics["default/orders"].values() == [b"b", b"c"]

    run(body)


def test_frames_in_doubt_before_a_refused_one_are_settled_under_their_own_identity() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.max_frame_bytes = 1000
        refusals = iter([Overloaded("busy"), None, None])
        broker.on_append = lambda header: next(refusals, None)
        results = await asyncio.gather(
            *(log.append("orders", [value]) for value in (b"a", b"b" * 2000, b"c")), return_exceptions=True
        )
        assert [type(result).__name__ for result in results] == ["Appended", "MessageTooLarge", "Appended"]
        assert broker.topics["default/orders"].values() == [b"a", b"c"]

    run(body)


def test_a_frame_that_is_refused_again_and_again_is_not_left_behind_by_the_window() -> None:
    """The first frame is in the log, but only refusals come back for it, while those behind it are taken.
    Were the window to move on, the log would forget the frame before it could recognise it (A5)."""

    async def body(broker: FakeBroker, log: ister.Log) -> None:
        faults = iter([Fault.DROP_AFTER, *[Overloaded("busy")] * 5])
        broker.on_append = lambda header: next(faults, None) if header.sequence == 0 else None
        wanted = [b"%d" % number for number in range(60)]
        appended = await asyncio.gather(*(log.append("orders", [value]) for value in wanted))
        assert [one.base_offset for one in appended] == list(range(60))
        assert broker.topics["default/orders"].values() == wanted

    run(body)


def test_a_log_that_forgot_a_silent_producer_is_appended_to_under_a_new_identity() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await log.append("orders", [b"a"])
        broker.topics["default/orders"].producers.clear()
        assert (await log.append("orders", [b"b"])).base_offset == 1

    run(body)


def test_a_forgotten_producer_whose_frame_is_in_doubt_is_an_error() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        await log.append("orders", [b"a"])

        def forget_after_losing_the_answer(header: FrameHeader) -> AppendFault:
            if not broker.topics["default/orders"].producers:
                return None
            asyncio.get_running_loop().call_soon(broker.topics["default/orders"].producers.clear)
            return Fault.DROP_AFTER

        broker.on_append = forget_after_losing_the_answer
        with pytest.raises(UnknownProducer):
            await log.append("orders", [b"b"])
        assert broker.topics["default/orders"].values() == [b"a", b"b"]  # not doubled

    run(body)


def test_retries_end_and_say_what_was_tried() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = lambda header: Overloaded("too busy")
        with pytest.raises(Overloaded, match=r"appending 1 record .* \d+ attempts in .* too busy"):
            await log.append("orders", [b"a"])
        broker.on_append = lambda header: None
        assert (await log.append("orders", [b"b"])).base_offset == 0

    run(body, retry_deadline_s=0.2)


def test_a_silent_broker_is_given_up_in_the_end() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = lambda header: Fault.SILENCE
        with pytest.raises(RequestTimeout, match="did not answer"):
            await log.append("orders", [b"a"])

    run(body, request_timeout_s=0.05, retry_deadline_s=0.2)


def test_frames_in_doubt_behind_one_given_up_in_doubt_fail_with_it_and_are_never_doubled() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.on_append = lambda header: Fault.DROP_AFTER if header.sequence == 0 else Fault.SILENCE
        results = await asyncio.gather(
            *(log.append("orders", [b"%d" % number]) for number in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, IsterError) for result in results)
        broker.on_append = lambda header: None
        await log.append("orders", [b"later"])
        values = broker.topics["default/orders"].values()
        assert len(values) == len(set(values))
        assert values[-1] == b"later"

    run(body, request_timeout_s=0.05, retry_deadline_s=0.2)


def test_what_is_no_record_is_refused_before_it_uses_a_sequence() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        for wrong in ([], ["text"]):
            with pytest.raises(BadRequest):
                await log.append("orders", wrong)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="1 keys for 2 values"):
            await log.append("orders", [b"a", b"b"], keys=[b"k"])
        await log.append("orders", [b"a"])
        assert len(broker.topics["default/orders"].producers) == 1

    run(body)


def test_a_cancelled_append_takes_no_other_along() -> None:
    async def body(broker: FakeBroker, log: ister.Log) -> None:
        broker.delay_s = 0.02
        first = asyncio.ensure_future(log.append("orders", [b"a"]))
        second = asyncio.ensure_future(log.append("orders", [b"b"]))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).base_offset == 1

    run(body)


def test_closing_the_log_fails_what_is_open() -> None:
    async def main() -> None:
        broker = FakeBroker(TcpNetwork())
        broker.on_append = lambda header: Fault.SILENCE
        async with ister.connect(await broker.start()) as log:
            waiting = asyncio.ensure_future(log.append("orders", [b"a"]))
            await broker.until_received(Kind.APPEND)
        with pytest.raises(ConnectionFailed, match="closed"):
            await waiting
        await broker.stop()

    asyncio.run(main())
