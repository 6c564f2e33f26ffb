"""The log as a program holds it: append, produce, read, and the topics themselves.

    async with ister.connect("127.0.0.1:9091") as log:
        appended = await log.append("orders", [b"one", b"two"])
        async for record in log.read("orders"):
            print(record.offset, record.value)

Every request is retried after errors that may pass, until `retry_deadline_s`. Appends carry an identity, so
that a retry is never a second copy (A5): one for each topic that this log appends to, made at the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import msgspec

from ister.client.connection import Answer
from ister.client.producer import Producer, codec_named
from ister.client.reader import Place, Reader, reading_key, wire_place
from ister.client.retry import Retries
from ister.client.routing import Routes
from ister.client.sequencer import MAX_WINDOW, Sequencer
from ister.columns import RecordHeaders
from ister.errors import (
    ConfigError,
    ConnectionFailed,
    IsterError,
    NotLeader,
    TopicExists,
    UnknownProducer,
    UnknownTopic,
)
from ister.io.clock import Clock, SystemClock
from ister.io.network import Network, TcpNetwork
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import (
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
    Kind,
    ListOffsets,
    ListOffsetsAnswer,
    ListTopics,
    NodeAnswer,
    NodeRequest,
    RecoverTopic,
    StatsAnswer,
    TopicDescription,
    TopicList,
)
from ister.protocol.recovery import TopicRecovery

CLIENT_NAME: Final = "ister-python/0.1.0"
_NO_ARRAY: Final = b"\x90"


class Appended(msgspec.Struct, frozen=True):
    """Where the records of one append are."""

    base_offset: int
    count: int
    append_time_us: int

    @property
    def offsets(self) -> range:
        return range(self.base_offset, self.base_offset + self.count)


def connect(
    bootstrap: str,
    *,
    request_timeout_s: float = 30.0,
    connect_timeout_s: float = 5.0,
    retry_deadline_s: float = 60.0,
    network: Network | None = None,
    clock: Clock | None = None,
) -> Log:
    """A log served at `host:port[,host:port...]`, to be used in an `async with`.

    Entering it makes the first connection, and fails at once if no address answers. `request_timeout_s`
    bounds one request, `retry_deadline_s` all the attempts at one thing. `network` and `clock` are seams.
    """
    for name, seconds in (
        ("request_timeout_s", request_timeout_s),
        ("connect_timeout_s", connect_timeout_s),
        ("retry_deadline_s", retry_deadline_s),
    ):
        if seconds <= 0:
            raise ConfigError(f"{name} is {seconds:g}", hint="Give a time above 0, in seconds.")
    routes = Routes(
        bootstrap, network or TcpNetwork(), client=CLIENT_NAME, connect_timeout_s=connect_timeout_s
    )
    return Log(routes, clock or SystemClock(), request_timeout_s, retry_deadline_s)


class Log:
    """Made by `connect`. Belongs to one event loop; any number of its tasks may use it at once."""

    def __init__(
        self, routes: Routes, clock: Clock, request_timeout_s: float, retry_deadline_s: float
    ) -> None:
        self._routes = routes
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._retry_deadline_s = retry_deadline_s
        self._sequencers: dict[str, Sequencer] = {}
        self._retired: list[Sequencer] = []
        """Of topics that were deleted; what was appended before may still be on its way."""
        self._producers: list[Producer] = []

    async def __aenter__(self) -> Self:
        await self._routes.connection(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up what is open and disconnect. Producers are closed by their own `async with` before."""
        for producer in self._producers:
            if not producer.is_closed:
                producer.abandon("was left open when its log was closed")
        for sequencer in (*self._sequencers.values(), *self._retired):
            sequencer.close(ConnectionFailed("the log was closed", hint="Call ister.connect again."))
        await self._routes.close()

    # Records.

    async def append(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[RecordHeaders] | None = None,
        compression: str = "none",
    ) -> Appended:
        """Append the records as one frame: all of them or none. Concurrent appends to one topic take
        effect in the order of the calls."""
        codec = codec_named(compression)
        while True:
            sequencer = self._sequencers.get(topic)
            if sequencer is None or sequencer.finished is not None:
                sequencer = self._own_sequencer(topic)
            batch = sequencer.put(values, keys, timestamps_us, headers, codec)
            try:
                base_offset = await batch.wait(0)
            except UnknownProducer:
                # The log forgot an identity that had long been silent. If this frame was never in doubt it
                # is not in the log, and may go again under a new one; otherwise the caller must know.
                if batch.doubtful or batch.attempts > 1:
                    raise
                continue
            assert batch.answer is not None
            return Appended(base_offset, batch.count, batch.answer.append_time_us)

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = 2,
        batch_bytes: int = 256 * 1024,
        batch_records: int = 10_000,
        compression: str = "none",
        idempotent: bool = True,
        max_in_flight: int = 5,
        buffer_bytes: int = 32 * 1024 * 1024,
    ) -> Producer:
        """A producer of its own identity; use it in an `async with`.

        `idempotent=False` lets a retry append a second copy, and frames change places after an error.
        """
        producer = Producer(
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            buffer_bytes=buffer_bytes,
            compression=compression,
        )
        producer.attach(self._sequencer(topic, max_in_flight, idempotent, producer))
        self._producers = [known for known in self._producers if not known.is_closed]
        self._producers.append(producer)
        return producer

    def _own_sequencer(self, topic: str) -> Sequencer:
        """This log's own identity for a topic, whichever of its names it was called by."""
        name = normalise_topic(topic)
        sequencer = self._sequencers.get(name)
        if sequencer is None or sequencer.finished is not None:
            sequencer = self._sequencers[name] = self._sequencer(name, MAX_WINDOW)
            before = next((one for one in reversed(self._retired) if one.topic == name), None)
            if before is not None:
                sequencer.go_behind(before)
        self._sequencers[topic] = sequencer
        return sequencer

    def _sequencer(
        self, topic: str, window: int, idempotent: bool = True, producer: Producer | None = None
    ) -> Sequencer:
        return Sequencer(
            topic,
            self._routes,
            self._clock,
            window=window,
            idempotent=idempotent,
            request_timeout_s=self._request_timeout_s,
            retry_deadline_s=self._retry_deadline_s,
            on_settled=producer.settled if producer is not None else None,
        )

    def read(
        self,
        topic: str,
        *,
        start: Place = "earliest",
        end: int | None = None,
        follow: bool = False,
        last: int | None = None,
        max_bytes: int = 1024 * 1024,
        read_from: str = "leader",
    ) -> Reader:
        """Read from `start` (`earliest`, `latest`, an offset, a time) or the `last` so many records.

        Without `follow` it stops at the end that the topic has when the reading begins; with it, it waits
        for more, up to `end` if that is given. `max_bytes` is about how much one fetch brings.

        `read_from="any"` lets any replica answer for the segment that is being appended to, too: with what
        is committed, which a follower hears within 50 ms. Where the topic ends is still asked of the leader.
        """
        name = normalise_topic(topic)
        key = reading_key(name, read_from)
        return Reader(
            self.call,
            name,
            start=start,
            end=end,
            follow=follow,
            last=last,
            max_bytes=max_bytes,
            served_by=lambda node_id: self._routes.learned(key, node_id),
            on_behind=lambda: self._routes.failed(key, NotLeader(f"an older end of {name} was told")),
            min_index=lambda: self._routes.known_index(name),
            read_from=read_from,
        )

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
                self._retire(name)
                return
            self._routes.changed_at(name, deleted.index)
            known, uid = uid, (await self.describe_topic(name)).uid
            if uid == known:  # else the node that described it first was behind
                raise UnknownTopic(f"topic {name} was deleted by somebody else")

    def _retire(self, topic: str) -> None:
        """One that is made again under this name has never heard of this log's identity: it takes another."""
        self._retired = [sequencer for sequencer in self._retired if sequencer.unsettled()]
        known = self._sequencers.get(topic)
        if known is not None:
            self._retired.append(known)
            self._sequencers = {key: one for key, one in self._sequencers.items() if one is not known}

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
        """Give up, for good, what cannot be reached of a topic's open segment, so that the topic goes on
        (F6).

        `shown` is what `recovery_of` said: no other segment is given up, and nothing that lies before its
        `lost_from`. `node_stopped` states that the nodes in `shown.silent` are stopped, and stay so until
        they have heard of this.
        """
        request = RecoverTopic(
            shown.topic,
            accept_loss=True,
            node_stopped=node_stopped,
            segment_uid=shown.segment_uid,
            leader_starts=shown.leader_starts,
            lost_from=shown.lost_from,
        )
        return await self._recover(f"accepting the loss of {shown.topic}", request)

    async def _recover(self, what: str, request: RecoverTopic) -> TopicRecovery:
        # Of any node: the one that leads the topic is the last to ask.
        answer = await self.call(what, Kind.RECOVER_TOPIC, encode_header(request))
        return decode_header(TopicRecovery, answer.header or answer.payload)

    async def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        """All topics whose full name starts with `prefix`, without their segments."""
        answer = await self.call("listing topics", Kind.LIST_TOPICS, encode_header(ListTopics(prefix)))
        return decode_header(TopicList, answer.header or answer.payload).topics

    async def offsets_at(self, topic: str, place: str | int | datetime) -> int:
        """The offset at `earliest`, `latest`, or of the first record appended at or after a time
        (a datetime, or microseconds since 1970); the end of the topic where there is no such record."""
        name = normalise_topic(topic)
        header = encode_header(ListOffsets(name, [wire_place(place)], self._routes.known_index(name)))
        answer = await self.call(f"finding offsets of {name}", Kind.LIST_OFFSETS, header, name)
        return decode_header(ListOffsetsAnswer, answer.header).offsets[0]

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

    async def remove_node(self, node_id: int) -> NodeAnswer:
        """Take a node out of the cluster; refused while it has records that nobody else has (R2)."""
        return await self._administer(f"removing node {node_id}", Kind.REMOVE_NODE, NodeRequest(node_id))

    async def promote_node(self, node_id: int) -> NodeAnswer:
        """Make a voter of a learner that has caught up (R2)."""
        return await self._administer(f"promoting node {node_id}", Kind.PROMOTE_NODE, NodeRequest(node_id))

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

    # Requests.

    async def call(
        self, what: str, kind: int, header: bytes, topic: str | None = None, *, wait_s: float = 0.0
    ) -> Answer:
        """One request that may be repeated safely, with its retries."""
        return await self._attempt(self._retries(what), kind, header, topic, wait_s=wait_s)

    def _retries(self, what: str) -> Retries:
        return Retries(self._clock, self._retry_deadline_s, what)

    async def _attempt(
        self, retries: Retries, kind: int, header: bytes, topic: str | None, *, wait_s: float = 0.0
    ) -> Answer:
        timeout_s = self._request_timeout_s + wait_s
        while True:
            try:
                connection = await self._routes.connection(topic)
                return await connection.request(kind, header, timeout_s=timeout_s)
            except IsterError as error:
                if self._routes.is_closed:
                    raise  # whatever it was, nothing of this log will be tried again
                self._routes.failed(topic, error)
                await retries.pause(error)
