"""A topic's move, on the node that leads it: begun as soon as it is known, given up if it cannot be done.

All that is to be known is in the metadata; this looks at it when a move is requested, when a segment was
opened here, and every so often. What it starts is an ordinary handoff, and that chooses anew, when it seals,
where the topic goes (`sealing.wish_of`).

Fault model: the target may stop, or be unable to lead, at any moment; writes go on here meanwhile.
"""

from __future__ import annotations

import logging

from ister.broker.node.storage import Storage
from ister.broker.topic.known import KnownTopic
from ister.broker.topic.led_segment import LedSegment
from ister.broker.topic.rolling_over import RollingOver
from ister.broker.topic.sealing import seen_by, wanted_move
from ister.failpoints import Step
from ister.io.clock import monotonic
from ister.metadata.commands import FailMove
from ister.metadata.moves import MoveState
from ister.metadata.placement import Seen, Why
from ister.protocol.peer import node_of

log = logging.getLogger("ister.broker.topic")

TARGET_SECONDS = 10.0
"""How long a target that cannot lead is waited for."""


class Moving:
    def __init__(
        self, topic: KnownTopic, storage: Storage, led: LedSegment, rolling_over: RollingOver
    ) -> None:
        self._topic = topic
        self._storage = storage
        self._led = led
        self._rolling_over = rolling_over
        self._unable: tuple[int, float] | None = None
        """A move whose target cannot lead, and since when."""

    def look(self) -> None:
        """Begin the move that is wanted, if it can be."""
        move = self._wanted()
        if move is not None and not why_not_led_by(move.target, seen_by(self._storage)):
            self._storage.reach(Step.BEGUN)
            self._rolling_over.roll_over(Why.MOVE)

    async def look_after(self) -> None:
        """The same; and give it up if its target could not lead for too long. Every node looks: of leaders
        that take turns sooner than that, none would have seen enough by itself."""
        self.look()
        move = wanted_move(self._storage, self._topic.state)
        fault = why_not_led_by(move.target, seen_by(self._storage)) if move is not None else ""
        if move is None or not fault:
            self._unable = None
            return
        now = monotonic()
        if self._unable is None or self._unable[0] != move.id:
            self._unable = move.id, now
        elif now - self._unable[1] >= TARGET_SECONDS and self._topic.leads:
            log.warning("move %d of %s fails: %s", move.id, self._topic.state.name, fault)
            await self._storage.metadata.propose(FailMove(move.id, fault))

    def _wanted(self) -> MoveState | None:
        is_open = self._topic.leads and self._led.segment is not None and self._led.handoff.admits
        return wanted_move(self._storage, self._topic.state) if is_open else None


def why_not_led_by(member: int, seen: Seen) -> str:
    """Why no topic can be moved to a member now, in words; empty if one can."""
    node = f"node {node_of(member)}"
    if member not in seen.active:
        return f"{node} is not in the cluster on that disk, or is only joining"
    if member not in seen.alive:
        return f"{node} does not answer"
    if member in seen.unwanted:
        return f"{node} is being drained, or stopped"
    if member in seen.wrong_clocks and member not in seen.able:
        return f"the clock of {node} is far from most others'"
    if member in seen.refusing:
        return f"the disk of {node} does not take what it is sent"
    return ""
