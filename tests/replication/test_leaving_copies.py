"""A copy that is not a node's to keep any more goes when those who are to have it have said that they do."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import pytest

from ister.errors import StorageFailed
from ister.metadata.commands import Command, Outcome, Result, SetReplicas
from ister.protocol.replication import Copy, CopyAnswer
from ister.raft import driver
from ister.replication.copies import last_look, leaving, repair, sealed_copies
from ister.replication.copies.copying import ASIDE
from ister.replication.copies.leaving import LeavingCopies
from ister.replication.copies.sealed_copies import SealedCopies
from ister.replication.places import Place
from ister.testing.cluster import World, WorldNode, run_story
from tests.losses.stories import aside
from tests.replication.repair_helpers import (
    durable,
    fill,
    has_files,
    is_healed,
    is_whole,
    path_of,
    replicas_of,
    sealed,
    until,
)
from tests.replication.test_last_copy import SETTINGS, left_with_others

pytestmark = pytest.mark.slow

T = TypeVar("T")


def test_f4_a_change_that_comes_late_costs_no_copy_of_those_who_leave() -> None:
    """The one that comes has said that it is whole; it was started again before the change was applied, as a
    node that is no replica, and its copy went. Whoever leaves has the second one there is."""

    async def story(world: World) -> tuple[list[WorldNode], list[WorldNode]]:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        nodes = {node.member: node for node in world.nodes.values()}
        segment = next(one for one in sealed(world) if world.metadata_leader().member not in one.replicas)
        stays, leaves = (nodes[member] for member in segment.replicas)
        metadata, propose = stays.broker.metadata, stays.broker.metadata.propose
        comes: list[WorldNode] = []

        async def propose_late(command: Command) -> Outcome:
            if isinstance(command, SetReplicas) and command.segment == segment.segment and not comes:
                comes.append(nodes[command.replicas[-1]])
                assert is_whole(world, comes[0], segment)
                comes[0].kill()
                await until(lambda: comes[0].is_up and not has_files(world, comes[0], segment), 30)
                world.network.partition(stays.host, comes[0].host)
            return await propose(command)

        slower = (
            leaves.broker.replication.repairs
        )  # it does not hear the other, and would repair the segment too
        with mock.patch.object(metadata, "propose", propose_late), mock.patch.object(slower, "_begin"):
            world.network.partition(stays.host, leaves.host)  # all others hear both of them
            await until(lambda: bool(comes))
            await asyncio.sleep(0.5)
            await comes[0].start()
            await until(lambda: leaves.member not in replicas_of(world, segment.uid), 60)
        await asyncio.sleep(20)
        whole = [node for node in (stays, leaves, comes[0]) if is_whole(world, node, segment)]
        world.network.heal()
        await until(lambda: is_healed(world, copies=2) and not has_files(world, leaves, segment), 60)
        return whole, [stays, leaves]

    whole, had_it = run_story(story, nodes=6, replicas=2, segment_records=2, repair_after_ms=10_000)
    assert whole == had_it


def test_who_comes_back_keeps_its_copy_while_those_in_its_place_do_not_answer() -> None:
    async def story(world: World) -> tuple[bool, bool]:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        nodes = {node.member: node for node in world.nodes.values()}
        first, away = (nodes[member] for member in segment.replicas)
        away.kill()
        await until(lambda: is_healed(world, copies=2))
        second = nodes[next(one for one in replicas_of(world, segment.uid) if one != first.member)]
        for node in (first, second):
            node.kill(power=True)  # nobody has told the cluster that they are gone for good
        await asyncio.sleep(5)
        await away.start()
        await asyncio.sleep(20)
        stays = is_whole(world, away, segment)
        for node in (first, second):
            await node.start()
        await until(lambda: is_healed(world, copies=2))
        await until(lambda: not has_files(world, away, segment), 30)
        return stays, True

    assert run_story(story, nodes=7, replicas=2, segment_records=2, repair_after_ms=10_000) == (True, True)


def test_a_copy_that_counts_by_a_snapshot_is_not_removed_for_a_guest_that_waited_its_turn() -> None:
    async def story(world: World) -> tuple[bool, bool]:
        away, segment = await left_with_others(world)
        await away.start()
        replication, topic_uid = away.broker.replication, away.topic("t").state.uid
        await until(lambda: segment.uid in replication.leaving.segments)
        other = next(node for node in world.up if node is not away)
        await replication.guests._turn.acquire()  # another segment is being copied, at its rate
        request = Copy(topic_uid, segment.uid, 0, other.member, segment.end_offset or 0, 0)
        asked = asyncio.ensure_future(replication.guests.asked(request))
        await asyncio.sleep(0.1)
        assert replication.guests.has(segment.uid) and world.metadata_leader() is not away
        world.network.isolate(away.host)
        for node in world.up:
            world.network.reset(away.host, node.host)
        # Its offer came through; what came of it comes to it by a snapshot.
        counted = SetReplicas(topic_uid, segment.segment, replicas_of(world, segment.uid), [away.member])
        assert (await other.broker.metadata.propose(counted)).result is Result.APPLIED
        async with world.connect(other.node_id) as log:
            for number in range(30):
                await log.create_topic(f"other-{number}")
        world.network.heal()
        await until(lambda: away.member in away.topic("t").state.segments[0].replicas, 30)
        await until(lambda: replication.completions.is_whole(segment.uid), 20)
        replication.guests._turn.release()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(1)
        return is_whole(world, away, segment), replication.completions.is_whole(segment.uid)

    with (
        mock.patch.object(driver, "KEPT_BEHIND_SNAPSHOT", 0),
        mock.patch.object(repair, "CHECK_SECONDS", 100),
        mock.patch.object(LeavingCopies, "_offer"),
    ):
        assert run_story(story, **SETTINGS, snapshot_entries=10) == (True, True)


def test_f6_a_loss_that_is_accepted_while_a_last_copy_is_looked_at_cuts_nothing_of_it() -> None:
    """The look waits for a thread; by then the segment ends where it begins."""

    async def story(world: World) -> tuple[list[str], bool]:
        away, segment = await left_with_others(world)
        await away.start()
        whole = durable(world, away, segment)
        run, held = away.broker.disk.run, list[asyncio.Event]()

        async def run_late(work: Callable[[], T]) -> T:
            if "SealedCopies._check" in work.__qualname__:
                held.append(asyncio.Event())
                await held[-1].wait()
            return await run(work)

        with mock.patch.object(away.broker.disk, "run", run_late):
            await until(lambda: bool(held))
            async with world.connect() as log:
                shown = await log.recovery_of("t")
                assert segment.uid in shown.gone_segments
                assert (await log.accept_loss(shown, node_stopped=False)).accepted
            await until(lambda: away.topic("t").state.segments[0].is_empty)
            held[0].set()
            await asyncio.sleep(1)
        await asyncio.sleep(30)
        kept = [name for name in await aside(away) if f"-{segment.uid:016d}." in name]
        return kept, durable(world, away, segment) == whole

    kept, is_untouched = run_story(story, **SETTINGS)
    assert kept or is_untouched


@pytest.mark.parametrize("is_asked", [True, False], ids=["as a guest", "as the last copy"])
def test_a_look_that_failed_once_has_said_nothing_of_what_is_here(is_asked: bool) -> None:
    """A damaged file of another time is not called whole by the next try; a whole one is offered by it."""

    async def story(world: World) -> tuple[bool, bool]:
        away, segment = await left_with_others(world)
        if is_asked:
            away.disk.rot(path_of(world, segment) + ".log", 60)
        scrub, failed = sealed_copies.scrub_log, list[bool]()

        async def fail_once(*given: Any, **named: Any) -> Any:
            if not failed:
                failed.append(True)
                raise StorageFailed("the log cannot be opened: too many open files")
            return await scrub(*given, **named)

        with mock.patch.object(sealed_copies, "scrub_log", fail_once):
            await away.start()
            if not is_asked:
                await asyncio.sleep(60)
                return bool(failed), away.member in replicas_of(world, segment.uid)
            guests, topic_uid = away.broker.replication.guests, away.topic("t").state.uid
            await until(lambda: away.broker.upkeep.may_remove)
            request = Copy(topic_uid, segment.uid, 0, world.up[0].member, segment.end_offset or 0, 0)
            answers = [await _answer(guests.asked(request)) for _ in range(2)]
        is_called_whole = any(one is not None and one.end_offset == segment.end_offset for one in answers)
        return bool(failed), not is_called_whole or is_whole(world, away, segment)

    assert run_story(story, **SETTINGS) == (True, True)


async def _answer(asked: Any) -> CopyAnswer | None:
    try:
        answer = await asked
    except Exception:
        return None
    assert isinstance(answer, CopyAnswer)
    return answer


def test_a_copy_that_is_wanted_again_while_it_leaves_is_not_called_whole_without_files() -> None:
    """Those who have it are asked; before the last answer is here, a repair has this node have it again."""

    async def story(world: World) -> tuple[bool, bool]:
        await fill(world, 6)
        await until(lambda: is_healed(world))
        segment = sealed(world)[0]
        away = next(node for node in world.up if node.member == segment.replicas[-1])
        replication, ask, wanted_again = away.broker.replication, last_look.ask_about, list[bool]()

        async def answered_late(node: Any, member: int, place: Place, **named: Any) -> bool:
            answer = await ask(node, member, place, **named)
            is_meant = node.member == away.member and place.segment.uid == segment.uid
            is_last = is_meant and member == place.segment.replicas[-1]
            if is_last and answer and not wanted_again:
                wanted_again.append(True)
                async with world.connect() as log, asyncio.timeout(60):
                    await log.alter_topic("t", replicas=3)
                    while not (replication.guests.has(segment.uid) and replication.copies._busy):  # noqa: ASYNC110
                        await asyncio.sleep(0.0002)
                    await asyncio.sleep(0.0002)
            return answer

        with mock.patch.object(last_look, "ask_about", answered_late):
            async with world.connect() as log:
                await log.alter_topic("t", replicas=2)
            await until(lambda: bool(wanted_again), 120)
            await until(lambda: away.member in replicas_of(world, segment.uid), 120)
            await asyncio.sleep(60)
        return replication.completions.is_whole(segment.uid), is_whole(world, away, segment)

    settings = {"segment_records": 2, "repair_after_ms": 10_000, "scrub_bytes_per_second": 0}
    assert run_story(story, nodes=3, replicas=3, **settings) == (True, True)


def test_what_is_left_of_a_copy_without_its_log_goes() -> None:
    """A copy that was pulled aside and never took its place, or a removal that was cut short."""

    async def story(world: World) -> bool:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        away = next(node for node in world.up if node.member not in segment.replicas)
        path = path_of(world, segment)
        away.kill()
        away.disk.make_directory(path.rpartition("/")[0])
        away.disk.open(path + ASIDE + ".log", create=True).close()
        away.disk.sync_directory(path.rpartition("/")[0])
        assert has_files(world, away, segment)
        await away.start()
        await asyncio.sleep(20)
        return has_files(world, away, segment)

    assert not run_story(story, nodes=3, replicas=2, segment_records=2, repair_after_ms=100_000)


def test_a_leftover_that_cannot_be_read_does_not_keep_a_copy_out() -> None:
    async def story(world: World) -> bool:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        nodes = {node.member: node for node in world.up}
        source, lost = (nodes[member] for member in segment.replicas)
        away = next(node for node in world.up if node.member not in segment.replicas)
        topic_uid = away.topic("t").state.uid
        request = Copy(topic_uid, segment.uid, 0, source.member, segment.end_offset or 0, 0)
        await away.broker.replication.guests.asked(request)
        assert is_whole(world, away, segment)
        away.kill()
        away.disk.faults.add("read", prefix=path_of(world, segment), suffix=".log", error=errno.EIO)
        lost.kill()  # for good: nobody else can take its place
        await away.start()
        await asyncio.sleep(120)
        return away.member in replicas_of(world, segment.uid)

    assert run_story(story, nodes=3, replicas=2, segment_records=2, repair_after_ms=10_000)


def test_a_copy_that_cannot_be_removed_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> int:
        await fill(world, 20)
        await until(lambda: is_healed(world))
        for node in world.up:
            node.disk.faults.add("remove", prefix="segments/", suffix="", error=errno.EROFS)
        async with world.connect() as log:
            await log.alter_topic("t", replicas=2)
        await until(lambda: all(len(one.replicas) == 2 for one in sealed(world)), 600)
        await asyncio.sleep(600)
        return len(sealed(world))

    with caplog.at_level(logging.WARNING):
        count = run_story(story, nodes=3, replicas=3, segment_records=2, repair_after_ms=100_000)
    said = [record for record in caplog.records if "stays here" in record.getMessage()]
    assert 0 < len(said) <= count


def test_a_copy_that_comes_again_while_it_is_removed_is_looked_after() -> None:
    async def story(world: World) -> int:
        await fill(world, 6)
        await until(lambda: is_healed(world))
        segment, removed, remove = sealed(world)[0], list[int](), SealedCopies.remove

        async def told_again(self: SealedCopies, place: Place, *given: Any) -> bool:
            is_removed = await remove(self, place, *given)
            if place.segment.uid == segment.uid:
                removed.append(self._member)
                if len(removed) == 1:
                    node = next(one for one in world.up if one.member == self._member)
                    node.broker.replication.let_go(place.topic.uid, place.segment.uid)
            return is_removed

        with (
            mock.patch.object(SealedCopies, "remove", told_again),
            mock.patch.object(leaving, "LOOK_SECONDS", 10_000),
        ):
            async with world.connect() as log:
                await log.alter_topic("t", replicas=2)
            await until(lambda: bool(removed), 120)
            await asyncio.sleep(10)
        return len(removed)

    assert run_story(story, nodes=3, replicas=3, segment_records=2, repair_after_ms=100_000) == 2


def test_a_leftover_that_could_not_be_read_for_want_of_memory_stays_as_it_is() -> None:
    async def story(world: World) -> tuple[bool, bool]:
        await fill(world, 6)
        await until(lambda: is_healed(world, copies=2))
        segment = sealed(world)[0]
        away = next(node for node in world.up if node.member not in segment.replicas)
        guests, topic_uid = away.broker.replication.guests, away.topic("t").state.uid
        request = Copy(topic_uid, segment.uid, 0, segment.replicas[0], segment.end_offset or 0, 0)
        await guests.asked(request)
        guests._guests.clear()  # as after a start
        away.disk.faults.add("read", prefix=path_of(world, segment), suffix=".log", error=errno.ENOMEM)
        answers = [await _answer(guests.asked(request)) for _ in range(3)]
        return any(answers), is_whole(world, away, segment)

    settings = {"segment_records": 2, "repair_after_ms": 100_000, "scrub_bytes_per_second": 0}
    assert run_story(story, nodes=3, replicas=2, **settings) == (False, True)


def test_f3_a_copy_that_is_known_to_go_past_the_sealed_end_is_not_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> bool:
        await fill(world, 6)
        await until(lambda: is_healed(world))
        segment = sealed(world)[0]
        for node in world.up:
            node.broker.replication.copies.commit_known[segment.uid] = (segment.end_offset or 0) + 1
        async with world.connect() as log:
            await log.alter_topic("t", replicas=2)
        await until(lambda: len(replicas_of(world, segment.uid)) == 2, 600)
        await asyncio.sleep(30)
        return all(is_whole(world, node, segment) for node in world.up)

    assert run_story(story, nodes=3, replicas=3, segment_records=2, repair_after_ms=100_000)
    assert "are known to be committed" in caplog.text
