"""Sealed segments of which this node is a replica: cut where they are longer than the seal, completed where
shorter, replaced where damaged.

A replica that ends short, or in which a reader or the scrub found damage, serves nothing of that segment
(F3): it says so, and another is asked. Whether a log is whole is seen at the seal, and after a start, when
the last life may have stopped in the middle of this. A damaged one is whole again when it was pulled anew.

Where no replica has what is damaged here, the copy is served as it is: the good part of it can be read, and
the rest is an error that says what is wrong. That is tried again now and then, since a node may come back.

A read that failed is no damage (`ister.wal.read_faults`). Where there are other replicas the copy rests for a
moment, so that they are asked; what the disk could not read is then read again, and is damage if that fails
too: nobody would replace it otherwise, and a place that is seldom read would be found when it is the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ister.errors import CorruptSegment, InvariantBroken, IsterError
from ister.metadata.commands import Reported
from ister.metadata.nodes import is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.metadata.store import MetadataStore
from ister.metrics import Counter
from ister.replication.copies.copies import Copies, Read
from ister.replication.copies.reporting import State
from ister.replication.copies.sealed_copies import Finished, SealedCopies
from ister.replication.places import Place
from ister.replication.stream.follower import disk_fault
from ister.wal.read_faults import REPEAT_SECONDS, is_medium_error, read_failed

log = logging.getLogger("ister.replication.complete")

RETRY_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 15.0
HOPE_SECONDS = 600.0
"""How often a damaged copy that nobody has whole is tried to be replaced: all of it is read for that."""


@dataclass
class _Trouble:
    """Why a copy is not known to be whole."""

    damage: str = ""
    """What a reader or the scrub found; empty of one that may only be short."""
    is_served: bool = False
    """Nobody has it better: it is read as it is."""
    is_marked: bool = False
    """The damage is remembered on disk (`copies.damage`)."""
    is_short: bool = False
    """It was looked at, and ends early."""
    disk: str = ""
    """Why the disk did not take it, at the last try."""
    is_unreadable: bool = False
    """It could not read a place, at an earlier try."""
    reach: int | None = None
    """Up to which offset it goes, if replicas left the cluster and those that are there do not have the rest:
    as of the last try."""


class Completions:
    def __init__(
        self,
        copies: Copies,
        sealed_copies: SealedCopies,
        metadata: MetadataStore,
        member: int,
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._copies = copies
        self._sealed_copies = sealed_copies
        self._metadata = metadata
        self._member = member
        self._spawn = spawn
        self.on_change: Callable[[int, int, bool], None] = lambda topic_uid, uid, is_urgent: None
        """Told of a segment whose copy here may be in another state now; and whether that cannot wait."""
        self._troubles: dict[int, _Trouble] = {}
        """By segment."""
        self._resting: set[int] = set()
        """Segments whose copy could not be read a moment ago."""
        self._has_looked = False
        """After a start nothing is known of any copy until all of them are to be looked at."""
        self._found_before: set[int] = set()
        """Segments in whose copy an earlier process has found damage."""
        self._whole: dict[int, set[int]] = {}
        """By topic: the segments that this process has looked at and found, or made, whole."""
        self.found_corrupt = Counter(
            "corrupt_copies_total", "Copies of sealed segments in which damage was found."
        )
        self.replaced = Counter(
            "replaced_copies_total",
            "Damaged copies of sealed segments that were replaced from other replicas.",
        )

    def is_incomplete(self, segment_uid: int) -> bool:
        """Whether nothing of this copy is served."""
        trouble = self._troubles.get(segment_uid)
        return trouble is not None and not trouble.is_served

    def is_served(self, segment_uid: int) -> bool:
        """Whether readers are answered from this copy now."""
        return not self.is_incomplete(segment_uid) and segment_uid not in self._resting

    def is_damaged(self, segment_uid: int) -> bool:
        return bool(self.damage_of(segment_uid))

    def is_whole(self, segment_uid: int) -> bool:
        """Whether nothing speaks against this copy: others may rely on it."""
        return self._has_looked and segment_uid not in self._troubles

    def damage_of(self, segment_uid: int) -> str:
        """What was found in this copy; empty if nothing was, or it was replaced."""
        trouble = self._troubles.get(segment_uid)
        return trouble.damage if trouble is not None else ""

    def state_of(self, segment: SegmentState) -> State | None:
        """How this copy is, for the metadata; None while that is not known."""
        if not self._has_looked:
            return None
        trouble = self._troubles.get(segment.uid)
        if trouble is None:
            return Reported.WHOLE, 0
        if trouble.damage:
            return Reported.DAMAGED, 0
        if trouble.reach is not None:
            return Reported.SHORT, trouble.reach
        if trouble.is_short and segment.is_whole_at(self._member):
            return Reported.DAMAGED, 0  # it had all of it
        return None

    @property
    def behind(self) -> list[int]:
        """The segments of which this node is a replica and does not have a whole copy, as far as it knows."""
        return list(self._troubles)

    @property
    def short(self) -> list[tuple[int, int]]:
        """Those of which nobody in the cluster is known to have the rest: up to which offset they go here."""
        return [
            (uid, trouble.reach)
            for uid, trouble in self._troubles.items()
            if trouble.reach is not None and not trouble.is_served
        ]

    @property
    def disk_fault(self) -> str:
        """Why copies of sealed segments cannot be written here, for people; empty if they can."""
        return next((trouble.disk for trouble in self._troubles.values() if trouble.disk), "")

    # What the metadata tells.

    def sealed(self, place: Place) -> None:
        """The metadata has sealed a segment: whether this copy is whole is known once it was looked at.
        Damage that was found while it was open could not be told before (C2)."""
        segment = place.segment
        self._changed(place, is_urgent=self.is_damaged(segment.uid))
        if self._member in segment.replicas and not self._ended_it(place):
            self._look(place)
            return
        if self._member in segment.replicas:
            self._is_found_whole(place)
        self._spawn(self._copies.sealed(place))

    def joined(self, place: Place, *, is_whole: bool) -> None:
        """This node is now among a sealed segment's replicas. It was asked to copy it first; but the copy may
        have been given up while the change was under way."""
        self._changed(place)
        if is_whole:
            self._troubles.pop(place.segment.uid, None)
            self._is_found_whole(place)
        else:
            self._look(place)

    def _changed(self, place: Place, *, is_urgent: bool = False) -> None:
        self.on_change(place.topic.uid, place.segment.uid, is_urgent)

    def _is_found_whole(self, place: Place) -> None:
        self._whole.setdefault(place.topic.uid, set()).add(place.segment.uid)

    def left(self, topic_uid: int, segment_uid: int) -> None:
        """This node is not among its replicas any more."""
        self._troubles.pop(segment_uid, None)
        self._whole.get(topic_uid, set()).discard(segment_uid)

    def trimmed(self, topic: TopicState) -> None:
        """The topic has these segments, and no earlier ones."""
        if topic.uid in self._whole:
            self._whole[topic.uid] &= {segment.uid for segment in topic.segments}

    def deleted(self, topic: TopicState) -> None:
        self._whole.pop(topic.uid, None)
        for segment in topic.segments:
            self._troubles.pop(segment.uid, None)

    def found_before(self, segment_uids: Iterable[int]) -> None:
        """An earlier process has found damage in these copies, and did not see it mended (C2)."""
        self._found_before = set(segment_uids)

    def look_at_all(self) -> None:
        """After a start, or when much of the metadata came at once: every sealed segment of which this node
        is a replica, and which was not looked at yet, one after the other. None of them is called whole
        before, not even by whoever asks in the next moment."""
        found: list[Place] = []
        here: dict[int, set[int]] = {}
        for topic in self._metadata.state.topics.values():
            for segment in topic.segments:
                is_mine = segment.is_sealed and self._member in segment.replicas
                if is_mine:
                    self.on_change(topic.uid, segment.uid, False)
                is_looked_at = (
                    len(segment.replicas) > 1
                    or segment.lost_from is not None
                    or not segment.is_whole_at(self._member)
                    or segment.uid in self._found_before
                )
                if is_mine and is_looked_at:
                    place = self._copies.place(topic.uid, segment.uid)
                    if segment.uid in self._whole.get(topic.uid, ()):
                        here.setdefault(topic.uid, set()).add(segment.uid)
                    elif place is not None and segment.uid not in self._troubles:
                        found.append(place)
        self._whole = here
        for place in found:
            self._troubles[place.segment.uid] = _Trouble(is_served=len(place.segment.replicas) == 1)
        for uid in self._found_before & self._troubles.keys():
            trouble = self._troubles[uid]
            trouble.damage, trouble.is_marked = "an earlier process found it damaged", True
        self._found_before = set()
        self._has_looked = True
        self._spawn(self._complete_all(found))

    async def _complete_all(self, places: list[Place]) -> None:
        for place in places:
            await self._complete(place, once=True)

    def _ended_it(self, place: Place) -> bool:
        """Whether this very process led the segment to its end, and nothing speaks against its copy."""
        segment = place.segment
        is_own = segment.leader == self._member and segment.sealed_by == self._member
        is_own = is_own and segment.is_whole_at(self._member) and segment.uid not in self._troubles
        # Before the first look this is a start that hears again of what an earlier process did.
        return self._has_looked and is_own and not segment.recovery and segment.lost_from is None

    def _look(self, place: Place) -> None:
        if place.segment.uid not in self._troubles:
            self._troubles[place.segment.uid] = _Trouble(is_served=len(place.segment.replicas) == 1)
            self._spawn(self._complete(place))

    # What readers and the scrub tell.

    def suspect(self, place: Place, damage: str) -> bool:
        """This copy was taken for whole, and damage was found in it. Whether another one is to be asked."""
        segment = place.segment
        uid = segment.uid
        if self._member not in segment.replicas:
            return True  # it was, when this was read
        trouble = self._troubles.get(uid)
        if trouble is not None:
            return not trouble.is_served
        self.found_corrupt.add()
        self._whole.get(place.topic.uid, set()).discard(uid)
        is_only = len(segment.replicas) == 1
        self._troubles[uid] = _Trouble(damage, is_served=is_only)
        what = (
            "the only copy of %s is damaged: %s"
            if is_only
            else "a copy of %s is damaged, and is replaced: %s"
        )
        log.error(what, place.identity.key, damage)
        self._changed(place, is_urgent=True)
        self._spawn(self._complete(place))
        return not is_only

    def read_failed(self, place: Place, error: OSError, read: Read) -> bool:
        """A read of this copy failed, and `read` does it again. Whether another one is to be asked."""
        segment = place.segment
        if self._member not in segment.replicas:
            return True
        trouble = self._troubles.get(segment.uid)
        if trouble is not None:
            return not trouble.is_served
        if len(segment.replicas) == 1:
            return False
        if segment.uid not in self._resting:
            self._resting.add(segment.uid)
            log.warning("a read of %s failed, others are asked for a moment: %s", place.identity.key, error)
            self._spawn(self._rest(place, read if is_medium_error(error) else None))
        return True

    def may_pass(self, place: Place, error: OSError, read: Read) -> bool:
        """The same of a read for another replica: whether this copy is not known to be damaged."""
        if self.is_damaged(place.segment.uid):
            return False
        self.read_failed(place, error, read)
        return True

    async def _rest(self, place: Place, read: Read | None) -> None:
        """`read` is given where the disk could not read: it says whether that has passed."""
        uid = place.segment.uid
        try:
            await asyncio.sleep(REPEAT_SECONDS)
            if read is not None:
                await read()
        except IsterError as error:
            log.debug("%s was not read again: %s", place.identity.key, error)  # who reads it next is told
        except OSError as error:
            now = self._copies.place(place.topic.uid, uid)
            if is_medium_error(error) and now is not None and len(now.segment.replicas) > 1:
                self.suspect(now, read_failed(place.identity.key, "the same place twice", error).message)
        finally:
            self._resting.discard(uid)

    def found_good(self, place: Place) -> None:
        """The whole of a copy was checked, and is as it should be: somebody has mended what was wrong."""
        trouble = self._troubles.get(place.segment.uid)
        if trouble is not None and trouble.is_served and len(place.segment.replicas) == 1:
            del self._troubles[place.segment.uid]
            self._spawn(self._is_good_again(place))
            self._changed(place)

    async def _is_good_again(self, place: Place) -> None:
        try:
            await self._sealed_copies.mark(place, is_damaged=False)
        except (IsterError, OSError) as error:  # then it is looked at once more after the next start
            log.warning("that %s is whole again was not noted: %s", place.identity.key, error)

    # Mending.

    async def _complete(self, place: Place, *, once: bool = False) -> None:
        """Until it is whole; or once, and then behind whoever has others to look at."""
        topic_uid, uid = place.topic.uid, place.segment.uid
        pause = RETRY_SECONDS
        try:
            while (trouble := self._troubles.get(uid)) is not None:
                found = self._copies.place(topic_uid, uid)
                if found is None:
                    await self._copies.forget({uid})  # sealed and trimmed before this was looked at
                    break
                if self._member not in found.segment.replicas:
                    break
                is_only = len(found.segment.replicas) == 1
                await self._remember(found, trouble)
                if is_only and trouble.is_served and trouble.damage:  # it is reported while it is there
                    await asyncio.sleep(LONGEST_PAUSE_SECONDS)
                    continue
                if await self._try(found, trouble):
                    now = self._copies.place(topic_uid, uid)
                    if now is not None and self._member in now.segment.replicas:  # it may have left meanwhile
                        self._is_found_whole(now)
                    break
                if once:
                    self._spawn(self._complete(place))
                    return
                await asyncio.sleep(HOPE_SECONDS if trouble.is_served else pause)
                pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        except InvariantBroken as error:
            log.critical("%s", error.message)
            return  # it stays incomplete, and is not served: somebody has to look (F3)
        self._troubles.pop(uid, None)
        self._changed(place)

    async def _remember(self, place: Place, trouble: _Trouble) -> None:
        if trouble.damage and not trouble.is_marked:
            try:
                await self._sealed_copies.mark(place, is_damaged=True)
            except (IsterError, OSError) as error:
                log.warning("that %s is damaged would be forgotten: %s", place.identity.key, error)
                return
            trouble.is_marked = True

    async def _try(self, place: Place, trouble: _Trouble) -> bool:
        """Make the copy whole; whether it is."""
        is_whole = await self._try_it(place, trouble)
        if not is_whole:
            self._changed(place, is_urgent=bool(trouble.damage))
        return is_whole

    async def _try_it(self, place: Place, trouble: _Trouble) -> bool:
        key, was_served, sources = place.identity.key, trouble.is_served, self._sources(place)
        try:
            finished = await self._sealed_copies.finish(place, sources, is_damaged=bool(trouble.damage))
        except InvariantBroken:
            raise
        except CorruptSegment as error:
            self.found_corrupt.add()
            trouble.damage, trouble.reach = error.message, None
            log.error("the copy of %s here is damaged, and is replaced: %s", key, error)
            return False
        except (IsterError, OSError) as error:
            log.warning("%s is not complete here: %s", key, error)
            trouble.disk, trouble.reach = disk_fault(error), None
            if isinstance(error, OSError) and is_medium_error(error):
                if trouble.is_unreadable:  # a second time: others may have what this disk cannot read
                    trouble.damage = trouble.damage or read_failed(key, "the same place twice", error).message
                trouble.is_unreadable = True
            return False
        trouble.disk = ""
        trouble.is_short = finished is not Finished.WHOLE
        if trouble.is_short and len(place.segment.replicas) == 1:
            trouble.damage = trouble.damage or f"{key} ends short, and this is the only copy"
            trouble.is_served = True
            return False
        trouble.reach = await self._reach(place) if finished is not Finished.WHOLE else None
        if finished is Finished.WHOLE and trouble.damage:
            self.replaced.add()
            log.warning("the damaged copy of %s was replaced", key)
        others = [
            m for m in place.segment.replicas if m != self._member and self._metadata.state.is_active(m)
        ]
        # One that has come back meanwhile was not asked.
        is_hopeless = finished is Finished.NOBODY_HAS_IT and set(others) <= set(sources)
        trouble.is_served = bool(trouble.damage) and is_hopeless
        if trouble.is_served and not was_served:
            log.error("no replica of %s has what is damaged here, it is served as it is", key)
        return finished is Finished.WHOLE

    async def _reach(self, place: Place) -> int | None:
        """How far a copy goes that was not made whole; None as long as all who are to have it may bring the
        rest, and of one of which that cannot be said."""
        nodes = self._metadata.state.nodes
        if all(is_in_cluster(nodes, member) for member in place.segment.replicas):
            return None
        try:
            return (await self._sealed_copies.reach(place)).end_offset
        except (IsterError, OSError) as error:
            log.warning("it is not known how far %s goes here: %s", place.identity.key, error)
            return None

    def _sources(self, place: Place) -> list[int]:
        return [m for m in place.segment.replicas if m != self._member and self._metadata.is_alive(m)]
