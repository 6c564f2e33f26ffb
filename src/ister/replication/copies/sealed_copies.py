"""The logs that this node has of sealed segments: cut at the seal, completed, replaced, taken in, let go.

Fault model: as of `copying` for what comes, of `seal_cut` for what is here. Requests and metadata come in
any order; a log has one owner at a time (`Copies.lock`). What it is wanted for is looked up under that, and
stays so for this owner: where a segment is cut is not read again while a thread is about to do it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from copy import copy
from enum import Enum

from ister.errors import CorruptFrame, CorruptSegment, NodeUnreachable, StorageFailed, UnknownTopic
from ister.io.clock import Clock
from ister.io.disk import Disk, parent
from ister.metadata.topics import HistoryObject
from ister.protocol.replication import ReachAnswer
from ister.replication.copies.copies import Copies, wanted_of
from ister.replication.copies.copying import ASIDE, Copied, copy_log, replace_copy
from ister.replication.copies.damage import forget_damage, remember_damage, was_damaged
from ister.replication.copies.scrub import Finding, scrub_log
from ister.replication.copies.sources import CheckedReads
from ister.replication.places import Place
from ister.replication.sharing import run_to_end
from ister.wal.opening import measure
from ister.wal.read_faults import REPEAT_SECONDS, is_medium_error
from ister.wal.seal_cut import SealCut, check_end, cut_at_seal
from ister.wal.set_aside import TailAside, set_aside

log = logging.getLogger("ister.replication.copies.copies")

SUFFIXES = (
    ".side",
    ".log",
    ASIDE + ".side",
    ASIDE + ".log",
    ".doubt",
    ".doubt.new",
    ".fence",
    ".fence.new",
    ".damaged",
    ".damaged.new",
)
"""Of a segment's files, in the order in which they are removed: no checkpoint outlives its log."""

Bring = Callable[..., Awaitable[Copied]]
"""`copy_log` or `replace_copy`."""


class Finished(Enum):
    """What came of an attempt to make a sealed segment's copy whole."""

    WHOLE = "whole"
    NOT_YET = "not yet"
    """Who may have what is missing could not be asked."""
    NOBODY_HAS_IT = "nobody has it"
    """All who were asked have damaged what is missing here."""


