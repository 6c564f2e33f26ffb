"""A node's part in the history: one for each broker, which has a store or has none (`local` mode)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from ister.errors import CorruptSegment, IsterError, ObjectNotFound
from ister.failpoints import Step
from ister.history.exporting import Exporting, exported
from ister.history.reading import HistoryReader, Wanted
from ister.history.releasing import Releasing
from ister.history.suspecting import Suspecting
from ister.history.sweeping import Sweeping
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.io.object_store import ObjectStore
from ister.metadata.state import TopicState
from ister.metadata.store import MetadataStore
from ister.metrics import Registry
from ister.replication.places import Place

log = logging.getLogger("ister.history")


class History:
    def __init__(
        self,
        store: ObjectStore,
        disk: Disk,
        clock: Clock,
        metadata: MetadataStore,
        *,
        member: int,
        cluster_id: Callable[[], str],
        place: Callable[[int, int], Place | None],
        is_served: Callable[[int], bool],
        found_damage: Callable[[Place, str], object],
        led: Callable[[], Iterable[TopicState]],
        export_bytes_per_second: int,
        received: Callable[[], int],
        cache_bytes: int,
        on_refused: Callable[[IsterError], None],
        reach: Callable[[Step], None],
    ) -> None:
        self.store = store
        self.member = member
        self.metadata = metadata
        self.disk = disk
        self.clock = clock
        self.place = place
        self.is_served = is_served
        self.found_damage = found_damage
        self.cluster_id = cluster_id
        self.exporting = Exporting(
            self,
            store,
            disk,
            clock,
            cluster_id=cluster_id,
            bytes_per_second=export_bytes_per_second,
            received=received,
            on_refused=on_refused,
            reach=reach,
        )

        self.reader = HistoryReader(store, disk, cache_bytes)
        self.suspecting = Suspecting(self)
        self.releasing = Releasing(
            metadata, self.suspecting.look_at, led=led, now_us=clock.now_us, reach=reach
        )

        self.sweeping = Sweeping(metadata, store, now_us=self.now_us, cluster_id=cluster_id)

    def now_us(self) -> int:
        """The time by most clocks of the cluster: one that is wrong has nothing swept early."""
        return self.clock.now_us() - self.metadata.clock_error_us(self.member)

    def register(self, metrics: Registry) -> None:
        exporting, reader = self.exporting, self.reader
        metrics.add(exporting.segments, exporting.bytes, exporting.failures, exporting.waiting)
        metrics.add(self.sweeping.deleted)
        metrics.add(self.releasing.released, reader.reads, reader.bytes, reader.hits, reader.cached)

    async def look_at(self, place: Place) -> bool | None:
        """Whether the object of a segment is there and whole, for who is about to remove a copy (C4). None if
        it is in no history.

        Who was down at the release may have the last good copy there is: the object is read to its end, but
        by a node that has just done so, which is as a rule the one that led the release."""
        topic, segment = place.topic, place.segment
        if segment.history is None:
            return None
        wanted = Wanted(place.identity.key, exported(self.cluster_id(), topic, segment), segment.history)
        try:
            await self.reader.check_is_there(wanted)
        except (CorruptSegment, ObjectNotFound) as error:
            log.error("a copy of %s stays: %s", place.identity.key, error.message)
            self.suspecting.add(topic.uid, segment.uid)
            return False
        if segment.history != wanted.object:
            return None  # somebody has said something of it meanwhile, or it was replaced
        return self.suspecting.has_just_read(segment) or not await self.suspecting.look_at(topic, segment)

    def start(self, spawn: Callable[[Awaitable[None]], None]) -> None:
        """This start is announced."""
        spawn(self.exporting.run())
        spawn(self.releasing.run())
        spawn(self.suspecting.run())
        spawn(self.sweeping.run())
