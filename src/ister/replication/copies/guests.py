"""Sealed segments that this node was asked to copy, and is no replica of yet: the taking side of a repair.

Whoever repairs asks for the copy again and again until it is told that all of it is durable here; then it
has the metadata make this node a replica (F4). The copy itself goes on between two questions, one at a time
for all, at the rate that repairs may have. One that nobody asks for any more is given up (`leaving`).

Fault model: whoever repairs may stop at any moment, and another go on in its place; the change of the
metadata may come long after the copy was given up. So then it is looked up whether the copy is here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ister.errors import CorruptFrame, IsterError, NodeUnreachable, NotLeader, Overloaded, StorageFailed
from ister.metadata.store import MetadataStore
from ister.metrics import Counter
from ister.protocol.replication import NOT_YET, Copy, CopyAnswer
from ister.replication.copies.completing import Completions
from ister.replication.copies.copies import Copies
from ister.replication.copies.only_copies import OnlyCopies
from ister.replication.copies.sealed_copies import Finished, SealedCopies
from ister.replication.places import Place

log = logging.getLogger("ister.replication.copies.guests")

WAIT_SECONDS = 5.0
"""How long a question waits for the copy to be done before it is answered with "not yet"."""
UNASKED_SECONDS = 60.0
"""A copy that nobody asked for in so long is given up."""
SWEEP_SECONDS = 10.0
MAX_GUESTS = 64
"""Copies that are begun or done and not this node's yet; whoever asks for more has to wait."""


@dataclass
class _Guest:
    topic_uid: int
    asked_at: float
    task: asyncio.Task[None] | None = None
    is_begun: bool = False
    """What is on disk was copied by this process."""
    is_whole: bool = False

    def begin(self) -> None:
        self.is_begun = True


class Guests:
    def __init__(
        self,
        copies: Copies,
        sealed_copies: SealedCopies,
        completions: Completions,
        only_copies: OnlyCopies,
        metadata: MetadataStore,
        member: int,
        is_ready: Callable[[], bool],
        let_go: Callable[[int, int], None],
    ) -> None:
        """`is_ready` once the files here were compared with the metadata; `let_go` is told of a segment whose
        copy is not wanted here any more."""
        self._copies = copies
        self._sealed_copies = sealed_copies
        self._completions = completions
        self._only_copies = only_copies
        self._metadata = metadata
        self._member = member
        self._is_ready = is_ready
        self._let_go = let_go
        self._guests: dict[int, _Guest] = {}
        self._turn = asyncio.Lock()
        self.copied = Counter("repair_copies_total", "Sealed segments copied here to be a replica of them.")

    def has(self, segment_uid: int) -> bool:
        return segment_uid in self._guests

    async def asked(self, request: Copy) -> CopyAnswer:
        """Have a whole copy of this sealed segment, or begin to. A replica of it says whether it is whole."""
        place = await self._copies.find(request.topic_uid, request.segment_uid, request.index)
        segment = place.segment
        if not segment.is_sealed or segment.data_end is None:
            raise NotLeader(f"{place.identity.key} is open, as far as this node knows")
        done = CopyAnswer(segment.data_end, segment.end_position)
        if self._member in segment.replicas:
            return done if await self._is_whole(place) else CopyAnswer(NOT_YET, 0)
        if not request.source:  # that is all that was asked
            return CopyAnswer(NOT_YET, 0)
        if not self._is_ready():  # it was just started: who asks again soon is not kept waiting
            return CopyAnswer(NOT_YET, 0)
        guest = self._welcome(place, request.source)
        if not guest.is_whole:
            assert guest.task is not None
            await asyncio.wait([guest.task], timeout=WAIT_SECONDS)
        if guest.is_whole:
            return done
        if guest.task is not None and guest.task.done() and not guest.task.cancelled():
            error = guest.task.exception()
            if isinstance(error, IsterError):
                raise error.again()
            if error is not None:
                raise StorageFailed(f"{place.identity.key} cannot be copied: {error}") from error
        return CopyAnswer(NOT_YET, 0)

    async def _is_whole(self, place: Place) -> bool:
        """For a last look: who is the only one reads its copy to the end before it answers (C4)."""
        segment, is_whole = place.segment, self._completions.is_whole
        is_only = not any(one != self._member and segment.is_whole_at(one) for one in segment.replicas)
        if not is_only or not is_whole(segment.uid):
            return is_whole(segment.uid)
        return await self._only_copies.is_good(place) and is_whole(segment.uid)

    def _welcome(self, place: Place, source: int) -> _Guest:
        now = asyncio.get_running_loop().time()
        guest = self._guests.get(place.segment.uid)
        if guest is None:
            if len(self._guests) >= MAX_GUESTS:
                raise Overloaded(f"{MAX_GUESTS} other segments are being copied to this node already")
            guest = self._guests[place.segment.uid] = _Guest(place.topic.uid, now)
        guest.asked_at = now
        if not guest.is_whole and (guest.task is None or guest.task.done()):
            guest.task = asyncio.get_running_loop().create_task(self._copy(guest, place, source))
            guest.task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return guest

    async def _copy(self, guest: _Guest, place: Place, source: int) -> None:
        async with self._turn:
            others = [m for m in place.segment.replicas if self._metadata.is_alive(m)]
            others.sort(key=lambda member: member != source)
            finished = await self._sealed_copies.take_in(
                place, others, is_resumed=guest.is_begun, begins=guest.begin
            )
        match finished:
            case Finished.WHOLE:
                guest.is_whole = True
                self.copied.add()
            case Finished.NOT_YET:
                raise NodeUnreachable(f"no replica of {place.identity.key} could be read from")
            case Finished.NOBODY_HAS_IT:
                raise CorruptFrame(f"no replica of {place.identity.key} that answers has it whole")

    # The end of a visit.

    def joined(self, segment_uid: int) -> bool:
        """The metadata made this node a replica of it. Whether the copy is here, and whole."""
        guest = self._guests.pop(segment_uid, None)
        if guest is not None and guest.task is not None and not guest.task.done():
            guest.task.cancel()
        return guest is not None and guest.is_whole

    def now_replicas(self) -> list[Place]:
        """The segments whose copies are, or were to be, made here, and that the metadata counts by now."""
        places = (self._copies.place(guest.topic_uid, uid) for uid, guest in self._guests.items())
        return [place for place in places if place is not None and self._member in place.segment.replicas]

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            for uid, guest in list(self._guests.items()):
                is_gone = self._copies.place(guest.topic_uid, uid) is None
                if is_gone or now - guest.asked_at >= UNASKED_SECONDS:
                    await self._send_away(uid, guest)

    async def _send_away(self, uid: int, guest: _Guest) -> None:
        log.info("a copy that nobody asks for any more is given up", extra={"fields": {"segment_uid": uid}})
        if self._guests.get(uid) is guest:
            del self._guests[uid]
        if guest.task is not None and not guest.task.done():
            guest.task.cancel()
            await asyncio.wait([guest.task])
        self._let_go(guest.topic_uid, uid)

    async def close(self) -> None:
        running = [one.task for one in self._guests.values() if one.task is not None and not one.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
