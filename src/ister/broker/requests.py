"""The answer to every request but an append: here, or by the node that has what is asked for.

A request that another node must answer is passed on with the metadata index at which that node got the
segment, and waits there until it is applied (H3). Since every node that passes a request on again does so for
a later handoff, no two can send it to each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from ister.broker import cluster_view, controls
from ister.broker.answers import Share
from ister.broker.descriptions import ask_about, describe_elsewhere
from ister.broker.followed_copy import FollowedCopy, followed_copy
from ister.broker.losses import Losses
from ister.broker.topic_log import TopicLog
from ister.client.connection import Answer
from ister.errors import (
    BadRequest,
    ConnectionFailed,
    CorruptSegment,
    IsterError,
    NodeUnreachable,
    NotLeader,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopic,
)
from ister.metadata.state import SegmentState
from ister.metrics import Counter, Histogram
from ister.protocol import messages
from ister.protocol.codec import MAX_HEADER_BYTES, encode_header
from ister.protocol.codec import decode_header as decode_message
from ister.protocol.messages import EARLIEST, LATEST, Kind
from ister.protocol.peer import AdminRequest, node_of
from ister.protocol.standing import Standing

if TYPE_CHECKING:
    from ister.broker.connection import Connection
    from ister.broker.server import Server

log = logging.getLogger("ister.broker.requests")

MAX_FETCH_BYTES = 8 * 1024 * 1024
MAX_WAIT_MS = 60_000
DESCRIPTION_BYTES = 256 * 1024
"""The share of memory that an answer with descriptions of topics takes while it is made."""
GATHER_SECONDS = 2.0
"""How long a view for people waits for the other nodes."""
CONFIRM_SECONDS = 2.0
"""How long an answer that an old view could make wrong waits for the metadata leader."""
MOVED_SECONDS = 3.0
"""How long somebody who asks for what is just being handed off is kept waiting."""
_MOVED_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 1.0
"""How often a follower with readers that wait looks whether the leader is there."""

Readable = TopicLog | FollowedCopy
Handler = Callable[["Connection", int, bytes], Awaitable[None]]


class _Tries:
    """Looking again, for a while, after a handoff came in between."""

    def __init__(self) -> None:
        self._until = asyncio.get_running_loop().time() + MOVED_SECONDS

    async def again(self, error: NotLeader) -> None:
        """Pause; raises the error if it has been long enough."""
        if asyncio.get_running_loop().time() >= self._until:
            raise error
        await asyncio.sleep(_MOVED_PAUSE_SECONDS)


class Requests:
    def __init__(self, server: Server, read_rss: Callable[[], int]) -> None:
        self._server = server
        self._broker = server.broker
        self._read_rss = read_rss
        self._losses = Losses(server.broker)
        self._started = server.broker.clock.monotonic()
        self._records_out = Counter("records_out_total", "Records sent to readers.")
        self._fetch_seconds = Histogram("fetch_duration_seconds", "Time to answer a fetch that has data.")
        self._forwards = Counter(
            "forwarded_requests_total", "Requests passed on to the node that must answer."
        )
        self.metrics = (self._records_out, self._fetch_seconds, self._forwards)
        self._handlers: dict[int, Handler] = {
            Kind.FETCH: self._fetch,
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

    async def _ask(
        self, segment: SegmentState, kind: Kind, request: msgspec.Struct, wait_s: float = 0.0
    ) -> Answer:
        """Have a node answer that has the segment; an error names it. Of a sealed one any replica may."""
        self._forwards.add()
        header = encode_header(request)
        sources = self._sources(segment, isinstance(request, messages.Fetch) and request.read_from_any)
        for source in sources:
            try:
                return await self._broker.forwarder.request(source, kind, header, timeout_s=10.0 + wait_s)
            except ConnectionFailed as error:  # a read that was lost on the way may simply be asked for again
                if source == sources[-1]:
                    raise NodeUnreachable(f"node {node_of(source)} was lost: {error.message}") from error
            except (NodeUnreachable, NotLeader, RequestTimeout, CorruptSegment):
                if source == sources[-1]:
                    raise
        raise NodeUnreachable("no node has it")

    def _index_of(self, segment: SegmentState) -> int:
        """What the node that is asked must know: that the segment is there, or that it is sealed."""
        return self._broker.metadata.state.applied_index if segment.is_sealed else segment.uid

    def _sources(self, segment: SegmentState, from_any: bool) -> list[int]:
        metadata = self._broker.metadata
        if not segment.is_sealed:
            followers = [m for m in segment.replicas if m != segment.leader and metadata.is_alive(m)]
            if not from_any or not followers or metadata.member in segment.replicas:
                return [segment.leader]
            # One for each node that has no replica, so that not all of them ask the same.
            return [followers[self._broker.config.node_id % len(followers)], segment.leader]
        others = [m for m in segment.replicas if m != metadata.member]
        others.sort(key=lambda member: (not metadata.is_alive(member), member != segment.leader))
        return others or [segment.leader]

    # Records.

    async def _fetch(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.Fetch, header)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        is_confirmed = False
        tries = _Tries()
        while True:
            topic = await self._broker.find_same(request.topic, request.topic_uid, request.min_index)
            try:
                if request.read_from_any and await self._fetch_followed(
                    connection, correlation, request, topic, deadline
                ):
                    return
                segment = topic.holder(request.offset)
                if segment is not None and request.here_only:
                    raise _no_copy(topic, segment)
                if segment is not None:
                    await self._fetch_elsewhere(connection, correlation, request, segment, deadline)
                    return
                if deadline > loop.time() and await topic.is_at_end(request.offset):
                    await self._wait_for_records(topic, request.offset, deadline - loop.time())
                    if topic.is_deleted:
                        raise UnknownTopic(f"topic {topic.state.name} was deleted")
                    if topic.holder(request.offset) is not None:
                        continue  # another node leads now: the next record will be there
                await self._fetch_here(connection, correlation, request, topic)
                return
            except NotLeader as error:
                await tries.again(error)  # a handoff came in between: look again
            except OffsetOutOfRange:
                if is_confirmed or request.offset < topic.state.start_offset:
                    raise
                is_confirmed = await self._is_current()

    async def _fetch_followed(
        self,
        connection: Connection,
        correlation: int,
        request: messages.Fetch,
        topic: TopicLog,
        deadline: float,
    ) -> bool:
        """From this node's copy of an open segment that another one leads. False if the leader is to be
        asked: this node does not follow, is behind the reader, or has nothing new and may be cut off."""
        copy = followed_copy(topic, request.offset)
        if copy is None:
            return False
        loop, leader = asyncio.get_running_loop(), copy.state.open_segment.leader
        while copy.end_offset <= request.offset and copy.is_there and loop.time() < deadline:
            if not self._broker.metadata.is_alive(leader):
                return False
            seconds = min(_LOOK_SECONDS, deadline - loop.time())
            await self._wait_for_commit(
                topic, seconds, lambda: copy.end_offset > request.offset or not copy.is_there
            )
        if copy.end_offset <= request.offset or not copy.is_there:
            return False
        await self._fetch_here(connection, correlation, request, copy)
        return True

    async def _is_current(self) -> bool:
        """True once this node knows all that is committed; raises if the metadata leader cannot be asked.

        An end is only what is known here: a seal may be applied of which this node has not heard.
        """
        await self._broker.metadata.read_index(CONFIRM_SECONDS)
        return True

    async def read(self, request: messages.Fetch) -> bytes:
        """Whole frames from the one that holds an offset, wherever it is; empty at the end. For this node."""
        is_confirmed = False
        tries = _Tries()
        while True:
            topic = await self._broker.find(request.topic)
            try:
                segment = topic.holder(request.offset)
                if segment is None:
                    return b"".join((await topic.read(request.offset, request.max_bytes)).buffers)
                passed = msgspec.structs.replace(
                    request, min_index=self._index_of(segment), here_only=segment.is_sealed
                )
                return bytes((await self._ask(segment, Kind.FETCH, passed)).payload)
            except NotLeader as error:
                await tries.again(error)
            except OffsetOutOfRange:
                if is_confirmed or request.offset < topic.state.start_offset:
                    raise
                is_confirmed = await self._is_current()

    async def _fetch_here(
        self, connection: Connection, correlation: int, request: messages.Fetch, topic: Readable
    ) -> None:
        if request.only_wait:
            node_id = self._broker.config.node_id
            answer = messages.FetchAnswer(
                topic.state.start_offset, topic.end_offset, node_id, topic.state.uid
            )
            self.respond(connection, correlation, answer)
            return
        max_bytes = max(1, min(request.max_bytes, MAX_FETCH_BYTES))
        async with connection.read_slots:
            least: int | None = 0
            while least is not None:
                least = await self._read(connection, correlation, topic, request.offset, max_bytes, least)

    async def _read(
        self,
        connection: Connection,
        correlation: int,
        topic: Readable,
        offset: int,
        max_bytes: int,
        least: int,
    ) -> int | None:
        """Answer with what is there; or say how much memory that takes, if it is more than there is now."""
        with await self._room_for(connection, max_bytes, least) as share:
            started = self._broker.clock.monotonic()
            found = await topic.read(offset, min(share.size, max_bytes))
            # A frame is never split: one may be larger than what was asked for.
            size = sum(map(len, found.buffers))
            if size > share.size and not share.grow(size):
                return size
            answer = messages.FetchAnswer(
                topic.state.start_offset, topic.end_offset, self._broker.config.node_id, topic.state.uid
            )
            connection.respond(correlation, encode_header(answer), list(found.buffers))
            if found.records:
                self._records_out.add(found.records)
                self._fetch_seconds.observe(self._broker.clock.monotonic() - started)
            return None

    async def _fetch_elsewhere(
        self,
        connection: Connection,
        correlation: int,
        request: messages.Fetch,
        segment: SegmentState,
        deadline: float,
    ) -> None:
        """From the node that has the records; waiting for one holds neither a slot nor memory here, so that
        readers of quiet topics are in nobody's way."""
        wait_s = max(0.0, deadline - asyncio.get_running_loop().time())
        passed = msgspec.structs.replace(
            request, min_index=self._index_of(segment), wait_ms=0, here_only=segment.is_sealed
        )
        if wait_s and not request.only_wait and await self._pass_on(connection, correlation, passed, segment):
            return
        if wait_s:
            waiting = msgspec.structs.replace(passed, wait_ms=int(wait_s * 1000), only_wait=True)
            answer = await self._ask(segment, Kind.FETCH, waiting, wait_s)
            if request.only_wait:
                connection.respond(correlation, answer.header, [])
                return
        await self._pass_on(connection, correlation, passed, segment, may_be_empty=True)

    async def _pass_on(
        self,
        connection: Connection,
        correlation: int,
        passed: messages.Fetch,
        segment: SegmentState,
        *,
        may_be_empty: bool = False,
    ) -> bool:
        """Answer with what is there now; whether there was anything to answer with."""
        async with connection.read_slots:
            least = 0
            while True:
                with await self._room_for(connection, max(1, passed.max_bytes), least) as share:
                    asked = msgspec.structs.replace(passed, max_bytes=min(share.size, passed.max_bytes))
                    answer = await self._ask(segment, Kind.FETCH, asked)
                    size = len(answer.payload)
                    if not size and not may_be_empty:
                        return False
                    if size <= share.size or share.grow(size):
                        header = self._to_stay_here(answer.header, passed, segment)
                        connection.respond(correlation, header, [answer.payload] if size else [])
                        return True
                    least = size

    def _to_stay_here(self, header: bytes, passed: messages.Fetch, segment: SegmentState) -> bytes:
        """A reader that any replica may answer goes on asking this one, where it only had nothing new: what
        comes next will be here too."""
        is_followed = self._broker.replication.copies.follower(segment.uid) is not None
        if not passed.read_from_any or segment.is_sealed or not is_followed:
            return header
        answer = decode_message(messages.FetchAnswer, header)
        return encode_header(msgspec.structs.replace(answer, served_by=self._broker.config.node_id))

    async def _room_for(self, connection: Connection, wanted: int, least: int = 0) -> Share:
        """Memory for an answer, for a client that has taken its earlier ones."""
        answers = self._server.answers
        await connection.drained()
        share = await answers.take(wanted, least)
        while not connection.writable.is_set():  # it stopped reading while it waited: others go first
            share.give_back()
            await connection.drained()
            share = await answers.take(wanted, least)
        return share

    async def _wait_for_records(self, topic: TopicLog, offset: int, seconds: float) -> None:
        """Until there is a record at `offset`, the topic is gone, or another node has what comes next."""
        await self._wait_for_commit(
            topic, seconds, lambda: topic.end_offset > offset or topic.holder(offset) is not None
        )

    async def _wait_for_commit(self, topic: TopicLog, seconds: float, is_over: Callable[[], bool]) -> None:
        woken = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                while not topic.is_deleted and not is_over():
                    topic.wait_for_commit(woken.set)
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            pass
        finally:
            topic.stop_waiting(woken.set)

    async def _list_offsets(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.ListOffsets, header)
        found: list[int] = []
        for at in request.at:
            if at < 0 and at not in (EARLIEST, LATEST):
                raise BadRequest(f"{at} is no time", hint="Give microseconds since 1970, -1 or -2.")
            found.append(await self._offset_at(request, at))
        self.respond(connection, correlation, messages.ListOffsetsAnswer(found))

    async def _offset_at(self, request: messages.ListOffsets, at: int) -> int:
        tries = _Tries()
        while True:
            topic = await self._broker.find(request.topic, request.min_index)
            if at == EARLIEST:
                await self._be_current()  # what was trimmed meanwhile is not there for anybody
                return topic.state.start_offset
            if topic.is_being_sealed:
                await self._is_current()
            segment = topic.state.open_segment if at == LATEST else topic.first_since(at)
            try:
                if topic.is_here(segment):
                    return await (topic.known_end() if at == LATEST else topic.offset_at(at))
                if request.here_only:
                    raise _no_copy(topic, segment)
                index = self._index_of(segment)
                passed = messages.ListOffsets(request.topic, [at], index, segment.is_sealed)
                answer = await self._ask(segment, Kind.LIST_OFFSETS, passed)
                found = decode_message(messages.ListOffsetsAnswer, answer.header).offsets[0]
                if at == LATEST:
                    topic.seen_end = max(topic.seen_end, found)
                return found
            except NotLeader as error:
                await tries.again(error)

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

    async def _list_topics(self, connection: Connection, correlation: int, header: bytes) -> None:
        """Each node tells of the topics that it leads; of those whose node does not, what is known here."""
        request = decode_message(messages.ListTopics, header)
        broker = self._broker
        if not request.own_only:
            await self._be_current()
        async with connection.description_slots:
            with await self._room_for(connection, DESCRIPTION_BYTES):
                found = {
                    name: await broker.describe(topic, with_segments=False)
                    for name, topic in sorted(broker.topics.items())
                    if name.startswith(request.prefix) and topic.leads
                }
                if not request.own_only:
                    for described in await self._gather(request.prefix):
                        found[described.topic] = described
                    for name, topic in broker.topics.items():
                        if name.startswith(request.prefix) and name not in found:
                            found[name] = describe_elsewhere(broker, topic)
                self.respond(
                    connection, correlation, messages.TopicList([found[name] for name in sorted(found)])
                )

    async def _gather(self, prefix: str) -> list[messages.TopicDescription]:
        broker = self._broker
        members = [m for m in broker.metadata.state.active_members if m != broker.metadata.member]
        header = encode_header(messages.ListTopics(prefix, True))

        async def ask(member: int) -> list[messages.TopicDescription]:
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    answer = await broker.forwarder.request(member, Kind.LIST_TOPICS, header)
                return decode_message(messages.TopicList, answer.header or answer.payload).topics
            except (IsterError, TimeoutError) as error:
                log.debug("node %d did not list its topics: %s", node_of(member), error)
                return []

        lists = await asyncio.gather(*(ask(m) for m in members if broker.metadata.is_alive(m)))
        return [described for found in lists for described in found]

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
            with await self._room_for(connection, DESCRIPTION_BYTES):
                if topic.leads:
                    self.respond(connection, correlation, await self._broker.describe(topic))
                    return
                segment = topic.state.open_segment
                request = messages.DescribeTopic(topic.state.name, segment.uid)
                try:
                    # No longer than a view for people waits: what was asked for, a new topic, may be done.
                    async with asyncio.timeout(GATHER_SECONDS):
                        answer = await self._ask(segment, Kind.DESCRIBE_TOPIC, request)
                except (IsterError, TimeoutError) as error:
                    why = str(error) or f"node {node_of(segment.leader)} does not answer"
                    standings = await ask_about(self._broker, topic.state)
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
            answer = await self._broker.metadata.members.administer(AdminRequest(kind, request.node_id))
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

    async def _control(self, connection: Connection, correlation: int, header: bytes) -> None:
        controls.carry_out(self._broker, decode_message(messages.Control, header), connection.peer)
        self.respond(connection, correlation, messages.Empty())

    async def _stats(self, connection: Connection, correlation: int, header: bytes) -> None:
        uptime = int((self._broker.clock.monotonic() - self._started) * 1000)
        answer = messages.StatsAnswer(self._read_rss(), uptime, self._broker.metrics.values())
        self.respond(connection, correlation, answer)


def _no_copy(topic: TopicLog, segment: SegmentState) -> NodeUnreachable:
    return NodeUnreachable(f"this node has no whole copy of {topic.state.key_of(segment)} yet")