class SealedCopies:
    def __init__(
        self,
        copies: Copies,
        member: int,
        disk: Disk,
        clock: Clock,
        sealed: CheckedReads,
        *,
        bytes_per_second: int,
    ) -> None:
        self._copies = copies
        self._member = member
        self._disk = disk
        self._clock = clock
        self._sealed = sealed
        self._rate = bytes_per_second
        self.aside: dict[int, list[TailAside]] = {}
        """By segment: what came back of those that were given up (F6)."""

    async def finish(self, place: Place, sources: list[int], *, is_damaged: bool) -> Finished:
        """Make the log of a sealed segment end where the seal says, from any of these; one that is damaged is
        replaced as a whole, with what is good of it where the others are not."""
        copies = self._copies
        await copies.sealed(place)
        async with copies.lock(place.segment.uid):
            now = copies.place(place.topic.uid, place.segment.uid)
            if now is None or self._member not in now.segment.replicas:
                return Finished.NOT_YET
            place = _as_it_is(now)
            segment = place.segment
            copies.close_fenced(segment.uid)
            commit = copies.commit_known.get(segment.uid, 0)
            if segment.lost_from is not None:
                await self._set_aside(place, segment.lost_from)
                commit = 0  # what it knows to be committed may be among what was given up
                if segment.lost_from == segment.base_offset:
                    return Finished.WHOLE
            finished = Finished.WHOLE
            is_marked = await run_to_end(self._disk, lambda: was_damaged(self._disk, place.identity.path))
            if is_damaged or is_marked:
                finished = await self._pull(place, [*sources, self._member], replace_copy)
            else:
                found = await run_to_end(self._disk, lambda: _cut(self._disk, place, commit))
                if not found.is_complete:
                    # What lies behind a damaged frame may be nowhere else: it stays until all of it is here.
                    bring = replace_copy if found.has_frames_behind else copy_log
                    finished = await self._pull(place, sources, bring)
            if finished is Finished.WHOLE:
                copies.commit_known.pop(segment.uid, None)
                if is_marked:
                    await run_to_end(self._disk, lambda: forget_damage(self._disk, place.identity.path))
            return finished

    async def mark(self, place: Place, *, is_damaged: bool) -> None:
        """Remember that this copy is damaged, past a restart too; or that it is not any more."""
        async with self._copies.lock(place.segment.uid):
            now = self._copies.place(place.topic.uid, place.segment.uid)
            if now is not None and self._member in now.segment.replicas and self.is_here(now):
                path, set_mark = now.identity.path, remember_damage if is_damaged else forget_damage
                await run_to_end(self._disk, lambda: set_mark(self._disk, path))

    async def take_in(
        self, place: Place, sources: list[int], *, is_resumed: bool, begins: Callable[[], None]
    ) -> Finished:
        """Copy a sealed segment that this node is no replica of. What is here of it is nothing to rely on,
        unless this process has begun with it, or finds it whole. `begins` is told when it is gone."""
        async with self._copies.lock(place.segment.uid):
            now = self._copies.place(place.topic.uid, place.segment.uid)  # others had the lock
            if now is None or self._member in now.segment.replicas:
                return Finished.NOT_YET
            place = _as_it_is(now)
            if not is_resumed:
                if place.segment.lost_from is not None:
                    await self._set_aside(place, place.segment.lost_from)
                elif self.is_here(place) and await self._can_be_read(place):
                    return Finished.WHOLE
                await run_to_end(self._disk, lambda: remove_segment_files(self._disk, place.identity.path))
                begins()
            return await self._pull(place, sources, copy_log)

    async def reach(self, place: Place) -> ReachAnswer:
        """How far the log here goes, durably (P2), of a sealed segment whose copy is not whole. Damage that
        keeps it from being opened is an error, and no short end: nothing is given up by that."""
        await self._copies.sealed(place)
        async with self._copies.lock(place.segment.uid):
            now = self._copies.place(place.topic.uid, place.segment.uid)
            if now is None:
                raise UnknownTopic(f"{place.identity.key} is not there any more")
            place = _as_it_is(now)
            segment = place.segment
            assert segment.data_end is not None
            whole = ReachAnswer(segment.data_end, segment.end_position, segment.last_append_time_us)
            self._copies.close_fenced(segment.uid)
            if segment.lost_from is not None:  # before the log is opened, which may cut its tail
                await self._set_aside(place, segment.lost_from)
            found = await run_to_end(self._disk, lambda: _reach(self._disk, place))
        return found if found.end_offset < segment.data_end else whole

    async def _pull(self, place: Place, members: list[int], bring: Bring) -> Finished:
        """From the first of these on, and from the next where one sends what is no good."""
        segment, identity = place.segment, place.identity
        assert segment.data_end is not None
        wanted, is_corrupt = wanted_of(place, segment.data_end), False
        for turn in range(max(1, len(members))):  # without anybody too: it may be that nothing is missing
            order = members[turn:] + members[:turn]
            source = self._copies.sources.any_of(place.topic.uid, identity, segment, order)
            try:
                copied = await bring(self._disk, self._clock, wanted, source, bytes_per_second=self._rate)
            except NodeUnreachable as error:
                log.info("%s was not completed: %s", identity.key, error)
                return Finished.NOT_YET
            except CorruptFrame as error:
                log.info("%s was not completed: %s", identity.key, error)
                is_corrupt = True
                continue
            self._sealed.forget(identity.path)
            fields = {"segment": identity.key, "end": copied.end_offset, "bytes": copied.copied_bytes}
            log.info("completed", extra={"fields": fields})
            return Finished.WHOLE
        return Finished.NOBODY_HAS_IT if is_corrupt else Finished.NOT_YET

    async def _set_aside(self, place: Place, lost_from: int) -> None:
        """What a node that comes back has of records that were given up is not cut, and not served (F6)."""
        identity = place.identity
        self._sealed.forget(identity.path)
        tails = await run_to_end(self._disk, lambda: set_aside(self._disk, identity, lost_from))
        self.aside[place.segment.uid] = tails
        for tail in tails:
            log.log(
                logging.WARNING if tail.is_new else logging.INFO,
                "%s was given up from offset %d on, and its log here has %d to %d: they are set aside in "
                "%s/%s, and nobody reads them",
                identity.key,
                lost_from,
                tail.from_offset,
                tail.end_offset - 1,
                self._disk.location,
                tail.file,
            )

    def is_here(self, place: Place) -> bool:
        """Whether there is a log of it."""
        return self._disk.exists(place.identity.path + ".log")

    async def remove(
        self,
        place: Place,
        expected: list[int],
        by_object: HistoryObject | None,
        is_guest: Callable[[int], bool],
    ) -> bool:
        """Let go of the files of a sealed segment that these have, or this object, and this node is not to;
        whether all was still said so of them, and nobody has asked meanwhile for it to be had here."""
        copies, uid = self._copies, place.segment.uid
        await copies.sealed(place)
        async with copies.lock(uid):
            now = copies.place(place.topic.uid, uid)  # others had the lock
            if now is None or is_guest(uid):
                return False
            if now.segment.replicas != expected or now.segment.history != by_object:
                return False  # others left, or the object was found damaged
            place = _as_it_is(now)
            end, path = place.segment.data_end, place.identity.path
            assert end is not None
            copies.close_fenced(uid)
            if place.segment.lost_from is None:
                check_end(self._disk, place.identity, end, copies.commit_known.get(uid, 0))
            copies.commit_known.pop(uid, None)
            self._sealed.forget(path)
            if place.segment.lost_from is not None:
                await self._set_aside(place, place.segment.lost_from)
            log.info("removing a copy that is kept elsewhere", extra={"fields": {"path": path}})
            await run_to_end(self._disk, lambda: remove_segment_files(self._disk, path))
            return True

    async def is_good(self, place: Place) -> bool | None:
        """Whether the log here, of a segment that this node is no replica of, is durable up to the sealed end
        and each of its frames is as it should be. None if it is not to be offered any more; `StorageFailed`
        if it could not be read."""
        await self._copies.sealed(place)
        async with self._copies.lock(place.segment.uid):
            now = self._copies.place(place.topic.uid, place.segment.uid)
            if now is None or self._member in now.segment.replicas or now.segment.lost_from is not None:
                return None
            return await self._is_good(_as_it_is(now))

    async def _can_be_read(self, place: Place) -> bool:
        """The same for who has the lock, and can have it anew: what the disk cannot read twice is no good.
        Where files or memory have run out nothing is known of it."""
        try:
            return await self._is_good(place)
        except StorageFailed:
            await asyncio.sleep(REPEAT_SECONDS)
        finding = await self._check(place)
        if finding is not None and finding.may_pass:
            log.warning("what is here of %s is made anew: %s", place.identity.key, finding.reason)
        return finding is None

    async def _is_good(self, place: Place) -> bool:
        """The same for who has the lock."""
        finding = await self._check(place)
        if finding is not None and finding.may_pass:
            raise StorageFailed(f"{place.identity.key} could not be checked: {finding.reason}")
        return finding is None

    async def _check(self, place: Place) -> Finding | None:
        """What is wrong with the log here, if anything is; `StorageFailed`, or any `OSError` but one that
        says that the disk could not read, if that could not be found out."""
        copies, segment, key = self._copies, place.segment, place.identity.key
        assert segment.data_end is not None
        copies.close_fenced(segment.uid)
        commit = copies.commit_known.get(segment.uid, 0)
        try:
            if not (await run_to_end(self._disk, lambda: _cut(self._disk, place, commit))).is_complete:
                return Finding(segment.base_offset, 0, "it ends short")
        except CorruptSegment as error:
            log.warning("what is here of %s is damaged: %s", key, error)
            return Finding(segment.base_offset, 0, error.message)
        except OSError as error:
            if not is_medium_error(error):
                raise
            return Finding(segment.base_offset, 0, f"it cannot be read: {error}", may_pass=True)
        return await scrub_log(
            self._disk, self._clock, place.identity, segment.data_end, bytes_per_second=self._rate
        )


