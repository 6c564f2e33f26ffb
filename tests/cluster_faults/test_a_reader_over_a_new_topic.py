"""I3: a reader stands in a topic that is deleted and made again; the new one is not the old."""

from __future__ import annotations

import pytest

from ister.errors import IsterError
from ister.testing.cluster import World, run_story


def test_a_reader_never_goes_on_in_the_successor_of_its_topic() -> None:
    async def story(world: World) -> None:
        async with world.connect(1, 2, 3) as log, world.connect(1, 2, 3) as other:
            for number in range(5):
                await log.append("t", [b"old %d" % number])
            seen: list[bytes | None] = []
            with pytest.raises(IsterError):
                async for record in log.read("t", follow=True, max_bytes=1):
                    seen.append(record.value)
                    if record.offset == 1:
                        await other.delete_topic("t")
                        for number in range(10):
                            await other.append("t", [b"new %d" % number])
                    assert not (record.value or b"").startswith(b"new"), seen
                    if record.offset == 9:
                        break

    run_story(story)
