"""The answer to a fetch: from this node's log, from its copy of what another leads, or from another node.

Whoever has the next record answers; who that is may change while a reader waits, so it is looked up again
after each wait and each handoff. That an offset lies past the end is said only by a node that knows all that
was committed: a seal may be applied of which it has not heard.

Bounds: a reader that waits holds neither a slot nor memory. What is read or passed on takes its share of the
memory of answers first; a frame is never split, so one that is larger waits for as much as it needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ister.broker.forward.elsewhere import Elsewhere, no_copy
from ister.broker.topic.followed_copy import FollowedCopy
from ister.broker.topic.location import Follower, Remote
from ister.broker.topic.reads import Reads
from ister.broker.topic.topic_log import TopicLog
from ister.errors import CorruptSegment, NotLeader, StorageFailed, UnknownTopic
from ister.io.clock import monotonic
from ister.metadata.state import SegmentState
from ister.metrics import Counter, Histogram
from ister.protocol import messages
from ister.protocol.codec import decode_header as decode_message
from ister.protocol.codec import encode_header
from ister.protocol.messages import Kind

if TYPE_CHECKING:
    from ister.broker.clients.connection import Connection
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.clients.fetching")

MAX_FETCH_BYTES = 8 * 1024 * 1024
MAX_WAIT_MS = 60_000
_LOOK_SECONDS = 1.0
"""How often a follower with readers that wait looks whether the leader is there."""

Readable = Reads | FollowedCopy


class Fetches:
    def __init__(self, broker: Broker, elsewhere: Elsewhere) -> None:
        self._broker = broker
        self._elsewhere = elsewhere
        self.records_out = Counter("records_out_total", "Records sent to readers.")
        self.fetch_seconds = Histogram("fetch_duration_seconds", "Time to answer a fetch that has data.")

    async def answer(self, connection: Connection, correlation: int, header: bytes) -> None:
        request = decode_message(messages.Fetch, header)
        deadline = monotonic() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        looking = self._elsewhere.looking(request.offset)
        while True:
            topic = await self._broker.find_same(request.topic, request.topic_uid, request.min_index)
            async with looking.at(topic):
                return await self._answer_from(topic, connection, correlation, request, deadline)

    async def _answer_from(
        self,
        topic: TopicLog,
        connection: Connection,
        correlation: int,
        request: messages.Fetch,
        deadline: float,
    ) -> None:
        while True:
            if request.read_from_any and await self._fetch_followed(
                connection, correlation, request, topic, deadline
            ):
                return
            found = topic.places.locate(request.offset)
            if isinstance(found, Follower | Remote):
                if request.here_only:
                    raise no_copy(topic, found.segment)
                await self._fetch_elsewhere(connection, correlation, request, found.segment, deadline)
                return
            if deadline <= monotonic() or not await topic.reads.is_at_end(request.offset):
                break
            await self._wait_for_records(topic, request.offset, deadline - monotonic())
            if topic.known.is_deleted:
                raise UnknownTopic(f"topic {topic.state.name} was deleted")
            if not topic.places.is_elsewhere(request.offset):
                break  # else another node leads now: the next record will be there
        try:
            await self._fetch_here(connection, correlation, request, topic.reads)
        except NotLeader as error:
            if request.as_it_is and isinstance(error.__cause__, CorruptSegment):
                raise error.__cause__.again() from error
            raise

    async def _fetch_followed(
        self,
        connection: Connection,
        correlation: int,
        request: messages.Fetch,
        topic: TopicLog,
        deadline: float,
    ) -> bool:
        """From this node's copy of an open segment that another one leads. False if the leader is to be
        asked: this node does not follow, is behind the reader, cannot read its copy now, or has nothing new
        and may be cut off."""
        found = topic.places.locate(request.offset)
        if not isinstance(found, Follower):
            return False
        copy = FollowedCopy(topic, found.copy, self._broker.disk)
        leader = copy.state.open_segment.leader
        while copy.end_offset <= request.offset and copy.is_there and monotonic() < deadline:
            if not self._broker.metadata.is_alive(leader):
                return False
            seconds = min(_LOOK_SECONDS, deadline - monotonic())
            await self._wait_for_commit(
                topic, seconds, lambda: copy.end_offset > request.offset or not copy.is_there
            )
        if copy.end_offset <= request.offset or not copy.is_there:
            return False
        try:
            await self._fetch_here(connection, correlation, request, copy)
        except StorageFailed as error:
            log.debug("the leader is asked: %s", error.message)
            return False
        return True

    async def read(self, request: messages.Fetch) -> bytes:
        """Whole frames from the one that holds an offset, wherever it is; empty at the end. For this node."""
        looking = self._elsewhere.looking(request.offset)
        while True:
            topic = await self._broker.find(request.topic)
            async with looking.at(topic):
                found = topic.places.locate(request.offset)
                if not isinstance(found, Follower | Remote):
                    return b"".join((await topic.reads.read(request.offset, request.max_bytes)).buffers)
                segment = found.segment
                passed = msgspec.structs.replace(
                    request, min_index=self._elsewhere.index_of(segment), here_only=segment.is_sealed
                )
                return bytes((await self._elsewhere.ask(segment, Kind.FETCH, passed)).payload)

    async def wait(self, name: str, offset: int, seconds: float) -> None:
        """Until there may be a record at an offset, wherever that will be, or the time is over. For this
        node."""
        topic = await self._broker.find(name)
        found = topic.places.locate(offset)
        if not isinstance(found, Follower | Remote):
            await self._wait_for_records(topic, offset, seconds)
            return
        request = messages.Fetch(
            name,
            offset,
            1,
            int(seconds * 1000),
            self._elsewhere.index_of(found.segment),
            only_wait=True,
            here_only=found.segment.is_sealed,
        )
        await self._elsewhere.ask(found.segment, Kind.FETCH, request, seconds)

    async def _fetch_here(
        self, connection: Connection, correlation: int, request: messages.Fetch, readable: Readable
    ) -> None:
        if request.only_wait:
            node_id = self._broker.config.node_id
            answer = messages.FetchAnswer(
                readable.state.start_offset, readable.end_offset, node_id, readable.state.uid
            )
            connection.respond(correlation, encode_header(answer), [])
            return
        max_bytes = max(1, min(request.max_bytes, MAX_FETCH_BYTES))
        async with connection.read_slots:
            least: int | None = 0
            while least is not None:
                least = await self._read(connection, correlation, readable, request.offset, max_bytes, least)

    async def _read(
        self,
        connection: Connection,
        correlation: int,
        readable: Readable,
        offset: int,
        max_bytes: int,
        least: int,
    ) -> int | None:
        """Answer with what is there; or say how much memory that takes, if it is more than there is now."""
        with await connection.room_for(max_bytes, least) as share:
            started = monotonic()
            found = await readable.read(offset, min(share.size, max_bytes))
            # A frame is never split: one may be larger than what was asked for.
            size = sum(map(len, found.buffers))
            if size > share.size and not share.grow(size):
                return size
            state = readable.state
            answer = messages.FetchAnswer(
                state.start_offset, readable.end_offset, self._broker.config.node_id, state.uid
            )
            connection.respond(correlation, encode_header(answer), list(found.buffers))
            if found.records:
                self.records_out.add(found.records)
                self.fetch_seconds.observe(monotonic() - started)
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
        wait_s = max(0.0, deadline - monotonic())
        passed = msgspec.structs.replace(
            request, min_index=self._elsewhere.index_of(segment), wait_ms=0, here_only=segment.is_sealed
        )
        if wait_s and not request.only_wait and await self._pass_on(connection, correlation, passed, segment):
            return
        if wait_s:
            waiting = msgspec.structs.replace(passed, wait_ms=int(wait_s * 1000), only_wait=True)
            answer = await self._elsewhere.ask(segment, Kind.FETCH, waiting, wait_s)
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
                with await connection.room_for(max(1, passed.max_bytes), least) as share:
                    asked = msgspec.structs.replace(passed, max_bytes=min(share.size, passed.max_bytes))
                    answer = await self._elsewhere.ask(segment, Kind.FETCH, asked)
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

    async def _wait_for_records(self, topic: TopicLog, offset: int, seconds: float) -> None:
        """Until there is a record at `offset`, the topic is gone, or another node has what comes next."""
        await self._wait_for_commit(
            topic, seconds, lambda: topic.reads.end_offset > offset or topic.places.is_elsewhere(offset)
        )

    async def _wait_for_commit(self, topic: TopicLog, seconds: float, is_over: Callable[[], bool]) -> None:
        woken = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                while not topic.known.is_deleted and not is_over():
                    topic.known.wait_for_commit(woken.set)
                    await woken.wait()
                    woken.clear()
        except TimeoutError:
            pass
        finally:
            topic.known.stop_waiting(woken.set)