def remove_segment_files(disk: Disk, path: str) -> None:
    """All that belongs to a segment's log. What was set aside for an operator has other names, and stays."""
    directory = parent(path)
    if disk.exists(directory):
        for suffix in SUFFIXES:
            disk.remove(path + suffix)
        disk.sync_directory(directory)


def _reach(disk: Disk, place: Place) -> ReachAnswer:
    identity, state = place.identity, place.segment
    if not disk.exists(identity.path + ".log"):
        return ReachAnswer(identity.base_offset, 0, state.carried_append_time_us)
    found = measure(disk, identity, state.carried_producers, state.carried_append_time_us)
    found.close()
    return ReachAnswer(found.end_offset, found.position, found.last_append_time_us)


def _cut(disk: Disk, place: Place, known_commit: int) -> SealCut:
    """Cut the log at the sealed end, if it reaches it."""
    identity, state = place.identity, place.segment
    assert state.data_end is not None
    return cut_at_seal(
        disk,
        identity,
        state.data_end,
        known_commit=known_commit,
        carried=state.carried_producers,
        last_append_time_us=state.carried_append_time_us,
    )


def _as_it_is(place: Place) -> Place:
    """The segment as it is now, whatever is applied while a thread works by it."""
    return place._replace(segment=copy(place.segment))
