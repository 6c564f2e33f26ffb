"""The interface behind which metadata is kept, as the broker's topics see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ister.metadata.commands import Command, Outcome
from ister.metadata.state import ClusterState

Watcher = Callable[[Command | None, Outcome], None]
"""Called on the loop for every applied command, in order, right after it was applied."""


class MetadataStore(Protocol):
    @property
    def state(self) -> ClusterState:
        """What has been applied here. To be read, never changed; another object after a snapshot came."""
        ...

    @property
    def starts(self) -> int:
        """Which start of this node this is (I2)."""
        ...

    @property
    def announced(self) -> asyncio.Event:
        """Set once this node knows all that was committed before its start, and the cluster knows of it.

        Until then what is known here may be older than this node's last life: it must not append."""
        ...

    @property
    def last_index_found(self) -> int:
        """Where the metadata's log on this disk ended when this process began. Entries are on this disk
        before they are applied here: so no process before this one has applied what has a higher index."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether this node decides by itself: then nothing can be in the way of a commit."""
        ...

    async def propose(self, command: Command) -> Outcome:
        """Make the command durable and apply it; returns what came of it, once it is applied here.

        Raises a retriable `IsterError` when nobody can say whether it will be applied, or this node did not
        hear in time that it was. Every command may be applied twice, so proposing it again is safe.
        """
        ...

    async def read_index(self, timeout: float) -> None:
        """Returns once this node's state has everything that was committed anywhere when it was called."""
        ...

    async def wait_applied(self, index: int, timeout: float) -> None:
        """Returns once this node has applied up to `index` (H3)."""
        ...

    def clock_error_us(self, member: int) -> int:
        """How far a node's clock is from those of most of the others; 0 if that cannot be said (A6)."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the metadata, as far as it knows."""
        ...

    def is_alive(self, member: int) -> bool:
        """Whether a node answers, as far as this one knows."""
        ...

    def is_to_announce(self, member: int) -> bool:
        """Whether a node was started again, as far as this one has heard, and the cluster has not: until then
        it leads nothing."""
        ...

    def watch(self, watcher: Watcher) -> None: ...
