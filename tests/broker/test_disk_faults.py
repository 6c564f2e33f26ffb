"""A disk that is full, fails, or lies, under a broker that serves: never acknowledged, never silent.

Holes D5, W14 and W15 of the ancestors: write errors were warned about after the acknowledgement, or not
noticed at all.
"""

from __future__ import annotations

import asyncio
import errno
import traceback

import pytest
from broker_helpers import SimNode, append_request, frame_of, refusal, simulated

from ister.broker.topic.led_segment import FAULT_RETRY_SECONDS
from ister.errors import IsterError, SegmentFenced, StorageFailed
from ister.protocol.codec import decode_appended
from ister.protocol.messages import Append, Fetch, Kind

LOG = ".log"


async def append_until_taken(node: SimNode, topic: str, frame: bytes) -> int:
    """What a client does with a retriable error."""
    client = await node.connect()
    for _ in range(100):
        try:
            return (await client.append(topic, frame)).base_offset
        except IsterError as error:
            assert error.retriable, error
            await asyncio.sleep(0.3)
    raise AssertionError("never taken")


def test_a_full_disk_refuses_appends_serves_reads_and_recovers_when_space_is_freed() -> None:
    """W15, D5."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for number in range(5):
            await client.append("t", frame_of(b"%d" % number, producer=7, sequence=number))
        full = node.disk.capacity
        node.disk.capacity -= node.disk.free_bytes()
        refused = frame_of(bytes(300_000), producer=7, sequence=5)
        error = await refusal(client.append("t", refused), StorageFailed)
        assert "is full" in error.message and "default/t:1" in error.message and "Free space" in error.hint
        assert await client.values("t") == [b"%d" % number for number in range(5)]
        await asyncio.sleep(3)
        await refusal(client.append("t", refused), StorageFailed)
        assert await client.values("t") == [b"%d" % number for number in range(5)]
        node.disk.capacity = full
        assert await append_until_taken(node, "t", refused) == 5
        assert (await client.append("t", refused)).base_offset == 5, "a retry is recognised (A5)"
        assert await client.values("t") == [*(b"%d" % number for number in range(5)), bytes(300_000)]
        assert node.fatal == []

    simulated(scenario)


def test_a_full_disk_keeps_small_topics_and_metadata_alive() -> None:
    """P5: the metadata's reserve lets the node go on."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        full = node.disk.capacity
        node.disk.capacity -= node.disk.free_bytes()
        await refusal(client.append("t", frame_of(bytes(300_000))), StorageFailed)
        assert (await client.create("u")).end_offset == 0
        assert node.fatal == []
        node.disk.capacity = full
        assert await append_until_taken(node, "t", frame_of(b"y")) == 1

    simulated(scenario)


@pytest.mark.parametrize("operation", ["sync", "write"])
@pytest.mark.parametrize("seed", range(5))
def test_after_a_failed_flush_the_next_segment_takes_over_at_the_last_good_end(
    operation: str, seed: int
) -> None:
    """P1: no acknowledgement, the segment ends where it was last good, and offsets go on from there."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        for number in range(4):
            await client.append("t", frame_of(b"%d" % number, producer=9, sequence=number))
        node.disk.faults.add(operation, prefix="segments/", suffix=LOG, count=1, error=errno.EIO)
        refused = frame_of(b"again", producer=9, sequence=4)
        error = await refusal(client.append("t", refused), SegmentFenced)
        assert f"{operation} of default/t:1 failed at offset 4" in error.message
        assert await append_until_taken(node, "t", refused) == 4
        assert await append_until_taken(node, "t", refused) == 4
        assert await append_until_taken(node, "t", frame_of(b"next", producer=9, sequence=5)) == 5
        description = await client.describe("t")
        assert [(part.base_offset, part.end_offset, part.sealed) for part in description.segments] == [
            (0, 4, True),
            (4, 6, False),
        ]
        assert await client.values("t") == [b"0", b"1", b"2", b"3", b"again", b"next"]

    simulated(scenario, seed=seed)


def test_pipelined_appends_around_a_failed_sync_are_each_answered_once_and_truly() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        node.disk.faults.add("sync", prefix="segments/", suffix=LOG, count=1, after=6, error=errno.EIO)
        node.disk.faults.add("sync_directory", prefix="segments/", count=1, after=1, error=errno.EIO)
        for number in range(100):
            client.send(append_request(number, "t", frame_of(b"%d" % number)))
            await asyncio.sleep(0.0007)
        answers = await client.answers(100)
        taken = {
            decode_appended(answer.header).base_offset: number
            for number, answer in answers.items()
            if answer.kind == 0
        }
        refused = {answer.kind for answer in answers.values()} - {0}
        # The second fault meets the making of the next segment.
        assert refused == {SegmentFenced.wire, StorageFailed.wire}
        assert sorted(taken) == list(range(len(taken)))
        await asyncio.sleep(FAULT_RETRY_SECONDS)  # what could not be opened is left alone for so long
        assert await client.values("t") == [b"%d" % taken[offset] for offset in sorted(taken)]

    simulated(scenario)


def test_what_a_failed_sync_refused_does_not_come_back_with_a_restart() -> None:
    """P1, P2: a record that was called refused never appears."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"kept"))
        node.disk.faults.add("sync", prefix="segments/", suffix=LOG, count=1)
        await refusal(client.append("t", frame_of(b"refused")), SegmentFenced)
        await append_until_taken(node, "t", frame_of(b"after"))
        await node.stop()
        again = await node.launch_again()
        assert await (await again.connect()).values("t") == [b"kept", b"after"]
        await again.stop()

    simulated(scenario)


