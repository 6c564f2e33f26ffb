"""Subscriptions at a node: find the owner of one, or become it, and do what its consumers ask for.

Every subscription has one owner, assigned in the metadata with an epoch (S1). It is the topic's leader when
the first consumer comes, and stays it when the topic is handed on: leaders change with every rollover, and
each change of owner may deliver records again. When the owner does not answer any more, the topic's leader of
then claims it, or the node that is asked, and goes on where the last flush left it.

A consumer may ask any node: what is not the owner passes it on, and the answer names the owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ister.broker.forward.forwarding import REQUEST_SECONDS
from ister.broker.subscriptions.flushing import FLUSH_SECONDS, GRACE_SECONDS, Flushing
from ister.broker.subscriptions.owned import Owned
from ister.broker.subscriptions.policy import DeadLetters
from ister.broker.subscriptions.requests import check_new, check_offset, check_policy, describe
from ister.broker.topic.topic_log import TopicLog
from ister.errors import (
    BadRequest,
    IsterError,
    NotLeader,
    Overloaded,
    ShuttingDown,
    SubscriptionExists,
    UnknownSubscription,
    UnknownTopic,
)
from ister.io.clock import monotonic
from ister.logs import fields
from ister.metadata.commands import (
    ClaimSubscription,
    Command,
    CreateSubscription,
    DeleteSubscription,
    DeleteTopic,
    Outcome,
    PauseSubscription,
    RequestMove,
    Result,
    SeekSubscription,
)
from ister.metadata.topics import SubscriptionState, TopicState
from ister.names import normalise_topic
from ister.protocol import subscriptions as messages
from ister.protocol.codec import Bytes, decode_header, encode_header
from ister.protocol.messages import LATEST, Fetch, Kind, ListOffsets
from ister.protocol.peer import node_of

if TYPE_CHECKING:
    from ister.broker.clients.connection import Connection
    from ister.broker.clients.requests import Requests
    from ister.broker.clients.server import Server
    from ister.metadata.replicated import ReplicatedMetadata

log = logging.getLogger("ister.broker.subscriptions")

MAX_SUBSCRIPTIONS: Final = 1_000
"""Of one topic."""
MAX_WAIT_MS: Final = 60_000
PASSED_WAIT_MS: Final = 5_000
"""A node that passes a request on does not hear when its consumer goes away: it asks again now and then."""
OWNER_GRACE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.5
STOP_SECONDS: Final = 2.0


class Subscriptions:
    def __init__(self, server: Server, requests: Requests, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._broker = server.broker
        self._requests = requests
        self._flushing = Flushing(self, flush_seconds)
        self._dead_letters = DeadLetters(server.broker)
        self._owned: dict[int, Owned] = {}
        self._claims: dict[int, asyncio.Lock] = {}
        self._silent_since: dict[int, tuple[int, float]] = {}
        """By subscription: an owner that does not answer, and since when."""
        self._connections: dict[Connection, dict[tuple[int, int], None]] = {}
        """The consumers that ask by a connection of their own, by subscription."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    def start(self) -> None:
        self.metadata.watch(self._applied)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._flushing.keep(), name="subscriptions-flush"),
            loop.create_task(self._keep_looking(), name="subscriptions-look"),
        ]

    async def stop(self) -> None:
        """Store what was acknowledged; nothing is handed out any more."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                for owned in self._owned.values():
                    if owned.row() != owned.stored:
                        self._flushing.note(owned, 0)
                await self._flushing.flush()
        except TimeoutError:
            log.warning("subscriptions could not be stored within %.0f s: records repeat", STOP_SECONDS)
        for owned in list(self._owned.values()):
            self.drop(owned)

    @property
    def metadata(self) -> ReplicatedMetadata:
        return self._broker.metadata

    # What this node owns.

    def state_of(self, owned: Owned) -> SubscriptionState | None:
        topic = self.metadata.state.topic_by_uid(owned.topic_uid)
        return topic.subscription_by_uid(owned.uid) if topic is not None else None

    def owns(self, owned: Owned) -> bool:
        """Whether it is this node's still, in this epoch."""
        state = self.state_of(owned)
        return (
            self._owned.get(owned.uid) is owned
            and state is not None
            and (state.owner, state.epoch) == (self.metadata.member, owned.epoch)
        )

    def drop(self, owned: Owned) -> None:
        if self._owned.get(owned.uid) is owned:
            del self._owned[owned.uid]
        self._flushing.forget(owned)
        owned.close()

    def validate(self) -> None:
        """Raises unless the books of all that this node owns are right."""
        for owned in self._owned.values():
            owned.dispatcher.validate()

    def _current(self, owned: Owned) -> TopicState:
        topic = self.metadata.state.topic_by_uid(owned.topic_uid)
        if topic is None or topic.subscription_by_uid(owned.uid) is None:
            self.drop(owned)
            raise UnknownSubscription(f"the subscription {owned.name} was deleted")
        if not self.owns(owned) or self._is_stopping:
            self.drop(owned)
            raise NotLeader(f"this node does not own {owned.name} of {topic.name} any more")
        since = owned.unstored_since
        if since is not None and monotonic() - since > GRACE_SECONDS:
            raise NotLeader(
                f"what was acknowledged of {owned.name} could not be stored for {GRACE_SECONDS:.0f} s",
                hint="It goes on once a majority of the nodes is up: `ister cluster status` names them.",
            )
        return topic

    def _is_paused(self, owned: Owned) -> bool:
        state = self.state_of(owned)
        return state is not None and state.paused

    def _applied(self, command: Command | None, outcome: Outcome) -> None:
        if not outcome.ok:
            return
        match command:
            case DeleteTopic(topic_uid=uid):
                for owned in [one for one in self._owned.values() if one.topic_uid == uid]:
                    self.drop(owned)
            case DeleteSubscription(uid=uid) | ClaimSubscription(uid=uid) | SeekSubscription(uid=uid):
                found = self._owned.get(uid)
                if found is not None and not self.owns(found):
                    self.drop(found)
            case PauseSubscription(uid=uid) if uid in self._owned:
                self._owned[uid].wake()
            case RequestMove(topic_uid=uid) if any(one.topic_uid == uid for one in self._owned.values()):
                # The topic is unloaded, and its node perhaps with it: what is acknowledged is not to wait.
                self._flushing.hurry()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = monotonic()
            for owned in list(self._owned.values()):
                owned.look(now)

    def connection_lost(self, connection: Connection) -> None:
        for uid, consumer in self._connections.pop(connection, {}):
            owned = self._owned.get(uid)
            if owned is not None:
                owned.connection_lost(consumer)

    # Finding the owner.

    async def _find(self, topic_name: str, name: str, min_index: int, uid: int = 0) -> SubscriptionState:
        topic = await self._broker.find(topic_name, min_index)
        state = _subscription(topic.state, name, uid)
        if state is None and not self.metadata.is_alone:
            await self.metadata.read_index(OWNER_GRACE_SECONDS * 4)
            state = _subscription((await self._broker.find(topic_name)).state, name, uid)
        if state is None:
            raise UnknownSubscription(f"{topic.state.name} has no subscription {name}")
        return state

    async def _owner(self, topic: TopicLog, state: SubscriptionState, *, here_only: bool) -> int:
        """The member that has it; this one, if it is to be: then it owns it when this returns."""
        me, metadata = self.metadata.member, self.metadata
        owner = state.owner
        if owner not in (0, me) and not self._is_silent(state):
            chosen = owner
        elif owner == me:
            chosen = me
        else:
            leader = topic.state.open_segment.leader
            chosen = leader if leader not in (me, owner) and metadata.is_alive(leader) else me
        if chosen == me:
            await self._own(topic.state.uid, state.uid, state.epoch)
        elif here_only:
            raise NotLeader(
                f"node {node_of(chosen)} has {state.name} of {topic.state.name}, and not this one"
            )
        return chosen

    def _is_silent(self, state: SubscriptionState) -> bool:
        """Whether its owner has not answered for long enough; raises while that is not clear."""
        owner = state.owner
        if self.metadata.is_alive(owner):
            self._silent_since.pop(state.uid, None)
            return False
        now = monotonic()
        known, since = self._silent_since.get(state.uid, (0, now))
        if known != owner:
            self._silent_since[state.uid] = known, since = owner, now
        if now - since < OWNER_GRACE_SECONDS:
            raise NotLeader(f"node {node_of(owner)}, which owns {state.name}, does not answer")
        return True

    async def _own(self, topic_uid: int, uid: int, seen: int) -> Owned:
        found = self._owned.get(uid)
        if found is not None and self.owns(found):
            return found
        async with self._claims.setdefault(uid, asyncio.Lock()):
            found = self._owned.get(uid)
            if found is not None and self.owns(found):
                return found
            return await self._claim(topic_uid, uid, seen)

    async def _claim(self, topic_uid: int, uid: int, seen: int) -> Owned:
        if self._is_stopping:
            raise ShuttingDown("this node is stopping")
        me = self.metadata.member
        outcome = await self.metadata.propose(ClaimSubscription(topic_uid, uid, me, seen + 1))
        topic = self.metadata.state.topic_by_uid(topic_uid)
        state = topic.subscription_by_uid(uid) if topic is not None else None
        if topic is None or state is None:
            raise UnknownSubscription("the subscription was deleted")
        if (state.owner, state.epoch) != (me, seen + 1):
            raise NotLeader(f"{state.name} of {topic.name} could not be claimed: {outcome.detail}")
        end = await self._end_of(topic)
        topic = self.metadata.state.topic_by_uid(topic_uid)
        state = topic.subscription_by_uid(uid) if topic is not None else None
        if topic is None or state is None or (state.owner, state.epoch) != (me, seen + 1):
            raise NotLeader("the subscription changed hands again")
        self._owned[uid] = owned = Owned(
            topic,
            state,
            self,
            self._dead_letters,
            self._current,
            self._flushing.note,
            self._is_paused,
            end,
        )
        log.info(
            "subscription taken over",
            extra=fields(topic=topic.name, subscription=state.name, epoch=state.epoch, cursor=state.cursor),
        )
        return owned

    async def _end_of(self, topic: TopicState) -> int:
        """Where the topic ends, for what may have been delivered by an earlier owner; no end if nobody
        says."""
        try:
            return await self._requests.offset_at(ListOffsets(topic.name, [LATEST]), LATEST)
        except IsterError:
            return 1 << 62

    # The records, for `Owned`.

    async def read(self, request: Fetch) -> bytes:
        return await self._requests.read(request)

    async def wait(self, topic: str, offset: int, seconds: float) -> None:
        await self._requests.wait(topic, offset, seconds)

    # Requests of clients.

    async def create(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.CreateSubscription, header)
        check_new(request)
        policy = request.policy
        check_policy(policy)
        if policy.dead_letter_topic:
            named = normalise_topic(policy.dead_letter_topic, self._broker.config.max_topic_name)
            policy = msgspec.structs.replace(policy, dead_letter_topic=named)
        topic = await self._broker.find(request.topic)
        known = topic.state.subscription(request.name)
        if known is None and len(topic.state.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Overloaded(
                f"{topic.state.name} has {MAX_SUBSCRIPTIONS} subscriptions",
                hint="`ister subscription list` shows them; delete those that nobody uses.",
            )
        if known is None:
            cursor = await self._place(topic, request.name, request.offset, request.at_us)
            command = CreateSubscription(
                topic.state.uid, request.name, request.kind, cursor, self._broker.clock.now_us(), policy
            )
            outcome = await self.metadata.propose(command)
            topic = await self._broker.find(request.topic)
            known = topic.state.subscription(request.name)
            if known is None:
                raise UnknownTopic(f"topic {request.topic} was deleted meanwhile: {outcome.detail}")
            if outcome.result is not Result.CREATED and not request.if_absent:
                raise SubscriptionExists(f"{topic.state.name} has a subscription {request.name} already")
        elif not request.if_absent:
            raise SubscriptionExists(f"{topic.state.name} has a subscription {request.name} already")
        if known.kind != request.kind:
            raise SubscriptionExists(
                f"the subscription {request.name} of {topic.state.name} is {known.kind}, not {request.kind}"
            )
        self._requests.respond(connection, correlation, describe(topic.state, known))

    async def _place(self, topic: TopicLog, subscription: str, offset: int, at_us: int) -> int:
        """Where it begins. An offset must be in the topic, or its end: a cursor is never ahead of the log."""
        name = topic.state.name
        if at_us >= 0:
            return await self._requests.offset_at(ListOffsets(name, [at_us]), at_us)
        if offset < 0:
            return await self._requests.offset_at(ListOffsets(name, [offset]), offset)
        end = await self._requests.offset_at(ListOffsets(name, [LATEST]), LATEST)
        start = topic.state.start_offset
        if not start <= offset <= end:
            raise BadRequest(
                f"{subscription} cannot be at offset {offset}: {name} has {start} to {end}",
                hint="Give an offset in the topic, or 'earliest' or 'latest'.",
            )
        return offset

    async def seek(self, connection: Connection, correlation: int, header: bytes) -> None:
        """Another epoch begins there: whoever owns it, and all that is on its way, is of the one before."""
        request = decode_header(messages.SeekSubscription, header)
        check_offset(request.name, request.offset, request.at_us)
        state = await self._find(request.topic, request.name, 0)
        topic = await self._broker.find(request.topic)
        cursor = await self._place(topic, request.name, request.offset, request.at_us)
        while True:
            command = SeekSubscription(topic.state.uid, state.uid, state.epoch + 1, cursor)
            outcome = await self.metadata.propose(command)
            state = await self._find(request.topic, request.name, 0, state.uid)
            if outcome.ok or (state.epoch, state.cursor) == (command.epoch, cursor):
                break  # else somebody claimed it meanwhile
        self._requests.respond(connection, correlation, describe(topic.state, state))

    async def pause(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.PauseSubscription, header)
        state = await self._find(request.topic, request.name, 0)
        topic = await self._broker.find(request.topic)
        await self.metadata.propose(PauseSubscription(topic.state.uid, state.uid, request.paused))
        state = await self._find(request.topic, request.name, 0, state.uid)
        self._requests.respond(connection, correlation, describe(topic.state, state))

    async def delete(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.DeleteSubscription, header)
        state = await self._find(request.topic, request.name, 0, request.uid)
        topic = await self._broker.find(request.topic)
        await self.metadata.propose(DeleteSubscription(topic.state.uid, state.uid))
        self._requests.respond(connection, correlation, describe(topic.state, state))

    async def list_(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.ListSubscriptions, header)
        if not self.metadata.is_alone:
            try:
                await self.metadata.read_index(STOP_SECONDS)
            except IsterError as error:
                log.debug("this view may be old: %s", error)
        found = [
            describe(topic.state, state)
            for name, topic in sorted(self._broker.topics.items())
            if name.startswith(request.prefix)
            for state in topic.state.subscriptions
            if request.name in ("", state.name)
        ]
        self._requests.respond(connection, correlation, messages.SubscriptionList(found))

    async def pull(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.Pull, header)
        until = monotonic() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        state = await self._find(request.topic, request.subscription, request.min_index, request.uid)
        if request.kind not in ("", state.kind):
            raise SubscriptionExists(f"the subscription {state.name} is {state.kind}, not {request.kind}")
        topic = await self._broker.find(request.topic)
        owner = await self._owner(topic, state, here_only=request.here_only)
        if owner != self.metadata.member:
            wait_ms = min(request.wait_ms, PASSED_WAIT_MS)
            passed = msgspec.structs.replace(
                request, here_only=True, wait_ms=wait_ms, min_index=self.metadata.state.applied_index
            )
            await self._pass_on(connection, correlation, owner, Kind.PULL, passed, wait_ms / 1000)
            return
        owned = self._owned[state.uid]
        if not request.here_only:
            self._connections.setdefault(connection, {})[state.uid, request.consumer] = None
        ranges, payload = await owned.pull(request, until)
        answer = encode_header(messages.Pulled(self._broker.config.node_id, owned.epoch, owned.uid, ranges))
        await _respond(connection, correlation, answer, payload)

    async def settle(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_header(messages.Settle, header)
        state = await self._find(request.topic, request.subscription, request.min_index, request.uid)
        topic = await self._broker.find(request.topic)
        owner = await self._owner(topic, state, here_only=request.here_only)
        if owner != self.metadata.member:
            index = self.metadata.state.applied_index
            passed = msgspec.structs.replace(request, here_only=True, min_index=index)
            await self._pass_on(connection, correlation, owner, Kind.SETTLE, passed, 0.0)
            return
        owned = self._owned[state.uid]
        self._current(owned)
        try:
            if request.acknowledged:
                owned.acknowledge(request.epoch, request.acknowledged)
            if request.refused:
                owned.refuse(request.epoch, request.consumer, request.refused)
            if request.durable:
                await self._flushing.store(owned)
        finally:
            if request.leaves:
                owned.leave(request.consumer)
        if not request.leaves:
            owned.keep_alive(request.consumer)
        self._requests.respond(connection, correlation, messages.Settled(self._broker.config.node_id))

    async def _pass_on(
        self,
        connection: Connection,
        correlation: int,
        owner: int,
        kind: Kind,
        request: msgspec.Struct,
        wait_s: float,
    ) -> None:
        answer = await self._broker.forwarder.request(
            owner, kind, encode_header(request), timeout_s=REQUEST_SECONDS + wait_s, wait_s=wait_s
        )
        await _respond(connection, correlation, answer.header, [answer.payload] if answer.payload else [])


def _subscription(topic: TopicState, name: str, uid: int) -> SubscriptionState | None:
    """The one of that name, or the very one that is meant: there may be many of a topic."""
    if not uid:
        return topic.subscription(name)
    found = topic.subscription_by_uid(uid)
    return found if found is not None and found.name == name else None


async def _respond(connection: Connection, correlation: int, header: bytes, payload: Sequence[Bytes]) -> None:
    """With its share of the memory of answers, if it needs any: of nothing there is no share to be had."""
    size = sum(map(len, payload))
    if not size:
        connection.respond(correlation, header, [])
        return
    with await connection.room_for(size, size):
        connection.respond(correlation, header, list(payload))
