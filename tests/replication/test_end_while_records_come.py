"""A reader at the end of a topic, and a record that comes while the leader asks whether it still leads."""

from __future__ import annotations

import asyncio
from unittest import mock

from ister.replication.stream.confirming import Confirming
from ister.replication.stream.leader import Leading
from tests.replicas_sim.small import World, play


def test_a_record_that_comes_while_the_end_is_confirmed_is_no_damage() -> None:
    """Nothing was there when the reader was looked for; the answer said so, and named an end behind it."""

    async def script(world: World) -> list[bytes | None]:
        leader, _ = await world.make_topic()
        confirm, found = Leading.confirm, []
        async with asyncio.timeout(120), world.at(leader) as log, world.at(leader, "client-2.y") as other:
            await world.send(log, "t", b"1")

            async def meanwhile(leading: Leading, seconds: float) -> bool:
                if not sent:
                    sent.append(True)
                    await world.send(log, "t", b"2")
                return await confirm(leading, seconds)

            sent: list[bool] = []
            with mock.patch.object(Leading, "confirm", meanwhile):
                async for record in other.read("t", start=0, follow=True):
                    found.append(record.value)
                    if len(found) == 2:
                        break
        return found

    assert play(script) == [b"1", b"2"]


def test_a_reader_that_goes_away_does_not_take_the_answer_of_the_others_along() -> None:
    """Both ask in one turn, one is cancelled: the follower's answer is still the other one's."""

    async def script() -> bool:
        confirming = Confirming(1, lambda number: None)
        gone = asyncio.ensure_future(confirming.confirm(5))
        stays = asyncio.ensure_future(confirming.confirm(5))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        confirming.answered(7, 1)
        done, _ = await asyncio.wait([stays], timeout=1)
        return bool(done) and stays.result()

    assert asyncio.run(script())