def test_a_failed_sync_of_the_metadata_journal_stops_the_node_with_a_clear_error() -> None:
    """P1: a failed fsync of the metadata's log stops the node."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        node.disk.faults.add("sync", prefix="raft/", suffix=LOG)
        await refusal(client.create("u"), StorageFailed)
        (fatal,) = node.fatal
        assert "metadata journal cannot be written" in fatal.message
        assert "The node stops" in fatal.hint
        assert node.broker.fatal is fatal

    simulated(scenario)


def test_a_failing_read_is_an_error_that_names_the_offset_and_not_an_end() -> None:
    """W7: on the ancestor, a failing read looked like an empty topic."""

    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x"))
        rule = node.disk.faults.add("read", prefix="segments/", suffix=LOG)
        answer = await client.ask(Kind.FETCH, Fetch("t", 0, 100))
        assert answer.kind != 0 and "default/t:1 cannot be read at offset 0" in answer.error.message
        node.disk.faults.remove(rule)
        assert await client.values("t") == [b"x"]

    simulated(scenario, hot_tail_bytes=0)


def test_a_record_that_was_called_refused_does_not_appear_after_a_restart() -> None:
    """The disk is full, the cut fails, the appends are refused all the same; a restart finds one."""

    async def scenario(node: SimNode) -> tuple[list[str], list[bytes | None]]:
        client = await node.connect()
        await client.append("t", frame_of(b"kept"))
        node.disk.faults.add("truncate", prefix="segments/", suffix=".log")
        node.disk.capacity = node.disk._used  # 64 KiB are reserved for the log: the first of the two fits
        client.send(
            append_request(1, "t", frame_of(b"refused")), append_request(2, "t", frame_of(b"x" * 70_000))
        )
        refusals = [str(answer.error) for answer in (await client.answers(2)).values()]
        node.disk.faults.clear()
        node.disk.capacity = 1 << 40
        node.disk.kill()
        node.world.kill("broker")
        again = await node.launch_again()
        found = await (await again.connect()).values("t")
        await again.stop()
        node._stopped = True
        return refusals, found

    refusals, found = simulated(scenario)
    assert found == [b"kept"] or all("may" in refusal for refusal in refusals), (refusals, found)


def test_the_notes_of_a_topic_on_a_full_disk_are_bounded() -> None:
    async def scenario(node: SimNode) -> int:
        client = await node.connect()
        await client.append("t", frame_of(b"kept"))
        node.disk.capacity = node.disk._used
        for _ in range(300):
            answer = await client.ask(Kind.APPEND, Append("t"), frame_of(b"x" * 100_000))
            assert answer.kind
        return len(node.broker.topics["default/t"].led.notes)

    assert simulated(scenario) <= 100


def test_a_fault_that_is_told_a_thousand_times_holds_on_to_no_request() -> None:
    """Raising one exception again and again chains every frame that it passed through, with its locals."""

    async def scenario(node: SimNode) -> int:
        client = await node.connect()
        await client.append("t", frame_of(b"one"))
        node.disk.faults.add("write", prefix="segments/", error=errno.ENOSPC)
        node.disk.faults.add("open", prefix="segments/", error=errno.EIO)
        await client.ask(Kind.APPEND, Append("t"), frame_of(b"two"))
        topic = node.broker.topics["default/t"]
        assert topic.led.fault is not None
        client.send(*(append_request(n, "t", frame_of(b"x" * 1000)) for n in range(1000)))
        await client.answers(1000)
        assert topic.led.fault is not None
        return sum(1 for _ in traceback.walk_tb(topic.led.fault.__traceback__))

    assert simulated(scenario) < 100


def test_a_broker_starts_on_a_full_disk_so_that_it_can_trim() -> None:
    async def scenario(node: SimNode) -> None:
        client = await node.connect()
        await client.append("t", frame_of(b"x" * 5000))
        await node.stop()
        node.disk.capacity = node.disk._used
        again = await node.launch_again()
        await again.stop()

    simulated(scenario)
