"""The interface behind which metadata is kept: one node's journal today, Raft in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ister.metadata.commands import AnyCommand, Outcome
from ister.metadata.state import ClusterState

Watcher = Callable[[AnyCommand | None, Outcome], None]
"""Called on the loop for every applied command, in order, right after it was applied."""


class MetadataStore(Protocol):
    @property
    def state(self) -> ClusterState:
        """What has been applied here. To be read, never changed."""
        ...

    async def propose(self, command: AnyCommand) -> Outcome:
        """Make the command durable and apply it; returns what came of it.

        Raises a retriable `IsterError` when nobody can say whether it will be applied; every command is
        either idempotent or a compare-and-set, so proposing it again is safe.
        """
        ...

    def watch(self, watcher: Watcher) -> None: ...
