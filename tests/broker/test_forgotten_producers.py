"""A5: a seal that drops producers must not let their first frames be stored again.

A first frame says which metadata its sender knew of before it was sent at all; the open segment knows when
producers were last forgotten. Segments of 500 records, and a crowd of one-shot producers that fills three.
"""

from __future__ import annotations

import asyncio

import pytest

import ister
from ister.client.sequencer import Identity, Sequencer
from ister.columns import Codec
from ister.errors import IsterError, UnknownProducer
from ister.testing.cluster import World, run_story
from ister.wal.producers import ProducerTable

CROWD = 1600
SMALL = 500


def sequencer(log: ister.Log, identity: Identity | None = None) -> Sequencer:
    return Sequencer(
        "t",
        log.requests.routes,
        log.requests.clock,
        window=8,
        idempotent=True,
        request_timeout_s=60,
        retry_deadline_s=60,
        identity=identity,
    )


async def put(log: ister.Log, value: bytes, identity: Identity | None = None) -> int:
    """One record of a producer that sends no other."""
    one = sequencer(log, identity)
    try:
        return await one.put([value], None, None, None, Codec.NONE).wait(0)
    finally:
        one.close(IsterError("it has sent its record"))


async def crowd(log: ister.Log, count: int = CROWD) -> None:
    for _ in range(count // 50):
        await asyncio.gather(*(put(log, b"crowd") for _ in range(50)))


async def copies_of(log: ister.Log, value: bytes) -> int:
    return [record.value async for record in log.read("t")].count(value)


def forgot_at(world: World) -> int:
    return world.leader_of("t").topic("t").state.open_segment.forgot_at


def test_a5_a_first_batch_whose_producer_was_pushed_out_is_not_stored_again() -> None:
    """The answer is lost; a seal drops the producer; then the client's own retry comes."""

    async def story(world: World) -> None:
        async with world.connect(1) as others, world.connect(1, retry_deadline_s=600) as log:
            await others.create_topic("t")
            node = world.nodes[1]
            world.network.partition(node.host, "client-2", one_way=True)
            append = asyncio.ensure_future(log.append("t", [b"once"]))
            while await others.offsets_at("t", "latest") < 1:  # noqa: ASYNC110 (another client sees it)
                await asyncio.sleep(0.01)
            await crowd(others)
            assert forgot_at(world), "a seal has dropped a producer"
            world.network.reset(node.host, "client-2")
            world.network.heal()
            with pytest.raises(UnknownProducer, match="may be stored"):
                await append
            assert await copies_of(others, b"once") == 1
            assert (await log.append("t", [b"twice"])).count == 1, "the log goes on as another producer"

    run_story(story, nodes=1, segment_records=SMALL)


def test_a5_a_first_frame_that_was_never_sent_before_is_taken_however_old_its_client_is() -> None:
    """Through a node that leads, and through one that passes it on."""

    async def story(world: World) -> None:
        async with world.connect(1) as others, world.connect(1) as one, world.connect(2) as two:
            await others.create_topic("t")
            await crowd(others)
            world_index = forgot_at(world)
            for log in (one, two):
                assert log.requests.routes.told_index < world_index, (
                    "it was told of nothing since it connected"
                )
                async with log.producer("t") as producer:
                    receipts = [await producer.submit(b"late") for _ in range(5)]
                    offsets = [await receipt for receipt in receipts]
                    assert offsets == list(range(offsets[0], offsets[0] + 5))
                    offsets = list(await producer.send_many([b"late"] * 5))
                    assert offsets == list(range(offsets[0], offsets[0] + 5))
            assert await copies_of(others, b"late") == 20

    run_story(story, segment_records=SMALL, replicas=3)


def test_a5_a_stated_index_is_not_replaced_by_a_newer_one() -> None:
    """Somebody else may have sent it: only whoever chose the identity knows."""

    async def story(world: World) -> None:
        async with world.connect(1, 2) as log:
            await log.create_topic("t")
            told = log.requests.routes.told_index
            assert told > 0
            assert await put(log, b"mine", Identity(77, 0, told)) == 0
            assert await put(log, b"mine", Identity(77, 0, told)) == 0, "known: a repeat"
            await crowd(log)
            async with world.connect(2) as other:
                with pytest.raises(UnknownProducer):
                    await put(other, b"mine", Identity(77, 0, told))
                assert await put(other, b"next", Identity(78, 0, other.requests.routes.told_index)) > CROWD
            assert await copies_of(log, b"mine") == 1

    run_story(story, segment_records=SMALL)


def test_a5_what_was_forgotten_is_known_after_a_restart_and_a_failover() -> None:
    """The mark is in the metadata: no process has to remember it."""

    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t")
            told = log.requests.routes.told_index
            await put(log, b"mine", Identity(77, 0, told))
            await crowd(log)
            leader = world.leader_of("t")
            leader.kill()
            await asyncio.sleep(5)
            await leader.start()
            await world.settle()
            with pytest.raises(UnknownProducer):
                await put(log, b"mine", Identity(77, 0, told))
            assert await copies_of(log, b"mine") == 1

    run_story(story, segment_records=SMALL, replicas=3)


def test_a_log_that_does_not_know_when_it_forgot_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug of before, put in again."""
    never = property(lambda table: 0, lambda table, index: None)
    monkeypatch.setattr(ProducerTable, "forgot_at", never, raising=False)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a5_a_first_batch_whose_producer_was_pushed_out_is_not_stored_again()
