"""The client without an event loop: the same names, for plain programs, notebooks and threads.

    from ister import sync

    with sync.connect("127.0.0.1:9091") as log:
        log.append("orders", [b"one", b"two"])
        for record in log.read("orders"):
            ...

One thread of its own runs the event loop and the asynchronous client. Reading crosses over once for each
fetched chunk and producing once for as many records as have gathered meanwhile, never once for each record.
Any number of threads may share a log. A wait that is interrupted (Ctrl-C) is cancelled on the other side too.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ister.client import log as asynchronous
from ister.client.log import Appended
from ister.client.portal import Portal, Turns
from ister.client.producer import Producer as AsyncProducer
from ister.client.reader import Chunk, Place, batches_in, clipped
from ister.client.reader import Reader as AsyncReader
from ister.client.subscription import Subscription as AsyncSubscription
from ister.client.sync_producer import Producer as Producer
from ister.client.sync_producer import Receipt as Receipt
from ister.client.sync_subscription import Batch as Batch
from ister.client.sync_subscription import Message as Message
from ister.client.sync_subscription import Subscription as Subscription
from ister.columns import RecordHeaders
from ister.errors import BadRequest, ConnectionFailed
from ister.frame import Frame, Record
from ister.protocol.history import HistoryList, ObjectsMerged, ReplacedPart
from ister.protocol.messages import (
    ClusterAnswer,
    NodeAnswer,
    PinDescription,
    Pinned,
    StatsAnswer,
    TopicDescription,
)
from ister.protocol.moves import BalanceAnswer, DrainDescription, MoveDescription
from ister.protocol.recovery import TopicRecovery
from ister.protocol.subscriptions import FailurePolicy, SubscriptionDescription

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def connect(bootstrap: str, **options: Any) -> Log:
    """As `ister.connect`, with the same options; to be used in a `with`."""
    return Log(bootstrap, options)


def connect_in_turns(bootstrap: str, **options: Any) -> Log:
    """The same without a thread: the client works while this one waits for it. Reads faster, and is for one
    thread alone, which produces nothing."""
    return Log(bootstrap, options, in_turns=True)


class Log:
    def __init__(self, bootstrap: str, options: dict[str, Any], *, in_turns: bool = False) -> None:
        self._log = asynchronous.connect(bootstrap, **options)
        self._in_turns = in_turns
        self._portal: Portal | Turns | None = None

    def __enter__(self) -> Self:
        self._portal = Turns() if self._in_turns else Portal()
        try:
            self._run(self._log.__aenter__())
        except BaseException:
            self._portal.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        portal = self._portal
        if portal is not None and portal.is_open:
            try:
                portal.run(self._log.close())
            finally:
                portal.stop()

    def append(
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
        return self._run(
            self._log.append(
                topic,
                values,
                keys=keys,
                timestamps_us=timestamps_us,
                headers=headers,
                compression=compression,
                expected_offset=expected_offset,
            )
        )

    def producer(self, topic: str, **options: Any) -> Producer:
        async def make() -> AsyncProducer:
            return self._log.producer(topic, **options)

        portal = self._open_portal()
        if isinstance(portal, Turns):
            raise BadRequest(
                "a log that works in turns has nobody who sends while records gather",
                hint="Call ister.sync.connect instead.",
            )
        return Producer(portal, self._run(make()))

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
        reader = self._log.read(
            topic,
            start=start,
            end=end,
            follow=follow,
            last=last,
            max_bytes=max_bytes,
            read_from=read_from,
            uid=uid,
        )
        return Reader(self._open_portal(), reader)

    def create_topic(self, topic: str, *, if_absent: bool = False, **settings: int | str) -> TopicDescription:
        return self._run(self._log.create_topic(topic, if_absent=if_absent, **settings))

    def delete_topic(self, topic: str) -> None:
        self._run(self._log.delete_topic(topic))

    def trim_topic(self, topic: str, before_offset: int, *, uid: int = 0) -> int:
        return self._run(self._log.trim_topic(topic, before_offset, uid=uid))

    def pin(
        self, topic: str, name: str, offset: int, *, ttl_s: float = 60.0, uid: int = 0, about: str = ""
    ) -> Pinned:
        return self._run(self._log.pin(topic, name, offset, ttl_s=ttl_s, uid=uid, about=about))

    def unpin(self, topic: str, name: str, *, uid: int = 0) -> None:
        self._run(self._log.unpin(topic, name, uid=uid))

    def pins(self, prefix: str = "") -> list[PinDescription]:
        return self._run(self._log.pins(prefix))

    def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        kind: str = "exclusive",
        start: Place = "latest",
        if_absent: bool = False,
        policy: FailurePolicy | None = None,
    ) -> SubscriptionDescription:
        return self._run(
            self._log.create_subscription(
                topic, name, kind=kind, start=start, if_absent=if_absent, policy=policy
            )
        )

    def delete_subscription(self, topic: str, name: str) -> None:
        self._run(self._log.delete_subscription(topic, name))

    def seek_subscription(self, topic: str, name: str, place: Place) -> SubscriptionDescription:
        return self._run(self._log.seek_subscription(topic, name, place))

    def pause_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return self._run(self._log.pause_subscription(topic, name))

    def resume_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return self._run(self._log.resume_subscription(topic, name))

    def subscriptions(self, prefix: str = "", name: str = "") -> list[SubscriptionDescription]:
        return self._run(self._log.subscriptions(prefix, name))

    def subscribe(self, topic: str, name: str, **options: Any) -> Subscription:
        async def make() -> AsyncSubscription:
            return self._log.subscribe(topic, name, **options)

        return Subscription(self._open_portal(), self._run(make()))

    def alter_topic(self, topic: str, **settings: int | str) -> TopicDescription:
        return self._run(self._log.alter_topic(topic, **settings))

    def describe_topic(self, topic: str) -> TopicDescription:
        return self._run(self._log.describe_topic(topic))

    def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        return self._run(self._log.list_topics(prefix))

    def history(self, topic: str, start: int = 0, end: int = 0) -> HistoryList:
        return self._run(self._log.history(topic, start, end))

    def merge_objects(
        self, topic: str, topic_uid: int, attempt: int, parts: list[ReplacedPart]
    ) -> ObjectsMerged:
        return self._run(self._log.merge_objects(topic, topic_uid, attempt, parts))

    def offsets_at(self, topic: str, place: str | int | datetime, *, uid: int = 0) -> int:
        return self._run(self._log.offsets_at(topic, place, uid=uid))

    def ends_of(self, uids: Mapping[str, int]) -> dict[str, int | None]:
        return self._run(self._log.ends_of(uids))

    def wait_for_records(self, ends: Mapping[str, int], wait_s: float) -> bool:
        return self._run(self._log.wait_for_records(ends, wait_s))

    @property
    def cluster_id(self) -> str:
        return self._log.cluster_id

    def cluster(self) -> ClusterAnswer:
        return self._run(self._log.cluster())

    def stats(self) -> StatsAnswer:
        return self._run(self._log.stats())

    def recovery_of(self, topic: str) -> TopicRecovery:
        return self._run(self._log.recovery_of(topic))

    def accept_loss(self, shown: TopicRecovery, *, node_stopped: bool) -> TopicRecovery:
        return self._run(self._log.accept_loss(shown, node_stopped=node_stopped))

    def transfer_leader(self, node_id: int = 0) -> NodeAnswer:
        return self._run(self._log.transfer_leader(node_id))

    def add_node(self, host: str, port: int) -> NodeAnswer:
        return self._run(self._log.add_node(host, port))

    def remove_node(self, node_id: int, *, disk_gone: bool = False) -> NodeAnswer:
        return self._run(self._log.remove_node(node_id, disk_gone=disk_gone))

    def promote_node(self, node_id: int) -> NodeAnswer:
        return self._run(self._log.promote_node(node_id))

    def move_topic(self, topic: str, node_id: int, *, plan: bool = False) -> MoveDescription:
        return self._run(self._log.move_topic(topic, node_id, plan=plan))

    def unload_topic(self, topic: str, *, plan: bool = False) -> MoveDescription:
        return self._run(self._log.unload_topic(topic, plan=plan))

    def release_topic(self, topic: str) -> MoveDescription:
        return self._run(self._log.release_topic(topic))

    def moves(self, topic: str = "", move: int = 0) -> list[MoveDescription]:
        return self._run(self._log.moves(topic, move))

    def cancel_move(self, move: int) -> MoveDescription:
        return self._run(self._log.cancel_move(move))

    def drain_node(self, node_id: int, *, dry_run: bool = False, max_parallel: int = 4) -> DrainDescription:
        return self._run(self._log.drain_node(node_id, dry_run=dry_run, max_parallel=max_parallel))

    def activate_node(self, node_id: int) -> DrainDescription:
        return self._run(self._log.activate_node(node_id))

    def balance(self, *, dry_run: bool = False, strategy: str = "") -> BalanceAnswer:
        return self._run(self._log.balance(dry_run=dry_run, strategy=strategy))

    def control(self, action: str, secret: str, topic: str = "", count: int = 1) -> None:
        self._run(self._log.control(action, secret, topic, count))

    def _open_portal(self) -> Portal | Turns:
        if self._portal is None:
            raise ConnectionFailed("this log is not open", hint="Use it in a with statement.")
        return self._portal

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            portal = self._open_portal()
        except ConnectionFailed:
            work.close()
            raise
        return portal.run(work)


class Reader:
    """Iterate it for records, or take `frames()` or `batches()`: each begins anew."""

    def __init__(self, portal: Portal | Turns, reader: AsyncReader) -> None:
        self._portal = portal
        self._reader = reader

    def __iter__(self) -> Iterator[Record]:
        for chunk in self._chunks():
            for frame in chunk.frames:
                yield from clipped(frame, chunk)

    def frames(self) -> Iterator[Frame]:
        for chunk in self._chunks():
            yield from chunk.frames

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for chunk in self._chunks():
            yield from batches_in(chunk, columns)

    def _chunks(self) -> Iterator[Chunk]:
        chunks = self._reader.chunks()

        async def step() -> Chunk | None:
            return await anext(chunks, None)

        try:
            while (chunk := self._portal.run(step())) is not None:
                yield chunk
        finally:
            if self._portal.is_open:
                self._portal.run(chunks.aclose())
