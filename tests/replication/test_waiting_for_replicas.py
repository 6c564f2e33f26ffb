"""How long a leader is said to have waited for its replicas."""

from __future__ import annotations

import asyncio

from ister.errors import IsterError
from ister.frame import admit, encode
from ister.io.clock import monotonic
from ister.testing.cluster import World, run_story


class _Answers:
    def __init__(self) -> None:
        self.said: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def appended(self, token: int, base_offset: int, append_time_us: int, leader: int = 0) -> None:
        self.said.set_result((base_offset, leader))

    def refused(self, token: int, error: IsterError) -> None:
        self.said.set_result(error)


def test_what_waited_for_room_before_it_was_appended_did_not_wait_for_replicas() -> None:
    """A request that lay whole in the broker for `quorum_timeout_ms`, because others had filled
    max_in_flight_bytes, comes with the moment at which its bytes came."""

    async def story(world: World) -> int:
        async with world.connect(1, 2, 3) as log:
            await log.append("t", [b"0"])
        leader = world.leader_of("t")
        topic = leader.topic("t")
        await asyncio.sleep(15)
        frame, answers = bytearray(encode([b"1"])), _Answers()
        topic.append(frame, admit(frame), answers, 1, monotonic() - 11)
        for _ in range(2):
            topic.leadership.check_quorum(monotonic())
        async with asyncio.timeout(60):
            await answers.said
            await asyncio.sleep(5)
        return sum(segment.recovery > 0 for segment in topic.state.segments)

    assert run_story(story, replicas=3) == 0, (
        "all replicas answered at once, and the segment was recovered all the same"
    )
