"""What waits at a leader that hears of its segment's seal and of its trimming at once."""

from __future__ import annotations

import asyncio

from ister.frame import FrameHeader, decode_header, encode
from tests.replicas_sim.small import World, play


class Sink:
    """As a text client's PUT has: no producer id, sent once."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        self.answers.append(base_offset)

    def refused(self, token: int, error: Exception) -> None:
        self.answers.append(error)


def test_a_record_that_was_sent_once_is_in_the_line_once() -> None:
    async def script(world: World) -> None:
        leader, followers = await world.make_topic(segment_records=4, retention_bytes=1)
        await world.elect(followers[0])
        seen: list[tuple[int, bytes | None]] = []
        async with world.at(leader) as log, world.at(followers[0], "client-2.y") as elsewhere:
            await log.append("t", [b"first"])
            # What the leader sends arrives; what they answer does not.
            for follower in followers:
                world.cut(follower, leader, one_way=True)
            sink, frame = Sink(), bytearray(encode([b"once"]))
            header = decode_header(frame)
            assert isinstance(header, FrameHeader)
            world.topic(leader).append(frame, header, sink, 1, 0.0)
            segment = world.segment()
            await world.until(lambda: all(world.end_on(one, segment) == 2 for one in followers))
            for follower in followers:
                world.cut(leader, follower)
            # The others end it, with that record, and a reader gets it.
            await world.until(lambda: world.segment(seen_by=followers[0]).segment > 1)
            seen += [(record.offset, record.value) async for record in elsewhere.read("t")]
            # It is trimmed, all that before the old leader hears of anything.
            for number in range(30):
                await elsewhere.append("t", [b"%d" % number])
                if world.topic(followers[0]).state.start_offset >= 2:
                    break
                await asyncio.sleep(5)
            assert world.topic(followers[0]).state.start_offset >= 2
            assert world.topic(leader).state.open_segment.segment == 1
            for follower in followers:
                world.forget_what_is_on_the_wire(leader, follower)
            world.network.heal()
            await world.agree()
            await world.until(lambda: bool(sink.answers))
            start = world.topic(followers[0]).state.start_offset
            seen += [(record.offset, record.value) async for record in elsewhere.read("t", start=start)]
        places = [offset for offset, value in seen if value == b"once"]
        assert places == [1], f"sent once, and read at {places}; its sender was told {sink.answers}"

    play(script)
