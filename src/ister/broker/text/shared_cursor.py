"""The owner's side of GET: one cursor per topic, shared by the clients of all nodes (S5).

A record is handed out, and is done when its reply has left for the client; until then it may come back: from
a node whose client went away, from a node that went away itself, or after a bound because nobody said
anything. What came back is handed out again before anything new.

How far the cursors have come is stored through the metadata, one command for all topics at most every
`flush_seconds`. An owner that dies takes what it has not stored with it: those records are repeated by the
next owner, and none is skipped. A cursor has an epoch, raised at each change of owner and each life of one
(S1); whoever finds that its epoch is over stops handing out, and what it still flushes is refused. An owner
that can't store its cursors for `GRACE_SECONDS` stops by itself: it may not be the owner any more.

Failures: an error of reading goes to the GET that met it, and leaves the cursor where it was (W7). Records
that retention dropped before anybody got them are passed over with a warning, never in silence. Records that
an operator gave up (F6) are an error once, with their whole range, and then passed over: nothing would ever
bring them back, and the topic's other records are to be had.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from ister.broker.subscriptions.dispatch import Dispatcher
from ister.broker.subscriptions.handing_out import MAX_PIECES
from ister.broker.text.node import TextNode
from ister.errors import IsterError, NotLeader, Overloaded, RecordsLost, RequestTimeout, UnknownTopic
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.commands import ClaimCursor, Command, DeleteTopic, FlushCursors, Outcome
from ister.metadata.state import TopicState
from ister.protocol.peer import node_of

log = logging.getLogger("ister.broker.get")

FLUSH_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
"""How often it is looked whether those who hold records are still there."""
STOP_SECONDS: Final = 2.0
ROWS_IN_A_FLUSH: Final = 1_000


class DeliveryId(NamedTuple):
    """Names one handing-out of one record; the wire has it in this order."""

    topic_uid: int
    epoch: int
    offset: int
    attempt: int


class Delivery(NamedTuple):
    offset: int
    value: bytes
    delivery_id: DeliveryId


class _Handed(NamedTuple):
    holder: int
    request: int
    deadline: float


class _Owned:
    """A topic's cursor while this node owns it. It is kept as a shared subscription's is (`dispatch`): what
    came back is handed out again before anything new, and whoever says that a record is done is believed."""

    def __init__(self, topic: TopicState) -> None:
        self.uid = topic.uid
        self.epoch = topic.get_epoch
        self.dispatcher = Dispatcher(topic.get_offset)
        self.stored = topic.get_offset
        self.reading = asyncio.Lock()
        self.unstored_since: float | None = None


class SharedCursors:
    """All the cursors that this node owns."""

    def __init__(
        self, node: TextNode, *, flush_seconds: float = FLUSH_SECONDS, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self._node = node
        self._flush_seconds = flush_seconds
        self._settle_seconds = settle_seconds
        self._owned: dict[int, _Owned] = {}
        self._handed: dict[DeliveryId, _Handed] = {}
        """In the order of their deadlines."""
        self._requests: dict[tuple[int, int, int], DeliveryId] = {}
        """By topic, holder and its request: what is handed out to whom."""
        self._in_work: dict[tuple[int, int, int], bool] = {}
        """Requests that wait for their record; True for those whose asker gave up meanwhile."""
        self._dirty: dict[int, None] = {}
        self._is_dirty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        node.metadata.watch(self._applied)

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_flushing(), name="get-flush"),
            loop.create_task(self._keep_looking(), name="get-look"),
        ]

    async def stop(self) -> None:
        """Store what is done; nothing is handed out any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for owned in self._owned.values():
            self._note(owned)  # also what a flush that was under way may not have stored
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._flush()
        except TimeoutError:
            log.warning("GET cursors could not be stored within %.0f s: some records repeat", STOP_SECONDS)
        for uid in list(self._owned):
            self._drop(uid)

    # Ownership.

    def owns(self, topic: TopicState) -> bool:
        """Whether this node, in this life, is the topic's owner."""
        owned = self._owned.get(topic.uid)
        return owned is not None and topic.get_owner == self._node.member and topic.get_epoch == owned.epoch

    def adopt(self, topic: TopicState) -> None:
        """The claim was applied: go on where the last owner's flushes end."""
        self._drop(topic.uid)
        self._owned[topic.uid] = _Owned(topic)
        log.info(
            "GET cursor taken over",
            extra=fields(topic=topic.name, epoch=topic.get_epoch, offset=topic.get_offset),
        )

    def _drop(self, uid: int) -> None:
        if self._owned.pop(uid, None) is None:
            return
        self._dirty.pop(uid, None)
        for delivery_id in [found for found in self._handed if found.topic_uid == uid]:
            self._forget(delivery_id)

    def _applied(self, command: Command | None, outcome: Outcome) -> None:
        match command:
            case DeleteTopic(topic_uid=uid) if outcome.ok:
                self._drop(uid)
            case ClaimCursor(topic_uid=uid, owner=owner) if outcome.ok and owner != self._node.member:
                self._drop(uid)

    def _current(self, uid: int) -> tuple[TopicState, _Owned]:
        """The topic and its cursor, or why there is nothing to hand out here."""
        topic = self._node.metadata.state.topic_by_uid(uid)
        if topic is None:
            self._drop(uid)
            raise UnknownTopic(f"the topic with uid {uid} is gone")
        owned = self._owned.get(uid)
        if owned is None or not self.owns(topic):
            self._drop(uid)
            raise NotLeader(f"this node does not own the GET cursor of {topic.name}")
        return topic, owned

    # Handing out.

    async def take(self, uid: int, holder: int, request: int = 0) -> Delivery | None:
        """The next record for a client of node `holder`; None if there is none.

        The same request asked again gets the same record, as long as that was not settled.
        """
        if not request:
            return await self._take(uid, holder, request)
        self._in_work[uid, holder, request] = False
        try:
            return await self._take(uid, holder, request)
        finally:
            self._in_work.pop((uid, holder, request), None)

    async def _take(self, uid: int, holder: int, request: int) -> Delivery | None:
        topic, owned = self._current(uid)
        async with owned.reading:
            again = self._requests.get((uid, holder, request))
            if again is not None:
                return await self._repeat(owned, again)
            self._refuse_if_stuck(topic, owned)
            while True:
                topic, owned = self._same(owned)
                self._pass_trimmed(topic, owned)
                candidate = owned.dispatcher.candidate
                offset, is_repeat = candidate.start, candidate.end is not None
                try:
                    found = await self._node.read_one(topic.name, offset)
                except RecordsLost as error:
                    if not self._in_work.get((uid, holder, request)):  # else nobody would be told
                        self._pass_lost(*self._same(owned), error)
                    raise
                topic, owned = self._same(owned)
                if offset != owned.dispatcher.candidate.start:
                    continue  # something came back, was done or trimmed while we read
                if found is None:
                    if is_repeat:
                        raise _unreadable(topic, offset)
                    return None
                if self._in_work.get((uid, holder, request)):
                    raise RequestTimeout(f"node {node_of(holder)} gave up on its GET of {topic.name}")
                if found[0] == offset:
                    return self._hand_out(owned, found[1], holder, request)
                _tell_gone(topic, owned.dispatcher.pass_over(offset, found[0]), found[0])
                self._note(owned)

    def _same(self, owned: _Owned) -> tuple[TopicState, _Owned]:
        """Still this very cursor: not one that was lost and claimed again while somebody waited."""
        topic, now = self._current(owned.uid)
        if now is not owned:
            raise NotLeader(f"the GET cursor of {topic.name} changed hands")
        return topic, owned

    async def _repeat(self, owned: _Owned, delivery_id: DeliveryId) -> Delivery:
        topic, _ = self._same(owned)
        found = await self._node.read_one(topic.name, delivery_id.offset)
        self._same(owned)
        if found is None or found[0] != delivery_id.offset:
            raise _unreadable(topic, delivery_id.offset)
        return Delivery(delivery_id.offset, found[1], delivery_id)

    def _hand_out(self, owned: _Owned, value: bytes, holder: int, request: int) -> Delivery:
        offset = owned.dispatcher.candidate.start
        attempt = owned.dispatcher.hand_out(holder, request, offset, offset + 1)
        delivery_id = DeliveryId(owned.uid, owned.epoch, offset, attempt)
        deadline = monotonic() + self._settle_seconds
        self._handed[delivery_id] = _Handed(holder, request, deadline)
        if request:
            self._requests[owned.uid, holder, request] = delivery_id
        return Delivery(offset, value, delivery_id)

    def _refuse_if_stuck(self, topic: TopicState, owned: _Owned) -> None:
        since = owned.unstored_since
        if since is not None and monotonic() - since > GRACE_SECONDS:
            raise NotLeader(
                f"the GET cursor of {topic.name} could not be stored for {GRACE_SECONDS:.0f} s",
                hint="Ask again once a majority of the nodes is up: METRICS names them.",
            )
        if owned.dispatcher.pieces >= MAX_PIECES:
            raise Overloaded(
                f"{owned.dispatcher.unacknowledged} records of {topic.name} from offset "
                f"{owned.dispatcher.cursor} on were handed out, and their clients have not taken them yet",
                hint=f"Ask again: they are handed out anew within {self._settle_seconds:.0f} s.",
            )

    def _pass_lost(self, topic: TopicState, owned: _Owned, error: RecordsLost) -> None:
        """The GET that met them is told of all of them; the next one gets what lies behind them (F6)."""
        if error.offsets is not None:
            passed = owned.dispatcher.pass_over(*error.offsets)
            log.warning(
                "GET passes over records that were given up",
                extra=fields(topic=topic.name, records=passed, goes_on_at=error.offsets[1]),
            )
            self._note(owned)

    def _pass_trimmed(self, topic: TopicState, owned: _Owned) -> None:
        dispatcher, start = owned.dispatcher, topic.start_offset
        if start > dispatcher.cursor:
            handed = sum(max(0, min(end, start) - low) for low, end, _ in dispatcher.handed)
            lost = dispatcher.pass_over(dispatcher.cursor, start) - handed
            if lost:
                _tell_gone(topic, lost, start)
            self._note(owned)

    # Settling.

    def done(self, delivery_id: DeliveryId) -> None:
        """The whole reply has left for the client."""
        self._forget(delivery_id)
        owned = self._owner_of(delivery_id)
        if owned is not None:
            offset = delivery_id.offset
            latest = owned.dispatcher.handed.at(offset)
            if latest is not None:
                self._forget(delivery_id._replace(attempt=latest[2].attempt))  # it need not come back
            if owned.dispatcher.acknowledge(offset, offset + 1):
                self._note(owned)

    def returned(self, delivery_id: DeliveryId) -> None:
        """The client did not get it. Only the latest attempt can give it back."""
        self._forget(delivery_id)
        owned = self._owner_of(delivery_id)
        latest = owned.dispatcher.handed.at(delivery_id.offset) if owned is not None else None
        if owned is not None and latest is not None and latest[2].attempt == delivery_id.attempt:
            offset, holder = delivery_id.offset, latest[2].consumer
            owned.dispatcher.refuse(holder, offset, offset + 1, 0.0, 0.0, "its client did not take it")

    def abandoned(self, uid: int, holder: int, request: int) -> None:
        """The asker gave up on a request, and can't know whether something was handed out for it."""
        key = (uid, holder, request)
        if key in self._in_work:
            self._in_work[key] = True
        delivery_id = self._requests.get(key)
        if delivery_id is not None:
            self.returned(delivery_id)

    def _owner_of(self, delivery_id: DeliveryId) -> _Owned | None:
        owned = self._owned.get(delivery_id.topic_uid)
        return owned if owned is not None and owned.epoch == delivery_id.epoch else None

    def _forget(self, delivery_id: DeliveryId) -> None:
        handed = self._handed.pop(delivery_id, None)
        if handed is not None and handed.request:
            self._requests.pop((delivery_id.topic_uid, handed.holder, handed.request), None)

    async def _keep_looking(self) -> None:
        """Take back what nobody settles."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = monotonic()
            for delivery_id, handed in list(self._handed.items()):
                if handed.deadline <= now or not self._is_there(handed.holder):
                    log.info("record not settled, handed out again", extra=fields(**delivery_id._asdict()))
                    self.returned(delivery_id)

    def _is_there(self, member: int) -> bool:
        return member == self._node.member or self._node.is_alive(member)

    # Storing.

    def _note(self, owned: _Owned) -> None:
        if owned.dispatcher.cursor > owned.stored:
            if owned.unstored_since is None:
                owned.unstored_since = monotonic()
            self._dirty[owned.uid] = None
            self._is_dirty.set()

    async def _keep_flushing(self) -> None:
        while True:
            await self._is_dirty.wait()
            self._is_dirty.clear()
            await self._flush()
            await asyncio.sleep(self._flush_seconds)
            if self._dirty:
                self._is_dirty.set()

    async def _flush(self) -> None:
        dirty, self._dirty = list(self._dirty), {}
        rows = [
            (uid, owned.epoch, owned.dispatcher.cursor)
            for uid in dirty
            if (owned := self._owned.get(uid)) is not None
        ]
        for first in range(0, len(rows), ROWS_IN_A_FLUSH):
            batch = rows[first : first + ROWS_IN_A_FLUSH]
            try:
                await self._node.metadata.propose(FlushCursors(self._node.member, batch))
            except IsterError as error:
                log.warning("GET cursors not stored yet: %s", error.message)
                self._dirty.update((uid, None) for uid, _, _ in batch if uid in self._owned)
                continue
            for uid, epoch, offset in batch:
                self._stored(uid, epoch, offset)

    def _stored(self, uid: int, epoch: int, offset: int) -> None:
        """See what came of a row: the metadata says whose the cursor is."""
        owned = self._owned.get(uid)
        if owned is None or owned.epoch != epoch:
            return
        topic = self._node.metadata.state.topic_by_uid(uid)
        if topic is None or not self.owns(topic) or topic.get_offset < offset:
            log.warning("GET cursor lost", extra=fields(topic_uid=uid, epoch=epoch, offset=offset))
            self._drop(uid)
            return
        owned.stored = topic.get_offset
        owned.unstored_since = None
        self._note(owned)


def _tell_gone(topic: TopicState, count: int, goes_on_at: int) -> None:
    log.warning(
        "GET passes over records that nobody got and that are not in the log any more",
        extra=fields(topic=topic.name, records=count, goes_on_at=goes_on_at),
    )


def _unreadable(topic: TopicState, offset: int) -> NotLeader:
    # A node that lags behind says that the log ends before it: its place in the line is kept.
    return NotLeader(f"offset {offset} of {topic.name} was handed out before and can't be read now")
