"""GET at the node that a client talks to: find the cursor's owner, or become it (S5).

Every topic's GET cursor has one owner, whichever node that is, so that the clients of all nodes share it. A
GET goes to the owner; if there is none, or it does not answer any more, this node claims the cursor and goes
on where the last flush left it. The record counts as done when its whole reply has left for the client, and
is handed out again otherwise.

A GET waits a few seconds at most: for the owner, for a claim, for a record whose node is being replaced. Then
its error says what stood in the way; it is never `EMPTY`.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from ister.broker.text.node import TextNode
from ister.broker.text.settlements import Settlements
from ister.broker.text.shared_cursor import (
    FLUSH_SECONDS,
    SETTLE_SECONDS,
    STOP_SECONDS,
    Delivery,
    DeliveryId,
    SharedCursors,
)
from ister.errors import BadRequest, IsterError, NotLeader, RequestTimeout, ShuttingDown, UnknownTopic
from ister.io.clock import monotonic
from ister.metadata.commands import ClaimCursor, Result
from ister.metadata.state import TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import GetAnswer, GetRequest, GetSettled, PeerKind, node_of

DEADLINE_SECONDS: Final = 5.0
OWNER_GRACE_SECONDS: Final = 0.5
"""How long an owner may seem to be gone before its cursor is claimed: each claim may repeat records."""
FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 0.2
_LEAST_SECONDS: Final = 0.05
NOTHING: Final = GetAnswer(-1)


class Taken(NamedTuple):
    """A record on its way to a client. To be settled, with `done` or `returned`, once."""

    value: bytes
    delivery_id: DeliveryId
    owner: int


class GetService:
    def __init__(
        self,
        node: TextNode,
        *,
        flush_seconds: float = FLUSH_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._node = node
        self._cursors = SharedCursors(node, flush_seconds=flush_seconds, settle_seconds=settle_seconds)
        self._settlements = Settlements(node, keep_seconds=settle_seconds)
        self._deadline_seconds = deadline_seconds
        self._claims: dict[int, asyncio.Lock] = {}
        self._requests = 0
        self._is_stopping = False

    def start(self) -> None:
        self._cursors.start()

    async def stop(self) -> None:
        """To be called when no client is being answered any more: what they took is settled by then."""
        self._is_stopping = True
        await self._settlements.stop(STOP_SECONDS)
        await self._cursors.stop()

    # For the node's own clients.

    async def take(self, name: str) -> Taken | None:
        """The next record of a topic, by its full name; None if there is none now."""
        attempt = _Attempt(monotonic() + self._deadline_seconds)
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(attempt.deadline):
                    return await self._try(name, attempt)
            except TimeoutError as error:
                self._give_up(attempt)
                raise attempt.explain(name) from error
            except asyncio.CancelledError:
                self._give_up(attempt)
                raise
            except IsterError as error:
                if not error.retriable or monotonic() + pause > attempt.deadline:
                    self._give_up(attempt)
                    raise
                attempt.met = error
            try:
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                self._give_up(attempt)
                raise
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def done(self, taken: Taken) -> None:
        """The whole reply has left for the client."""
        if taken.owner == self._node.member:
            self._cursors.done(taken.delivery_id)
        else:
            self._settlements.done(taken.owner, taken.delivery_id)

    def returned(self, taken: Taken) -> None:
        """The client did not get it: somebody else will."""
        if taken.owner == self._node.member:
            self._cursors.returned(taken.delivery_id)
        else:
            self._settlements.returned(taken.owner, taken.delivery_id)

    async def _try(self, name: str, attempt: _Attempt) -> Taken | None:
        if self._is_stopping:
            raise ShuttingDown("this node is stopping")
        topic = self._node.metadata.state.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        me, owner = self._node.member, topic.get_owner
        if owner not in (0, me):
            if self._node.is_alive(owner):
                return await self._ask(owner, topic, attempt)
            if not attempt.is_long_gone(owner):
                raise NotLeader(f"node {node_of(owner)}, which owns the GET cursor of {name}, is not there")
        self._give_up(attempt)
        attempt.is_claiming = True  # which needs the metadata's majority
        await self._own(topic)
        attempt.is_claiming = False
        delivery = await self._cursors.take(topic.uid, me)
        return None if delivery is None else Taken(delivery.value, delivery.delivery_id, me)

    async def _ask(self, owner: int, topic: TopicState, attempt: _Attempt) -> Taken | None:
        """Have the owner hand one out. Asked twice for the same GET, it hands out the same one."""
        if attempt.asked != (owner, topic.uid):
            self._give_up(attempt)
            self._requests += 1
            attempt.asked, attempt.request = (owner, topic.uid), self._requests
        left_ms = int(1000 * max(attempt.left - _LEAST_SECONDS, _LEAST_SECONDS))
        request = GetRequest(topic.uid, self._node.member, attempt.request, left_ms)
        header = await self._node.peer_request(owner, PeerKind.GET, encode_header(request), b"")
        answer = decode_header(GetAnswer, header)
        attempt.asked = None
        if answer.offset < 0:
            return None
        delivery_id = DeliveryId(topic.uid, answer.epoch, answer.offset, answer.attempt)
        return Taken(answer.value, delivery_id, owner)

    def _give_up(self, attempt: _Attempt) -> None:
        """An owner that was asked may have handed something out whose answer got lost."""
        if attempt.asked is not None:
            owner, uid = attempt.asked
            attempt.asked = None
            self._settlements.abandoned(owner, uid, attempt.request)

    # Ownership.

    async def _own(self, topic: TopicState) -> None:
        """Make this node the owner, in this life of it, unless it is. Raises if somebody else is quicker."""
        if self._cursors.owns(topic):
            return
        seen = topic.get_epoch  # that of the owner who was found wanting; the next one may be a good one
        lock = self._claims.setdefault(topic.uid, asyncio.Lock())
        try:
            async with lock:
                await self._claim(topic.uid, seen)
        finally:
            if not lock.locked():
                self._claims.pop(topic.uid, None)

    async def _claim(self, uid: int, seen: int) -> None:
        topic = self._topic(uid)
        if self._cursors.owns(topic):
            return
        if topic.get_epoch != seen:
            raise NotLeader(f"the GET cursor of {topic.name} was claimed by node {node_of(topic.get_owner)}")
        me, epoch = self._node.member, seen + 1
        outcome = await self._node.metadata.propose(ClaimCursor(uid, me, epoch))
        topic = self._topic(uid)
        if outcome.result is Result.APPLIED and (topic.get_owner, topic.get_epoch) == (me, epoch):
            if self._is_stopping:
                raise ShuttingDown("this node is stopping")
            self._cursors.adopt(topic)
        else:
            raise NotLeader(f"the GET cursor of {topic.name} could not be claimed: {outcome.detail}")

    def _topic(self, uid: int) -> TopicState:
        topic = self._node.metadata.state.topic_by_uid(uid)
        if topic is None:
            raise UnknownTopic(f"the topic with uid {uid} is gone")
        return topic

    # For other nodes.

    async def serve_peer(self, kind: int, header: bytes, payload: bytes) -> bytes:
        """Answer `GET`, `GET_DONE` or `GET_RETURNED` of another node: the answer's header."""
        match kind:
            case PeerKind.GET:
                return encode_header(await self._serve_get(decode_header(GetRequest, header)))
            case PeerKind.GET_DONE:
                for row in decode_header(GetSettled, header).rows:
                    self._cursors.done(DeliveryId(*row))
            case PeerKind.GET_RETURNED:
                settled = decode_header(GetSettled, header)
                for row in settled.rows:
                    self._cursors.returned(DeliveryId(*row))
                for uid, member, request in settled.abandoned:
                    self._cursors.abandoned(uid, member, request)
            case _:
                raise BadRequest(f"there is no peer request of kind {kind} about GET")
        return b""

    async def _serve_get(self, request: GetRequest) -> GetAnswer:
        try:
            async with asyncio.timeout(request.wait_ms / 1000):
                delivery = await self._take_for(request)
        except TimeoutError as error:
            raise RequestTimeout(f"no record could be handed out within {request.wait_ms} ms") from error
        if delivery is None:
            return NOTHING
        epoch, attempt = delivery.delivery_id.epoch, delivery.delivery_id.attempt
        return GetAnswer(delivery.offset, epoch, attempt, delivery.value)

    async def _take_for(self, request: GetRequest) -> Delivery | None:
        if self._is_stopping:
            raise ShuttingDown("this node is stopping")
        topic = self._topic(request.topic_uid)
        if topic.get_owner != self._node.member:
            raise NotLeader(f"node {node_of(topic.get_owner)} owns the GET cursor of {topic.name}, not this")
        await self._own(topic)  # it was ours before a restart
        return await self._cursors.take(request.topic_uid, request.member, request.request)


class _Attempt:
    """What one GET has tried so far."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.asked: tuple[int, int] | None = None
        """Owner and topic of a request whose answer has not come."""
        self.request = 0
        self.met: IsterError | None = None
        self.is_claiming = False
        self._gone: tuple[int, float] | None = None

    @property
    def left(self) -> float:
        return self.deadline - monotonic()

    def is_long_gone(self, owner: int) -> bool:
        """Whether this owner has not been there for as long as this GET is looking."""
        now = monotonic()
        if self._gone is None or self._gone[0] != owner:
            self._gone = owner, now
        return now - self._gone[1] >= OWNER_GRACE_SECONDS

    def explain(self, name: str) -> IsterError:
        if self.is_claiming:
            return RequestTimeout(
                f"no record of {name} was handed out: its GET cursor has no owner that answers, and one "
                f"takes a majority of the nodes, which did not answer in time",
                hint=f"Send GET again when they do: METRICS names them. `ister get {name}` reads by offset, "
                f"without the cursor.",
            )
        why = f" (last: {self.met.message})" if self.met is not None else ""
        return RequestTimeout(f"no record of {name} could be had in time{why}", hint="Send GET again.")
