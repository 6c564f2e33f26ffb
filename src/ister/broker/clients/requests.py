"""The answer to every request but an append: which handler has it, and the short ones themselves.

Fetches are in `fetching`; what another node has to answer goes through `elsewhere`. Handlers raise what is
wrong, and the connection sends it.

Views for people (lists, descriptions, the cluster) are of now if the others answer within `GATHER_SECONDS`,
and otherwise of what is known here. A large one takes its share of the memory of answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from ister.asking import ask_each
from ister.broker.clients import controls
from ister.broker.clients.fetching import MAX_FETCH_BYTES as MAX_FETCH_BYTES
from ister.broker.clients.fetching import MAX_WAIT_MS as MAX_WAIT_MS
from ister.broker.clients.fetching import Fetches
from ister.broker.forward.elsewhere import Elsewhere, no_copy
from ister.broker.losses.losses import Losses
from ister.broker.subscriptions.service import Subscriptions
from ister.broker.topic.location import Here, History
from ister.broker.topic.topic_log import TopicLog
from ister.broker.view import cluster_view
from ister.broker.view.descriptions import ask_about, describe_elsewhere
from ister.broker.view.explaining import explain
from ister.broker.view.paths import look_up
from ister.errors import BadRequest, IsterError, UnknownTopic
from ister.history.replacing import merge_objects
from ister.history.shown import list_history, sweep_topic, verify_segment
from ister.io.clock import monotonic
from ister.names import is_system
from ister.protocol import messages, moves
from ister.protocol.codec import MAX_HEADER_BYTES, encode_header
from ister.protocol.codec import decode_header as decode_message
from ister.protocol.history import (
    Explain,
    ListHistory,
    LookedUp,
    LookUp,
    MergeObjects,
    SweepHistory,
    VerifyObject,
)
from ister.protocol.messages import EARLIEST, LATEST, Kind
from ister.protocol.peer import AdminRequest, node_of
from ister.protocol.standing import Standing

if TYPE_CHECKING:
    from ister.broker.clients.connection import Connection
    from ister.broker.clients.server import Server

log = logging.getLogger("ister.broker.clients.requests")

DESCRIPTION_BYTES = 256 * 1024
"""The share of memory that an answer with descriptions of topics takes while it is made."""
GATHER_SECONDS = 2.0
"""How long a view for people waits for the other nodes."""

Handler = Callable[["Connection", int, bytes], Awaitable[None]]


class Requests:
    def __init__(self, server: Server, read_rss: Callable[[], int]) -> None:
        self._broker = server.broker
        self._read_rss = read_rss
        self._losses = Losses(server.broker)
        self._started = monotonic()
        self._elsewhere = Elsewhere(server.broker)
        self._fetches = Fetches(server.broker, self._elsewhere)
        self.metrics = (self._fetches.records_out, self._fetches.fetch_seconds, self._elsewhere.forwards)
        self.subscriptions = subscriptions = Subscriptions(server, self)
        self._handlers: dict[int, Handler] = {
            Kind.FETCH: self._fetches.answer,
            Kind.LIST_OFFSETS: self._list_offsets,
            Kind.CREATE_TOPIC: self._create_topic,
            Kind.DELETE_TOPIC: self._delete_topic,
            Kind.LIST_TOPICS: self._list_topics,
            Kind.DESCRIBE_TOPIC: self._describe_topic,
            Kind.ALTER_TOPIC: self._alter_topic,
            Kind.CLUSTER: self._cluster,
            Kind.STATS: self._stats,
            Kind.TRANSFER_LEADER: self._administer(Kind.TRANSFER_LEADER),
            Kind.REMOVE_NODE: self._administer(Kind.REMOVE_NODE),
            Kind.PROMOTE_NODE: self._administer(Kind.PROMOTE_NODE),
            Kind.ADD_NODE: self._add_node,
            Kind.CONTROL: self._control,
            Kind.RECOVER_TOPIC: self._recover_topic,
            Kind.TRIM_TOPIC: self._trim_topic,
            Kind.PIN_TOPIC: self._pin_topic,
            Kind.LIST_PINS: self._list_pins,
            Kind.LIST_HISTORY: self._list_history,
            Kind.VERIFY_OBJECT: self._verify_object,
            Kind.SWEEP_HISTORY: self._sweep_history,
            Kind.MERGE_OBJECTS: self._merge_objects,
            Kind.LOOK_UP: self._look_up,
            Kind.EXPLAIN: self._explain,
            Kind.MOVE_TOPIC: self._move_topic,
            Kind.LIST_MOVES: self._list_moves,
            Kind.CANCEL_MOVE: self._cancel_move,
            Kind.DRAIN_NODE: self._drain_node,
            Kind.ACTIVATE_NODE: self._activate_node,
            Kind.LOAD: self._load,
            Kind.BALANCE: self._balance,
            Kind.CREATE_SUBSCRIPTION: subscriptions.create,
            Kind.DELETE_SUBSCRIPTION: subscriptions.delete,
            Kind.LIST_SUBSCRIPTIONS: subscriptions.list_,
            Kind.PULL: subscriptions.pull,
            Kind.SETTLE: subscriptions.settle,
            Kind.SEEK_SUBSCRIPTION: subscriptions.seek,
            Kind.PAUSE_SUBSCRIPTION: subscriptions.pause,
        }

    async def answer(self, connection: Connection, kind: int, correlation: int, header: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise BadRequest(f"there is no request of kind {kind}")
        await handler(connection, correlation, header)

    def respond(self, connection: Connection, correlation: int, answer: msgspec.Struct) -> None:
        header = encode_header(answer)
        if len(header) <= MAX_HEADER_BYTES:
            connection.respond(correlation, header, [])
        else:
            connection.respond(correlation, b"", [header])

    # Records.

    async def read(self, request: messages.Fetch) -> bytes:
        """Whole frames from the one that holds an offset, wherever it is; empty at the end. For this node."""
        return await self._fetches.read(request)

    async def wait(self, topic: str, offset: int, seconds: float) -> None:
        """Until there may be a record at an offset, wherever that will be. For this node."""
        await self._fetches.wait(topic, offset, seconds)

    async def _list_offsets(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.ListOffsets, header)
        found: list[int] = []
        for at in request.at:
            if at < 0 and at not in (EARLIEST, LATEST):
                raise BadRequest(f"{at} is no time", hint="Give microseconds since 1970, -1 or -2.")
            found.append(await self.offset_at(request, at))
        self.respond(connection, correlation, messages.ListOffsetsAnswer(found))

    async def offset_at(self, request: messages.ListOffsets, at: int) -> int:
        looking = self._elsewhere.looking()
        while True:
            topic = await self._broker.find_same(request.topic, request.topic_uid, request.min_index)
            if at == EARLIEST:
                await self._be_current()  # what was trimmed meanwhile is not there for anybody
                return topic.state.start_offset
            segment = topic.state.open_segment if at == LATEST else topic.places.first_since(at)
            async with looking.at(topic):
                if isinstance(topic.places.whereabouts(segment), Here | History):
                    return await (topic.reads.confirmed_end() if at == LATEST else topic.reads.offset_at(at))
                if request.here_only:
                    raise no_copy(topic, segment)
                index = self._elsewhere.index_of(segment)
                passed = messages.ListOffsets(
                    request.topic, [at], index, segment.is_sealed, request.topic_uid
                )
                answer = await self._elsewhere.ask(segment, Kind.LIST_OFFSETS, passed)
                found = decode_message(messages.ListOffsetsAnswer, answer.header).offsets[0]
                if at == LATEST:
                    topic.known.seen_end = max(topic.known.seen_end, found)
                return found

    # Topics.

    async def _create_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.CreateTopic, header)
        topic = await self._broker.create_topic(request.topic, request.settings, if_absent=request.if_absent)
        await self._respond_with_description(connection, correlation, topic)

    async def _delete_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.DeleteTopic, header)
        try:
            deleted = messages.Deleted(await self._broker.delete_topic(request.topic, request.uid))
        except UnknownTopic:
            if not request.uid:
                raise
            deleted = messages.Deleted(self._broker.metadata.state.applied_index, was_there=False)
        self.respond(connection, correlation, deleted)

    async def _alter_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.AlterTopic, header)
        await self._broker.alter_topic(request.topic, request.settings)
        topic = await self._broker.find(request.topic)
        await self._respond_with_description(connection, correlation, topic)

    async def _trim_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.TrimTopic, header)
        start = await self._broker.trim_topic(request.topic, request.before_offset, request.uid)
        self.respond(connection, correlation, messages.Trimmed(start))

    async def _pin_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.PinTopic, header)
        self.respond(connection, correlation, await self._broker.pins.pin(request))

    async def _list_pins(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.ListPins, header)
        await self._be_current()
        async with connection.description_slots:
            with await connection.room_for(DESCRIPTION_BYTES):
                names = sorted(name for name in self._broker.topics if _is_listed(name, request.prefix))
                self.respond(connection, correlation, messages.PinList(self._broker.pins.of(names)))

    async def _list_history(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(ListHistory, header)
        await self._be_current()
        topic = await self._broker.find(request.topic)
        async with connection.description_slots:
            with await connection.room_for(DESCRIPTION_BYTES):
                found = list_history(
                    topic.state,
                    self._broker.history,
                    request.start_offset,
                    request.end_offset,
                    self._broker.metadata.state.applied_index,
                )
                self.respond(connection, correlation, found)

    async def _verify_object(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(VerifyObject, header)
        self.respond(connection, correlation, await verify_segment(self._broker.history, request))

    async def _sweep_history(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(SweepHistory, header)
        await self._broker.metadata.read_index(GATHER_SECONDS)
        self.respond(connection, correlation, await sweep_topic(self._broker.history, request.topic))

    async def _merge_objects(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(MergeObjects, header)
        await self._be_current()
        self.respond(connection, correlation, await merge_objects(self._broker.history, request))

    async def _look_up(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(LookUp, header)
        await self._be_current()
        broker = self._broker
        async with connection.description_slots:
            with await connection.room_for(DESCRIPTION_BYTES):
                found = look_up(broker.metadata.state, request.path, has_store=broker.history is not None)
                self.respond(connection, correlation, LookedUp(*found))

    async def _explain(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(Explain, header)
        await self._be_current()
        topic = await self._broker.find(request.topic)

        async def read(offset: int) -> bytes:
            return await self.read(messages.Fetch(topic.state.name, offset, 1))

        self.respond(connection, correlation, await explain(topic, request.offset, read))

    async def _move_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.MoveTopic, header)
        self.respond(connection, correlation, await self._broker.moves.move(request))

    async def _list_moves(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.ListMoves, header)
        self.respond(connection, correlation, await self._broker.moves.list(request))

    async def _cancel_move(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.CancelMove, header)
        self.respond(connection, correlation, await self._broker.moves.cancel(request.move))

    async def _list_topics(self, connection: Connection, correlation: int, header: bytes) -> None:
        """Each node tells of the topics that it leads; of those whose node does not, what is known here."""
        request = decode_message(messages.ListTopics, header)
        broker = self._broker
        if not request.own_only:
            await self._be_current()
        async with connection.description_slots:
            with await connection.room_for(DESCRIPTION_BYTES):
                found = {
                    name: await broker.describe(topic, with_segments=False)
                    for name, topic in sorted(broker.topics.items())
                    if _is_listed(name, request.prefix) and topic.leads
                }
                if not request.own_only:
                    for described in await self._gather(request.prefix):
                        found[described.topic] = described
                    for name, topic in broker.topics.items():
                        if _is_listed(name, request.prefix) and name not in found:
                            found[name] = describe_elsewhere(broker, topic)
                self.respond(
                    connection, correlation, messages.TopicList([found[name] for name in sorted(found)])
                )

    async def _gather(self, prefix: str) -> list[messages.TopicDescription]:
        broker = self._broker
        header = encode_header(messages.ListTopics(prefix, True))

        async def ask(member: int) -> list[messages.TopicDescription]:
            answer = await broker.forwarder.request(member, Kind.LIST_TOPICS, header)
            return decode_message(messages.TopicList, answer.header or answer.payload).topics

        told = await ask_each(broker.metadata.others_alive, ask, GATHER_SECONDS)
        return [described for found in told.answers.values() for described in found]

    async def _be_current(self) -> None:
        """Views for people are of now, if the metadata leader can be asked."""
        if not self._broker.metadata.is_alone:
            try:
                await self._broker.metadata.read_index(GATHER_SECONDS)
            except IsterError as error:
                log.debug("this view may be old: %s", error)

    async def _describe_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.DescribeTopic, header)
        topic = await self._broker.find(request.topic, request.min_index)
        await self._respond_with_description(connection, correlation, topic)

    async def _respond_with_description(
        self, connection: Connection, correlation: int, topic: TopicLog
    ) -> None:
        """A chain of many segments makes a large answer: it is bounded as a fetch is."""
        async with connection.description_slots:
            with await connection.room_for(DESCRIPTION_BYTES):
                if topic.leads:
                    self.respond(connection, correlation, await self._broker.describe(topic))
                    return
                segment = topic.state.open_segment
                request = messages.DescribeTopic(topic.state.name, segment.uid)
                try:
                    # No longer than a view for people waits: what was asked for, a new topic, may be done.
                    async with asyncio.timeout(GATHER_SECONDS):
                        answer = await self._elsewhere.ask(segment, Kind.DESCRIBE_TOPIC, request)
                except (IsterError, TimeoutError) as error:
                    why = str(error) or f"node {node_of(segment.leader)} does not answer"
                    standings = await ask_about(self._broker, topic)
                    found = describe_elsewhere(self._broker, topic, standings, trouble=why)
                    self.respond(connection, correlation, found)
                else:
                    payload = [answer.payload] if answer.payload else []
                    connection.respond(correlation, answer.header, payload)

    async def _recover_topic(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.RecoverTopic, header)
        self.respond(connection, correlation, await self._losses.answer(request))

    # The cluster and this node.

    async def _cluster(self, connection: Connection, correlation: int, header: bytes) -> None:
        is_current = self._broker.metadata.is_alone
        if not is_current:
            try:
                await self._broker.metadata.read_index(GATHER_SECONDS)
                is_current = True
            except IsterError as error:
                log.debug("the metadata leader cannot be asked: %s", error)
        standings: dict[int, Standing] = {}
        if decode_message(messages.Cluster, header).ask_nodes:
            members = self._broker.metadata.state.active_members
            standings = await self._broker.replication.standings.gather(members)
        self.respond(connection, correlation, cluster_view.of(self._broker, standings, is_current=is_current))

    def _administer(self, kind: Kind) -> Handler:
        async def handle(connection: Connection, correlation: int, header: bytes) -> None:
            request = decode_message(messages.NodeRequest, header)
            admin = AdminRequest(kind, request.node_id, request.disk_gone)
            answer = await self._broker.metadata.members.administer(admin)
            self.respond(connection, correlation, answer)

        return handle

    async def _add_node(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.AddNode, header)
        if self._broker.config.peer_port < 0:
            raise BadRequest(
                f"node {self._broker.config.node_id} is a broker alone: it has no peer port",
                hint="Restart it with --peer-port; its topics stay, and others may join then.",
            )
        answer = await self._broker.metadata.members.invite(request.peer_host, request.peer_port)
        self.respond(connection, correlation, answer)

    async def _drain_node(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.DrainNode, header)
        self.respond(connection, correlation, await self._broker.drains.drain(request))

    async def _activate_node(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.ActivateNode, header)
        self.respond(connection, correlation, await self._broker.drains.activate(request))

    async def _load(self, connection: Connection, correlation: int, header: bytes) -> None:
        self.respond(connection, correlation, self._broker.balancing.report())

    async def _balance(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(moves.Balance, header)
        self.respond(connection, correlation, await self._broker.balancing.balance(request))

    async def _control(self, connection: Connection, correlation: int, header: bytes) -> None:
        controls.carry_out(self._broker, decode_message(messages.Control, header), connection.peer)
        self.respond(connection, correlation, messages.Empty())

    async def _stats(self, connection: Connection, correlation: int, header: bytes) -> None:
        uptime = int((monotonic() - self._started) * 1000)
        answer = messages.StatsAnswer(self._read_rss(), uptime, self._broker.metrics.values())
        self.respond(connection, correlation, answer)


def _is_listed(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and (is_system(prefix) or not is_system(name))
