"""Appends on a condition, trims on request, and the namespaces that Ister keeps for itself."""

from __future__ import annotations

import asyncio

import pytest

from ister.client.sequencer import Identity, Sequencer
from ister.errors import DuplicateSequence, IsterError, MessageTooLarge, UnexpectedOffset, UnknownTopic
from ister.frame import Frame, decode, encode
from ister.testing.cluster import World, read_all, run_story


def test_of_several_writers_that_expect_one_offset_one_wins_through_any_node() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as one, world.connect(2) as two, world.connect(3) as three:
            logs = one, two, three
            for turn in range(6):
                asked = [
                    log.append("t", [b"%d-%d" % (turn, who)], expected_offset=turn)
                    for who, log in enumerate(logs)
                ]
                outcomes = await asyncio.gather(*asked, return_exceptions=True)
                refused = [one for one in outcomes if isinstance(one, BaseException)]
                assert [type(error) for error in refused] == [UnexpectedOffset] * 2, outcomes
                assert await one.offsets_at("t", "latest") == turn + 1
            assert len(await read_all(two, "t")) == 6

    run_story(story, segment_records=4)


def test_what_is_refused_leaves_the_writer_in_order() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.append("t", [b"0"], expected_offset=0)
            works = [
                log.append("t", [b"1"]),
                log.append("t", [b"never"], expected_offset=1),
                log.append("t", [b"2"]),
                log.append("t", [b"3"], expected_offset=3),
            ]
            outcomes = await asyncio.gather(*works, return_exceptions=True)
            assert [isinstance(one, UnexpectedOffset) for one in outcomes] == [False, True, False, False]
            assert await read_all(log, "t") == [b"0", b"1", b"2", b"3"]

    run_story(story)


@pytest.mark.parametrize("seed", range(10))
def test_a_condition_holds_through_failovers(seed: int) -> None:
    """Each number is appended at its own offset or not at all, whatever is cut, held or sent on (H2)."""

    async def story(world: World) -> None:
        async def write(through: int) -> None:
            async with world.connect(through, 1 + through % 3, retry_deadline_s=30) as log:
                while True:
                    end = await log.offsets_at("t", "latest")
                    if end >= 60:
                        return
                    try:
                        await log.append("t", [b"%d" % end], expected_offset=end)
                    except UnexpectedOffset:
                        continue
                    except IsterError as error:
                        assert error.retriable, error

        async with world.connect(1, 2, 3) as log:
            await log.create_topic("t")
        writers = asyncio.gather(*(write(through) for through in (1, 2, 3)))
        for _ in range(3):
            await asyncio.sleep(0.15)
            leader = world.leader_of("t")
            leader.kill()
            await asyncio.sleep(2)
            await leader.start()
        await writers
        async with world.connect(1, 2, 3) as log:
            assert await read_all(log, "t") == [b"%d" % number for number in range(60)]

    run_story(story, seed=seed, segment_records=25, replicas=3)


def test_a_trim_drops_whole_sealed_segments_only() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log, world.connect(2) as other:
            for number in range(35):
                await log.append("t", [b"%d" % number])
            there = await log.describe_topic("t")
            bases = [segment.base_offset for segment in there.segments]
            assert await other.trim_topic("t", 9) == 0, "the first segment reaches beyond"
            assert await other.trim_topic("t", bases[2] + 1, uid=there.uid) == bases[2]
            left = [record.value async for record in log.read("t")]
            assert left == [b"%d" % number for number in range(bases[2], 35)]
            assert await log.trim_topic("t", 0) == bases[2], "nothing comes back"
            assert await log.trim_topic("t", 10_000) == bases[-1], "the open segment stays"
            with pytest.raises(UnknownTopic, match="with uid 1 was deleted"):
                await log.trim_topic("t", 10_000, uid=1)

    run_story(story, segment_records=10)


