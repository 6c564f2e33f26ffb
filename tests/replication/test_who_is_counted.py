"""R2, C2 to C4: what is known to be damaged, short or silent is not counted, and holds up nobody else."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from ister.errors import BadRequest, RequestTimeout
from ister.frame import HEADER_SIZE
from ister.metadata.commands import CopyEntry, Outcome, ReportCopies, Reported, Result, SetReplicas
from ister.metadata.state import SegmentState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.replication import NOT_YET, Copy, CopyAnswer
from ister.replication.copies.leaving import LeavingCopies
from ister.replication.places import Place
from ister.testing.cluster import World, WorldNode, run_story
from ister.wal.opening import SegmentIdentity
from tests.metadata.chains import FOUR, ONE, THREE, TWO, apply, create, node, seal, state_after, the_topic
from tests.replication.repair_helpers import fill, is_healed, newest, path_of, sealed, until


async def rotten_for_good(world: World) -> tuple[WorldNode, WorldNode, SegmentState]:
    """Two have a segment. One has found its copy damaged, and its disk takes no other in its place."""
    await fill(world, 6)
    await until(lambda: is_healed(world, copies=2))
    opened = newest(world).topic("t").state.open_segment.replicas
    nodes = {node.member: node for node in world.up}
    segment = next(one for one in sealed(world) if set(one.replicas) - set(opened) and not one.is_empty)
    good = nodes[next(member for member in segment.replicas if member not in opened)]
    rotten = nodes[next(member for member in segment.replicas if member != good.member)]
    path = path_of(world, segment)
    rotten.disk.faults.add("write", prefix=path, suffix=".copy.log", error=errno.ENOSPC)
    rotten.disk.rot(path + ".log", HEADER_SIZE + 5)
    rotten.broker.storage.sealed.forget(path)
    await rotten.broker.replication.scrubbing.round()
    return good, rotten, segment


def told_by(world: World, segment: SegmentState, node: WorldNode) -> int:
    now = next(one for one in sealed(world) if one.uid == segment.uid)
    told = now.told_by(node.member)
    return told.state if told is not None else 0


SETTINGS = {"nodes": 4, "replicas": 2, "segment_records": 2, "scrub_bytes_per_second": 0}


def test_r2_the_good_copy_is_not_removed_beside_one_that_is_known_to_be_damaged() -> None:
    async def story(world: World) -> str:
        good, rotten, segment = await rotten_for_good(world)
        await until(lambda: told_by(world, segment, rotten) == Reported.DAMAGED, 5)
        async with world.connect(rotten.node_id) as log:
            with pytest.raises(BadRequest) as refused:
                await log.remove_node(good.node_id)
        return str(refused.value)

    assert "known to have all" in run_story(story, **SETTINGS)


def test_c2_a_restart_forgets_no_damage() -> None:
    """The log opens well, and ends where it should."""

    async def story(world: World) -> tuple[list[int], bool]:
        _, rotten, segment = await rotten_for_good(world)
        await until(lambda: told_by(world, segment, rotten) == Reported.DAMAGED, 5)
        await asyncio.sleep(1)
        rotten.kill(power=True)
        await rotten.start()
        seen = list[int]()
        for _ in range(200):
            seen.append(told_by(world, segment, rotten))
            await asyncio.sleep(0.05)
        is_damaged = rotten.broker.replication.completions.is_damaged(segment.uid)
        rotten.disk.faults.clear()
        await until(lambda: is_healed(world, copies=2))
        rotten.kill()
        await rotten.start()
        await asyncio.sleep(5)
        assert not rotten.broker.replication.completions.is_damaged(segment.uid), "it was mended"
        return seen, is_damaged

    seen, is_damaged = run_story(story, **SETTINGS)
    assert set(seen) == {Reported.DAMAGED} and is_damaged


ALL = [ONE, TWO, THREE]

# The last look, with neighbours that are made up.


class _Node:
    """One that has a copy which others are to have; and these say what they are to say of theirs."""

    def __init__(self, says: dict[int, bool | Exception], segments: int = 1) -> None:
        self.member, self.asked, self.proposed = FOUR, list[int](), list[Any]()
        self._says = says
        state = state_after(*(node(number) for number in range(1, 6)), create(leader=ONE, replicas=ALL))
        uid = the_topic(state).uid
        for number in range(1, segments + 1):
            ended = seal(uid, number, 10 * number, by=ONE, then=ONE, then_on=ALL, holders=ALL)
            assert apply(state, ended) is Result.APPLIED
        self.metadata: Any = SimpleNamespace(
            state=state, is_alive=lambda member: True, read_index=self._read_index, propose=self._propose
        )
        self.copies: Any = SimpleNamespace(place=lambda topic_uid, uid: self.places.get(uid))
        self.removed = list[int]()
        self.is_good: Any = None
        self.sealed_copies: Any = SimpleNamespace(
            is_here=lambda place: True, remove=self._remove, is_good=lambda place: self.is_good(place)
        )
        topic = the_topic(state)
        self.places = {
            one.uid: Place(topic, one, SegmentIdentity(topic.key_of(one), one.uid, one.base_offset, "p"))
            for one in topic.segments
            if one.is_sealed
        }

    async def _read_index(self, timeout: float) -> None: ...

    async def _propose(self, command: Any) -> Outcome:
        self.proposed.append(command)
        return self.metadata.state.apply(self.metadata.state.applied_index + 1, command)  # type: ignore[no-any-return]

    async def _remove(self, place: Place, *rest: object) -> bool:
        self.removed.append(place.segment.uid)
        return True

    async def look_at_object(self, place: Place) -> bool | None:
        return None

    async def ask(self, member: int, kind: object, header: bytes, timeout: float) -> bytes:
        self.asked.append(member)
        said = self._says[member]
        if isinstance(said, Exception):
            raise said
        return encode_header(CopyAnswer(decode_header(Copy, header).end_offset if said else NOT_YET, 0))

    async def look(self) -> LeavingCopies:
        """One round over all of them."""
        leaving = LeavingCopies(self, lambda uid: False)
        for place in self.places.values():
            leaving.add(place.topic.uid, place.segment.uid)
        running = asyncio.ensure_future(leaving.run())
        await asyncio.sleep(1)
        running.cancel()
        return leaving


HANGS = RequestTimeout("it did not answer")


@pytest.mark.parametrize(
    ("says", "is_enough"),
    [
        ({ONE: True, TWO: True, THREE: True}, True),
        ({ONE: False, TWO: True, THREE: True}, True),
        ({ONE: True, TWO: HANGS, THREE: True}, True),
        ({ONE: True, TWO: False, THREE: HANGS}, False),
    ],
)
def test_c4_one_that_says_no_or_nothing_keeps_no_other_from_being_counted(
    says: dict[int, bool | Exception], is_enough: bool
) -> None:
    asker = _Node(says)
    asyncio.run(asker.look())
    assert asker.removed == (list(asker.places) if is_enough else [])


def test_c4_of_thousands_of_copies_only_the_first_waits_for_one_that_hangs() -> None:
    asker = _Node({ONE: HANGS, TWO: True, THREE: True}, segments=500)
    asyncio.run(asker.look())
    assert (asker.asked.count(ONE), len(asker.removed)) == (1, 500)


def test_c4_nobody_is_asked_where_too_few_are_known_to_have_it() -> None:
    asker = _Node({ONE: True, TWO: True, THREE: True})
    (place,) = asker.places.values()
    place.segment.whole = [ONE]
    asyncio.run(asker.look())
    assert (asker.asked, asker.removed, asker.proposed) == ([], [], []), "they may say so any moment"


@pytest.mark.parametrize("is_mended", [True, False])
def test_c4_what_is_known_after_a_copy_was_checked_counts_and_not_what_was_before(
    is_mended: bool,
) -> None:
    """Two of three are damaged. While what is here is read to its end, one of them is mended, or is not."""
    asker = _Node({})
    state, (place,) = asker.metadata.state, asker.places.values()

    def report(who: int, what: Reported, number: int) -> None:
        entry = CopyEntry(place.topic.uid, place.segment.uid, what)
        command = ReportCopies(who, 1, number, state.applied_index, [entry])
        assert apply(state, command) is Result.APPLIED

    async def is_good(checked: Place) -> bool:
        if is_mended:
            report(ONE, Reported.WHOLE, 2)
        return True

    asker.is_good = is_good
    report(ONE, Reported.DAMAGED, 1)
    report(TWO, Reported.DAMAGED, 1)
    asyncio.run(asker.look())
    assert isinstance(asker.proposed[0], SetReplicas)
    assert (FOUR in place.segment.replicas) is not is_mended
