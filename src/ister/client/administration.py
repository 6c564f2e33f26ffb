"""What a client asks about topics and nodes. Everything here is a request that may be sent again.

Each call is repeated after errors that may pass, until `retry_deadline_s`. Where a repeat could find its own
earlier attempt done, as with a topic made or deleted, it says so or takes it for done.

A topic that was made or deleted is remembered with the metadata index of that, which the later requests for
its name carry: a node that is behind then means the same topic (I3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from ister.client.connection import Answer
from ister.client.reader import Place, microseconds, reading_key, topic_of, wire_place
from ister.client.retry import Retries
from ister.client.routing import Routes
from ister.errors import (
    IsterError,
    SubscriptionExists,
    TopicExists,
    UnknownSubscription,
    UnknownTopic,
)
from ister.io.clock import Clock
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.history import (
    Explain,
    Explanation,
    HistoryList,
    HistorySwept,
    ListHistory,
    LookedUp,
    LookUp,
    ObjectVerified,
    SweepHistory,
    VerifyObject,
)
from ister.protocol.messages import (
    LATEST,
    AddNode,
    AlterTopic,
    Cluster,
    ClusterAnswer,
    Control,
    CreateTopic,
    Deleted,
    DeleteTopic,
    DescribeTopic,
    Empty,
    Fetch,
    FetchAnswer,
    Kind,
    ListOffsets,
    ListOffsetsAnswer,
    ListPins,
    ListTopics,
    NodeAnswer,
    NodeRequest,
    PinDescription,
    PinList,
    Pinned,
    PinTopic,
    RecoverTopic,
    StatsAnswer,
    TopicDescription,
    TopicList,
    Trimmed,
    TrimTopic,
)
from ister.protocol.moves import (
    ActivateNode,
    Balance,
    BalanceAnswer,
    CancelMove,
    DrainDescription,
    DrainNode,
    ListMoves,
    MoveDescription,
    MoveList,
    MoveTopic,
)
from ister.protocol.recovery import TopicRecovery
from ister.protocol.subscriptions import (
    CreateSubscription,
    DeleteSubscription,
    FailurePolicy,
    ListSubscriptions,
    PauseSubscription,
    SeekSubscription,
    SubscriptionDescription,
    SubscriptionKind,
    SubscriptionList,
)

_NO_ARRAY: Final = b"\x90"
VERIFY_SECONDS: Final = 600.0
"""How long a node may read one object of the history before it is asked again."""


class Administration:
    """The part of a log that has no records in it."""

    def __init__(
        self, routes: Routes, clock: Clock, request_timeout_s: float, retry_deadline_s: float
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._retry_deadline_s = retry_deadline_s

    @property
    def cluster_id(self) -> str:
        """Of the cluster that this log is connected to (I1)."""
        return self._routes.cluster_id

    # Topics.

    async def create_topic(
        self, topic: str, *, if_absent: bool = False, **settings: int | str
    ) -> TopicDescription:
        """Make a topic; with `if_absent` an existing one is returned as it is."""
        name = normalise_topic(topic)
        header = encode_header(CreateTopic(name, settings, if_absent))
        retries = self._retries(f"creating {name}")
        try:
            answer = await self._attempt(retries, Kind.CREATE_TOPIC, header, name)
        except TopicExists as error:
            if retries.in_doubt:
                hint = "An earlier attempt of this call may have made it; `ister topic describe` shows it."
                raise TopicExists(error.message, hint=hint) from error
            raise
        made = await self._described(name, answer)
        self._routes.changed_at(name, made.uid)
        return made

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic that has this name now, and never one that is made after it: an attempt that was
        repeated may be carried out late."""
        name = normalise_topic(topic)
        retries = self._retries(f"deleting {name}")
        uid = (await self.describe_topic(name)).uid
        while True:
            header = encode_header(DeleteTopic(name, uid))
            answer = await self._attempt(retries, Kind.DELETE_TOPIC, header, name)
            deleted = decode_header(Deleted, answer.header)
            if deleted.was_there or retries.in_doubt:  # in doubt: an earlier attempt of this call deleted it
                self._routes.changed_at(name, deleted.index)
                return
            self._routes.changed_at(name, deleted.index)
            known, uid = uid, (await self.describe_topic(name)).uid
            if uid == known:  # else the node that described it first was behind
                raise UnknownTopic(f"topic {name} was deleted by somebody else")

    async def trim_topic(self, topic: str, before_offset: int, *, uid: int = 0) -> int:
        """Drop the oldest records that lie before an offset, as far as they fill sealed segments; returns
        where the topic begins now. With `uid`, only of the topic that has it."""
        name = normalise_topic(topic)
        header = encode_header(TrimTopic(name, before_offset, uid))
        answer = await self.call(f"trimming {name}", Kind.TRIM_TOPIC, header, name)
        return decode_header(Trimmed, answer.header).start_offset

    async def pin(
        self, topic: str, name: str, offset: int, *, ttl_s: float = 60.0, uid: int = 0, about: str = ""
    ) -> Pinned:
        """Say that the reader `name` needs the topic from `offset` on, and let retention wait for it, within
        a bound, for `ttl_s`. Say so again before that is over: a reader that crashed holds nothing."""
        request = PinTopic(normalise_topic(topic), name, offset, max(1, round(ttl_s * 1000)), uid, about)
        return await self._pin(request)

    async def unpin(self, topic: str, name: str, *, uid: int = 0) -> None:
        """Let go of a pin; one that is not there is gone already."""
        await self._pin(PinTopic(normalise_topic(topic), name, 0, 0, uid))

    async def _pin(self, request: PinTopic) -> Pinned:
        # Of any node: the metadata has it.
        what = f"pinning {request.topic} for {request.name}"
        answer = await self.call(what, Kind.PIN_TOPIC, encode_header(request))
        return decode_header(Pinned, answer.header)

    async def pins(self, prefix: str = "") -> list[PinDescription]:
        """How far readers are that said so, in topics whose full name starts with `prefix`; those that have
        not renewed their pin in time are among them for a day."""
        answer = await self.call("listing pins", Kind.LIST_PINS, encode_header(ListPins(prefix)))
        return decode_header(PinList, answer.header or answer.payload).pins

    # Subscriptions.

    async def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        kind: str = SubscriptionKind.EXCLUSIVE,
        start: Place = "latest",
        if_absent: bool = False,
        policy: FailurePolicy | None = None,
    ) -> SubscriptionDescription:
        """Make a durable place in a topic, which begins at `latest`, `earliest`, an offset or a time (a
        datetime). With `if_absent` an existing one of that kind is returned as it is. `policy` says what
        becomes of records that are not acknowledged: delivered again, in the end blocked, dropped, put
        aside."""
        at_us = microseconds(start) if isinstance(start, datetime) else -1
        offset = 0 if isinstance(start, datetime) else wire_place(start)
        request = CreateSubscription(
            normalise_topic(topic), name, kind, offset, at_us, if_absent, policy or FailurePolicy()
        )
        retries = self._retries(f"creating the subscription {name}", request.topic)
        try:
            answer = await self._attempt(retries, Kind.CREATE_SUBSCRIPTION, encode_header(request), None)
        except SubscriptionExists as error:
            if retries.in_doubt:
                hint = "An earlier attempt of this call may have made it: `ister subscription describe`."
                raise SubscriptionExists(error.message, hint=hint) from error
            raise
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def delete_subscription(self, topic: str, name: str) -> None:
        """What it had not acknowledged is nobody's business any more; the records stay."""
        full = normalise_topic(topic)
        found = [one for one in await self.subscriptions(full, name) if one.topic == full]
        if not found:
            raise UnknownSubscription(f"{full} has no subscription {name}")
        header = encode_header(DeleteSubscription(full, name, found[0].uid))
        retries = self._retries(f"deleting the subscription {name}", full)
        try:
            await self._attempt(retries, Kind.DELETE_SUBSCRIPTION, header, None)
        except UnknownSubscription:
            if not retries.in_doubt:
                raise

    async def seek_subscription(self, topic: str, name: str, place: Place) -> SubscriptionDescription:
        """Let a subscription go on at `earliest`, `latest`, an offset or a time (a datetime), for all of its
        consumers. What is acknowledged of what was delivered before counts no more."""
        full = normalise_topic(topic)
        at_us = microseconds(place) if isinstance(place, datetime) else -1
        offset = 0 if isinstance(place, datetime) else wire_place(place)
        header = encode_header(SeekSubscription(full, name, offset, at_us))
        answer = await self.call(f"moving the subscription {name}", Kind.SEEK_SUBSCRIPTION, header)
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def pause_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        """Hand out nothing until it is resumed; what is handed out can be acknowledged."""
        return await self._pause(topic, name, True)

    async def resume_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return await self._pause(topic, name, False)

    async def _pause(self, topic: str, name: str, paused: bool) -> SubscriptionDescription:
        header = encode_header(PauseSubscription(normalise_topic(topic), name, paused))
        what = f"{'pausing' if paused else 'resuming'} the subscription {name}"
        answer = await self.call(what, Kind.PAUSE_SUBSCRIPTION, header)
        return decode_header(SubscriptionDescription, answer.header or answer.payload)

    async def subscriptions(self, prefix: str = "", name: str = "") -> list[SubscriptionDescription]:
        """Those of topics whose full name starts with `prefix`; with `name`, only of that name."""
        header = encode_header(ListSubscriptions(prefix, name))
        answer = await self.call("listing subscriptions", Kind.LIST_SUBSCRIPTIONS, header)
        return decode_header(SubscriptionList, answer.header or answer.payload).subscriptions

    async def alter_topic(self, topic: str, **settings: int | str) -> TopicDescription:
        name = normalise_topic(topic)
        header = encode_header(AlterTopic(name, settings))
        return await self._described(
            name, await self.call(f"altering {name}", Kind.ALTER_TOPIC, header, name)
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        name = normalise_topic(topic)
        header = encode_header(DescribeTopic(name, self._routes.known_index(name)))
        answer = await self.call(f"describing {name}", Kind.DESCRIBE_TOPIC, header, name)
        return decode_header(TopicDescription, answer.header or answer.payload)

    async def recovery_of(self, topic: str) -> TopicRecovery:
        """How it stands with the topic's open segment, and what would be lost if it were given up now."""
        name = normalise_topic(topic)
        return await self._recover(f"looking at {name}", RecoverTopic(name))

    async def accept_loss(self, shown: TopicRecovery, *, node_stopped: bool) -> TopicRecovery:
        """Give up, for good, what cannot be reached of a topic, so that it goes on (F6): the rest of its open
        segment, if it waits for that, and what left of sealed segments with their disks.

        `shown` is what `recovery_of` said: no other segment is given up, and of these nothing that lies
        before its `lost_from`, or its `gone_from`. `node_stopped` states that the nodes in `shown.silent` are
        stopped, and stay so until they have heard of this.
        """
        is_open_lost = not shown.gone_segments or shown.gives_up_open
        request = RecoverTopic(
            shown.topic,
            accept_loss=True,
            node_stopped=node_stopped,
            segment_uid=shown.segment_uid if is_open_lost else 0,
            leader_starts=shown.leader_starts,
            lost_from=shown.lost_from,
            gone_segments=shown.gone_segments,
            gone_from=shown.gone_from,
        )
        return await self._recover(f"accepting the loss of {shown.topic}", request)

    async def _recover(self, what: str, request: RecoverTopic) -> TopicRecovery:
        # Of any node: the one that leads the topic is the last to ask.
        answer = await self.call(what, Kind.RECOVER_TOPIC, encode_header(request))
        return decode_header(TopicRecovery, answer.header or answer.payload)

    # Moves.

    async def move_topic(self, topic: str, node_id: int, *, plan: bool = False) -> MoveDescription:
        """Let another node lead a topic, and stay its leader across rollovers. Returns once the move is
        requested; `moves` says how it goes. With `plan`, what would be done, and nothing is."""
        return await self._move(MoveTopic(normalise_topic(topic), node_id, plan=plan))

    async def unload_topic(self, topic: str, *, plan: bool = False) -> MoveDescription:
        """Let another node lead a topic, whichever is next."""
        name = normalise_topic(topic)
        found = await self._move(MoveTopic(name, plan=True))
        # With a definite target: sent again, it is the same move.
        return found if plan else await self._move(MoveTopic(name, found.target, stays=False))

    async def release_topic(self, topic: str) -> MoveDescription:
        """A topic need not stay on the node that it was moved to any more."""
        return await self._move(MoveTopic(normalise_topic(topic), release=True))

    async def _move(self, request: MoveTopic) -> MoveDescription:
        answer = await self.call(f"moving {request.topic}", Kind.MOVE_TOPIC, encode_header(request))
        return decode_header(MoveDescription, answer.header)

    async def moves(self, topic: str = "", move: int = 0) -> list[MoveDescription]:
        """Those that are under way, and the last ones that are over, oldest first; of one topic, or one."""
        request = ListMoves(normalise_topic(topic) if topic else "", move)
        answer = await self.call("listing moves", Kind.LIST_MOVES, encode_header(request))
        return decode_header(MoveList, answer.header or answer.payload).moves

    async def cancel_move(self, move: int) -> MoveDescription:
        """Before the seal the topic stays where it is, after it where it is by then."""
        answer = await self.call(f"cancelling move {move}", Kind.CANCEL_MOVE, encode_header(CancelMove(move)))
        return decode_header(MoveDescription, answer.header)

    async def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        """All topics whose full name starts with `prefix`, without their segments. Those of system
        namespaces, which begin with `_`, are among them only if the prefix does."""
        answer = await self.call("listing topics", Kind.LIST_TOPICS, encode_header(ListTopics(prefix)))
        return decode_header(TopicList, answer.header or answer.payload).topics

    async def offsets_at(self, topic: str, place: str | int | datetime, *, uid: int = 0) -> int:
        """The offset at `earliest`, `latest`, or of the first record appended at or after a time
        (a datetime, or microseconds since 1970); the end of the topic where there is no such record. With
        `uid`, only of the topic that has it."""
        name = normalise_topic(topic)
        index = self._routes.known_index(name)
        header = encode_header(ListOffsets(name, [wire_place(place)], index, topic_uid=uid))
        answer = await self.call(f"finding offsets of {name}", Kind.LIST_OFFSETS, header, name)
        return decode_header(ListOffsetsAnswer, answer.header).offsets[0]

    async def ends_of(self, uids: Mapping[str, int]) -> dict[str, int | None]:
        """Where each of these topics ends, given by name and uid; None if there is none with that uid any
        more, also if another one has its name (I3)."""
        names = list(uids)
        found = await asyncio.gather(*(self._end_of(name, uids[name]) for name in names))
        return dict(zip(names, found, strict=True))

    async def _end_of(self, topic: str, uid: int) -> int | None:
        name = normalise_topic(topic)
        header = encode_header(ListOffsets(name, [LATEST], self._routes.known_index(name), topic_uid=uid))
        try:
            answer = await self.call(
                f"finding the end of {name}", Kind.LIST_OFFSETS, header, reading_key(name)
            )
        except UnknownTopic:
            return None
        return decode_header(ListOffsetsAnswer, answer.header).offsets[0]

    async def wait_for_records(self, ends: Mapping[str, int], wait_s: float) -> bool:
        """Wait until a topic, of those that end at these offsets, has a record there, or something is wrong
        with one: whoever looks next will be told. No record is sent. False if the time was over before."""
        if not ends:
            await asyncio.sleep(wait_s)
            return False
        waits = [asyncio.ensure_future(self._has_record(name, ends[name], wait_s)) for name in ends]
        try:
            done, _ = await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return any(wait.exception() is not None or wait.result() for wait in done)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _has_record(self, topic: str, offset: int, wait_s: float) -> bool:
        name = normalise_topic(topic)
        key, index = reading_key(name), self._routes.known_index(name)
        request = Fetch(name, offset, 1, int(wait_s * 1000), index, only_wait=True)
        what = f"waiting for offset {offset} of {name}"
        answer = await self.call(what, Kind.FETCH, encode_header(request), key, wait_s=wait_s)
        told = decode_header(FetchAnswer, answer.header)
        self._routes.learned(key, told.served_by)
        return told.end_offset > offset

    async def cluster(self) -> ClusterAnswer:
        """The nodes, and what is wrong; each node is asked how its copies of segments are."""
        header = encode_header(Cluster(ask_nodes=True))
        answer = await self.call("asking for the cluster", Kind.CLUSTER, header)
        return decode_header(ClusterAnswer, answer.header or answer.payload)

    async def stats(self) -> StatsAnswer:
        answer = await self.call("asking for figures", Kind.STATS, encode_header(Empty()))
        return decode_header(StatsAnswer, answer.header)

    # The cluster. Where an answer is lost these are sent again, and may then hear that it is done already.

    async def transfer_leader(self, node_id: int = 0) -> NodeAnswer:
        """Let another node lead the metadata: the one named, or the one that is most up to date."""
        what = f"handing the metadata to node {node_id}" if node_id else "handing the metadata over"
        return await self._administer(what, Kind.TRANSFER_LEADER, NodeRequest(node_id))

    async def add_node(self, host: str, port: int) -> NodeAnswer:
        """Invite the node that waits at this peer address; it joins as a learner."""
        return await self._administer(f"adding the node at {host}:{port}", Kind.ADD_NODE, AddNode(host, port))

    async def remove_node(self, node_id: int, *, disk_gone: bool = False) -> NodeAnswer:
        """Take a node out of the cluster; refused while it has records that nobody else has (R2), unless
        `disk_gone` states that they are gone for good."""
        request = NodeRequest(node_id, disk_gone)
        return await self._administer(f"removing node {node_id}", Kind.REMOVE_NODE, request)

    async def promote_node(self, node_id: int) -> NodeAnswer:
        """Make a voter of a learner that has caught up (R2)."""
        return await self._administer(f"promoting node {node_id}", Kind.PROMOTE_NODE, NodeRequest(node_id))

    async def drain_node(
        self, node_id: int, *, dry_run: bool = False, max_parallel: int = 4
    ) -> DrainDescription:
        """A node gets nothing new, and what it has goes elsewhere. Returns what it has now; called again it
        says how far that is. With `dry_run` only that."""
        header = encode_header(DrainNode(node_id, dry_run, max_parallel))
        answer = await self.call(f"draining node {node_id}", Kind.DRAIN_NODE, header)
        return decode_header(DrainDescription, answer.header)

    async def activate_node(self, node_id: int) -> DrainDescription:
        """A drained node is one like the others again; what has moved stays where it is."""
        header = encode_header(ActivateNode(node_id))
        answer = await self.call(f"activating node {node_id}", Kind.ACTIVATE_NODE, header)
        return decode_header(DrainDescription, answer.header)

    async def balance(self, *, dry_run: bool = False, strategy: str = "") -> BalanceAnswer:
        """Move topics so that nodes carry alike, or with `dry_run` say which would be moved. A repeat finds
        moves that are under way, and moves nothing twice."""
        answer = await self.call("balancing", Kind.BALANCE, encode_header(Balance(dry_run, strategy)))
        return decode_header(BalanceAnswer, answer.header or answer.payload)

    async def control(self, action: str, secret: str, topic: str = "", count: int = 1) -> None:
        """For tests: let the broker that is asked misbehave; refused unless it has `test_controls` on."""
        header = encode_header(Control(secret, action, topic, count))
        await self.call(f"the test control {action}", Kind.CONTROL, header)

    async def _administer(self, what: str, kind: Kind, request: NodeRequest | AddNode) -> NodeAnswer:
        answer = await self.call(what, kind, encode_header(request))
        return decode_header(NodeAnswer, answer.header)

    async def _described(self, topic: str, answer: Answer) -> TopicDescription:
        if answer.header in (b"", _NO_ARRAY):
            return await self.describe_topic(topic)
        return decode_header(TopicDescription, answer.header or answer.payload)

    # The history.

    async def history(self, topic: str, start: int = 0, end: int = 0) -> HistoryList:
        """What of a topic is in the history, segment by segment, and what waits for it; of segments that have
        offsets from `start` to before `end` only, if that is given."""
        name = normalise_topic(topic)
        request = encode_header(ListHistory(name, start, end))
        answer = await self.call(f"listing the history of {name}", Kind.LIST_HISTORY, request)
        return decode_header(HistoryList, answer.header or answer.payload)

    async def verify_object(self, topic: str, topic_uid: int, segment_uid: int) -> ObjectVerified:
        """Have a node read the object of a segment to its end."""
        name = normalise_topic(topic)
        request = encode_header(VerifyObject(name, topic_uid, segment_uid))
        what = f"verifying the history of {name}"
        answer = await self.call(what, Kind.VERIFY_OBJECT, request, wait_s=VERIFY_SECONDS)
        return decode_header(ObjectVerified, answer.header)

    async def sweep_history(self, topic: str) -> list[str]:
        """Delete the objects of a topic that no descriptor names, and none will; which these were. Also of a
        topic that was deleted."""
        name = normalise_topic(topic)
        request = encode_header(SweepHistory(name))
        what = f"sweeping the history of {name}"
        answer = await self.call(what, Kind.SWEEP_HISTORY, request, wait_s=VERIFY_SECONDS)
        return decode_header(HistorySwept, answer.header or answer.payload).deleted

    async def look_up(self, path: str) -> LookedUp:
        """What of the metadata is at a path, and below it."""
        answer = await self.call(f"looking up {path}", Kind.LOOK_UP, encode_header(LookUp(path)))
        return decode_header(LookedUp, answer.header or answer.payload)

    async def explain(self, topic: str, offset: int) -> Explanation:
        """Where a record is, and who has it."""
        name = normalise_topic(topic)
        request = encode_header(Explain(name, offset))
        answer = await self.call(f"explaining offset {offset} of {name}", Kind.EXPLAIN, request)
        return decode_header(Explanation, answer.header or answer.payload)

    # Requests.

    async def call(
        self, what: str, kind: int, header: bytes, topic: str | None = None, *, wait_s: float = 0.0
    ) -> Answer:
        """One request that may be repeated safely, with its retries."""
        retries = self._retries(what, topic_of(topic) if topic is not None else "")
        return await self._attempt(retries, kind, header, topic, wait_s=wait_s)

    async def ask_once(self, kind: int, header: bytes, key: str, wait_s: float) -> Answer:
        """One attempt, for whoever sees to the others by itself."""
        connection = await self._routes.connection(key)
        return await connection.request(
            kind, header, timeout_s=self._request_timeout_s + wait_s, wait_s=wait_s
        )

    def retries_of(self, what: str, topic: str = "") -> Retries:
        return self._retries(what, topic)

    def learned_way(self, key: str, node_id: int) -> None:
        """Which node answers for this key, by itself."""
        self._routes.learned(key, node_id)

    def way_failed(self, key: str, error: IsterError) -> None:
        if self._routes.is_closed:
            raise error
        self._routes.failed(key, error)

    def token(self) -> int:
        """A number that nobody else has, by chance."""
        return self._clock.token()

    def _retries(self, what: str, topic: str = "") -> Retries:
        return Retries(self._clock, self._retry_deadline_s, what, topic)

    async def _attempt(
        self, retries: Retries, kind: int, header: bytes, topic: str | None, *, wait_s: float = 0.0
    ) -> Answer:
        timeout_s = self._request_timeout_s + wait_s
        while True:
            try:
                connection = await self._routes.connection(topic)
                return await connection.request(kind, header, timeout_s=timeout_s, wait_s=wait_s)
            except IsterError as error:
                if self._routes.is_closed:
                    raise  # whatever it was, nothing of this log will be tried again
                self._routes.failed(topic, error)
                await retries.pause(error)
