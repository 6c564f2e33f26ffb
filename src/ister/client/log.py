"""The log as a program holds it: append, produce, read. Its parts have the topics, the nodes and the rest.

    async with ister.connect("127.0.0.1:9091") as log:
        appended = await log.append("orders", [b"one", b"two"])
        async for record in log.read("orders"):
            print(record.offset, record.value)

Every request is retried after errors that may pass, until `retry_deadline_s`. Appends carry an identity, so
that a retry is never a second copy (A5): one for each topic that this log appends to, made at the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from ister.client.ends import Ends
from ister.client.history import HistoryOfTopics
from ister.client.losses import Losses
from ister.client.moves import Moves
from ister.client.nodes import Nodes
from ister.client.producer import Producer, codec_named
from ister.client.reader import Place, Reader, reading_key
from ister.client.requests import Requests
from ister.client.routing import Routes
from ister.client.sequencer import MAX_WINDOW, Identity, Sequencer
from ister.client.subscription import ConsumerOptions, Subscription
from ister.client.subscriptions import Subscriptions
from ister.client.topics import Topics
from ister.columns import RecordHeaders
from ister.errors import ConfigError, ConnectionFailed, NotLeader, UnknownProducer
from ister.io.clock import Clock, SystemClock
from ister.io.network import Network, TcpNetwork
from ister.names import normalise_topic
from ister.protocol.messages import ANY_OFFSET
from ister.protocol.subscriptions import FailurePolicy

CLIENT_NAME: Final = "ister-python/0.1.0"
OnTimeout = Literal["go on", "fail"]
"""What a producer does after a batch that timed out."""


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


class Log(Topics, Ends, Subscriptions, Losses, Moves, Nodes, HistoryOfTopics):
    """Made by `connect`. Belongs to one event loop; any number of its tasks may use it at once."""

    def __init__(
        self, routes: Routes, clock: Clock, request_timeout_s: float, retry_deadline_s: float
    ) -> None:
        super().__init__(Requests(routes, clock, request_timeout_s, retry_deadline_s))
        self._sequencers: dict[str, Sequencer] = {}
        self._retired: list[Sequencer] = []
        """Of topics that were deleted; what was appended before may still be on its way."""
        self._producers: list[Producer] = []
        self._subscriptions: list[Subscription] = []

    @property
    def cluster_id(self) -> str:
        """Of the cluster that this log is connected to (I1)."""
        return self.requests.routes.cluster_id

    async def __aenter__(self) -> Self:
        await self.requests.routes.connection(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up what is open and disconnect. Producers are closed by their own `async with` before."""
        for subscription in list(self._subscriptions):
            await subscription.close()
        for producer in self._producers:
            if not producer.is_closed:
                producer.abandon("was left open when its log was closed")
        for sequencer in (*self._sequencers.values(), *self._retired):
            sequencer.close(ConnectionFailed("the log was closed", hint="Call ister.connect again."))
        await self.requests.routes.close()

    async def append(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[RecordHeaders] | None = None,
        compression: str = "none",
        expected_offset: int | None = None,
    ) -> Appended:
        """Append the records as one frame: all of them or none. Concurrent appends to one topic take
        effect in the order of the calls.

        With `expected_offset` they are appended only if the first of them gets that offset; else nothing is,
        and `UnexpectedOffset` is raised. Of several writers that expect the same offset, one wins.
        """
        codec = codec_named(compression)
        while True:
            sequencer = self._sequencers.get(topic)
            if sequencer is None or sequencer.finished is not None:
                sequencer = self._own_sequencer(topic)
            batch = sequencer.put(
                values,
                keys,
                timestamps_us,
                headers,
                codec,
                ANY_OFFSET if expected_offset is None else expected_offset,
            )
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
        on_timeout: OnTimeout = "go on",
    ) -> Producer:
        """A producer of its own identity; use it in an `async with`.

        `idempotent=False` lets a retry append a second copy, and frames change places after an error.
        A batch that times out may be stored yet, behind those that follow it. With `on_timeout="fail"` none
        follows: all that is not acknowledged fails with it, and the producer takes nothing more.
        """
        if on_timeout not in ("go on", "fail"):
            raise ConfigError(f"on_timeout is {on_timeout!r}", hint='Choose "go on" or "fail".')
        if on_timeout == "fail" and not idempotent:
            raise ConfigError(
                'on_timeout="fail" with idempotent=False',
                hint="Only an idempotent producer keeps its records in order: leave out one of the two.",
            )
        producer = Producer(
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            batch_records=batch_records,
            buffer_bytes=buffer_bytes,
            compression=compression,
        )
        sequencer = self._sequencer(topic, max_in_flight, idempotent, producer)
        sequencer.goes_on = on_timeout == "go on"
        producer.attach(sequencer)
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

    def sequencer(self, topic: str, identity: Identity | None = None, *, uid: int = 0) -> Sequencer:
        """For programs that make frames by themselves: up to 8 on their way, each appended once (A5), under
        an `identity` of theirs or a new one; with `uid` to the topic that has it, and no other that has its
        name by then. It is theirs to close, before this log."""
        return self._sequencer(topic, MAX_WINDOW, identity=identity, uid=uid)

    @property
    def told_index(self) -> int:
        """The newest metadata that a node has told of: to be noted before a look that is to tell whether an
        identity was used before, and stated with it (`Identity.told_index`)."""
        return self.requests.routes.told_index

    def _sequencer(
        self,
        topic: str,
        window: int,
        idempotent: bool = True,
        producer: Producer | None = None,
        identity: Identity | None = None,
        uid: int = 0,
    ) -> Sequencer:
        return Sequencer(
            topic,
            self.requests.routes,
            self.requests.clock,
            window=window,
            idempotent=idempotent,
            request_timeout_s=self.requests.request_timeout_s,
            retry_deadline_s=self.requests.retry_deadline_s,
            on_settled=producer.settled if producer is not None else None,
            identity=identity,
            uid=uid,
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
        uid: int = 0,
    ) -> Reader:
        """Read from `start` (`earliest`, `latest`, an offset, a time) or the `last` so many records: fewer,
        if the first of those offsets were given up, for it then begins behind them.

        Without `follow` it stops at the end that the topic has when the reading begins; with it, it waits
        for more, up to `end` if that is given. `max_bytes` is about how much one fetch brings.

        `read_from="any"` lets any replica answer for the segment that is being appended to, too: with what
        is committed, which a follower hears within 50 ms. Where the topic ends is still asked of the leader.

        With `uid` only the topic that has it is read, and `UnknownTopic` raised where another has its name.
        """
        name = normalise_topic(topic)
        key = reading_key(name, read_from)
        return Reader(
            self.requests.call,
            name,
            start=start,
            end=end,
            follow=follow,
            last=last,
            max_bytes=max_bytes,
            served_by=lambda node_id: self.requests.routes.learned(key, node_id),
            on_behind=lambda: self.requests.routes.failed(key, NotLeader(f"an older end of {name} was told")),
            min_index=lambda: self.requests.routes.known_index(name),
            read_from=read_from,
            uid=uid,
        )

    def subscribe(
        self,
        topic: str,
        name: str,
        *,
        kind: str | None = None,
        start: Place = "latest",
        policy: FailurePolicy | None = None,
        window: int = 10_000,
        max_bytes: int = 1024 * 1024,
    ) -> Subscription:
        """Consume a subscription: iterate it for messages, and acknowledge each.

        It is made if it is not there: of `kind` (exclusive if that is not given), beginning at `start`, with
        `policy`. One that is there goes on where it is, and these change nothing; if it is of another kind
        than the one given, that is an error. `window` is how many records this consumer takes without having
        acknowledged them."""
        options = ConsumerOptions(kind, start, policy, window, max_bytes)
        subscription = Subscription(self, normalise_topic(topic), name, options)
        self._subscriptions.append(subscription)
        return subscription

    def forget_subscription(self, subscription: Subscription) -> None:
        """It was closed."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic that has this name now, and never one that is made after it: an attempt that was
        repeated may be carried out late."""
        await super().delete_topic(topic)
        self._retire(normalise_topic(topic))

    def _retire(self, topic: str) -> None:
        """One that is made again under this name has never heard of this log's identity: it takes another."""
        self._retired = [sequencer for sequencer in self._retired if sequencer.unsettled()]
        known = self._sequencers.get(topic)
        if known is not None:
            self._retired.append(known)
            self._sequencers = {key: one for key, one in self._sequencers.items() if one is not known}
