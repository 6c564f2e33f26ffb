"""A node's part in the history: one for each broker, which has a store or has none (`local` mode)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ister.errors import IsterError
from ister.history.exporting import Exporting
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.io.object_store import ObjectStore
from ister.metadata.store import MetadataStore
from ister.metrics import Registry
from ister.replication.places import Place


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
        export_bytes_per_second: int,
        on_refused: Callable[[IsterError], None],
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
            on_refused=on_refused,
        )

    def register(self, metrics: Registry) -> None:
        metrics.add(
            self.exporting.segments, self.exporting.bytes, self.exporting.failures, self.exporting.waiting
        )

    def start(self, spawn: Callable[[Awaitable[None]], None]) -> None:
        """This start is announced."""
        spawn(self.exporting.run())