def test_system_topics_are_in_no_list_and_made_by_no_append() -> None:
    async def story(world: World) -> None:
        async with world.connect(1) as log:
            with pytest.raises(UnknownTopic, match="no append makes one"):
                await log.append("_ister/hidden", [b"x"])
            await log.create_topic("_ister/hidden", if_absent=True)
            await log.append("_ister/hidden", [b"x"])
            await log.append("seen", [b"x"])
            async with world.connect(3) as other:
                assert [found.topic for found in await other.list_topics()] == ["default/seen"]
                assert [found.topic for found in await other.list_topics("default/")] == ["default/seen"]
                assert [found.topic for found in await other.list_topics("_ister/")] == ["_ister/hidden"]
                assert await read_all(other, "_ister/hidden") == [b"x"]

    run_story(story)


def _frame(*values: bytes) -> Frame:
    found = decode(encode(values, keys=[b"k"] * len(values), producer_id=9, sequence=5))
    assert isinstance(found, Frame)
    return found


def test_frames_under_an_identity_of_the_callers_are_appended_once() -> None:
    async def story(world: World) -> None:
        frames = [_frame(b"%d" % number, b"x") for number in range(20)]

        async def put(start: int, sequence: int) -> list[int]:
            async with world.connect(1) as log:
                sequencer = Sequencer(
                    "t",
                    log.requests.routes,
                    log.requests.clock,
                    window=8,
                    idempotent=True,
                    request_timeout_s=5,
                    retry_deadline_s=5,
                    identity=Identity(77, sequence),
                )
                batches = [sequencer.put_frame(frame) for frame in frames[start:]]
                return list(await asyncio.gather(*(batch.wait(0) for batch in batches)))

        assert await put(0, 0) == list(range(0, 40, 2))
        assert await put(12, 24) == list(range(24, 40, 2)), "the last eight are remembered"
        with pytest.raises(DuplicateSequence):
            await put(0, 0)
        async with world.connect(2) as log:
            line = [record async for record in log.read("t")]
        assert [record.value for record in line[::2]] == [b"%d" % number for number in range(20)]
        assert {record.key for record in line} == {b"k"}

    run_story(story)


def test_a_frame_that_fails_for_good_ends_an_identity_of_the_callers() -> None:
    """What comes behind it may not take its place, nor another identity: the caller knows what they mean."""

    async def story(world: World) -> None:
        async with world.connect(1) as log:
            await log.create_topic("t", max_message_bytes=2048)
            sequencer = Sequencer(
                "t",
                log.requests.routes,
                log.requests.clock,
                window=8,
                idempotent=True,
                request_timeout_s=5,
                retry_deadline_s=5,
                identity=Identity(77, 0),
            )
            batches = [
                sequencer.put_frame(frame) for frame in (_frame(b"0"), _frame(b"x" * 4096), _frame(b"2"))
            ]
            outcomes = await asyncio.gather(*(batch.wait(0) for batch in batches), return_exceptions=True)
            assert [type(one) for one in outcomes[1:]] == [MessageTooLarge, MessageTooLarge]
            assert sequencer.finished is not None
            await asyncio.sleep(1)
            assert await read_all(log, "t") in ([b"0"], [])

    run_story(story)


@pytest.mark.parametrize("again", [False, True])
def test_an_append_for_one_topic_is_taken_by_no_other_through_any_node(again: bool) -> None:
    """I3: a producer's first frame would be taken by whichever topic has the name, or make one."""

    async def story(world: World) -> None:
        async with world.connect(1) as one, world.connect(2) as two, world.connect(3) as three:
            uid = (await one.create_topic("t")).uid
            for at, log in enumerate((one, two, three)):
                sequencer = log.sequencer("t", uid=uid)
                assert await sequencer.put_frame(frame_of(b"old")).wait(0) == at
                sequencer.close(IsterError("done"))
            await two.delete_topic("t")
            if again:
                await three.append("t", [b"new"])
            for log in (one, two, three):
                sequencer = log.sequencer("t", Identity(7, 0), uid=uid)
                batches = [sequencer.put_frame(frame_of(b"late")) for _ in range(3)]
                for batch in batches:
                    with pytest.raises(UnknownTopic):
                        await batch.wait(0)
            if again:
                assert await read_all(one, "t") == [b"new"]
            else:
                assert await one.list_topics("default/") == []

    run_story(story)


def frame_of(value: bytes) -> Frame:
    found = decode(encode([value]))
    assert isinstance(found, Frame)
    return found
