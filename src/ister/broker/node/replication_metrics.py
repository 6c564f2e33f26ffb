"""What Prometheus is told of the segments' replicas: what is counted, and what is looked at now and then.

Prometheus asks from a thread of its own, where the event loop's state must not be walked through: what takes
more than one number is found on the loop before, a part at a time where there may be much of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ister.broker.view.shortage import Shortage
from ister.metrics import Gauge

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

LOOK_SECONDS = 5.0
SEGMENTS_AT_ONCE = 1000
"""After so many others get their turn: appends wait behind nothing here."""


class ReplicationGauges:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_replicated = 0
        replication = broker.replication
        broker.metrics.add(
            *replication.counters.all(),
            Gauge(
                "follower_lag_records",
                "Committed records that the slowest follower lacks of a segment that this node leads.",
                lambda: replication.follower_lag,
            ),
            Gauge(
                "under_replicated_segments",
                "Segments with fewer copies than their topic wants, as far as this node knows: of others' "
                "copies it knows whether their nodes answer. Looked at every 5 s.",
                lambda: self._under_replicated,
            ),
            Gauge(
                "incomplete_copies",
                "Copies of sealed segments here that are not known to be whole.",
                lambda: len(replication.completions.behind),
            ),
        )

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        metadata = self._broker.metadata
        found = Shortage(self._broker, {metadata.member: self._broker.replication.standings.own()})
        seen = 0
        for topic in list(metadata.state.topics.values()):
            found.add(topic)
            seen += len(topic.segments)
            if seen >= SEGMENTS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
        self._under_replicated = found.segments
