"""Drains of nodes, as a node is asked for them, and as the metadata leader keeps them going.

The leader requests the moves of what a drained node leads; rollovers and repairs do the rest, each where it
is done anyway (docs/internals/moves.md). Each round looks at what the node has by then.

Fault model: the leader may change or stop at any moment, moves may fail and are requested again, whatever
else is in the cluster may be down meanwhile. Nothing is kept here that the next round would need.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.broker.topic.sealing import seen_by
from ister.errors import BadRequest, IsterError
from ister.metadata.commands import ActivateNode, DrainNode, Result
from ister.metadata.drains import DrainState, held_by
from ister.metadata.moves import MoveReason
from ister.metadata.placement import Why, Wish, choose_leader
from ister.protocol import moves as messages
from ister.protocol.peer import node_of

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.drains")

LOOK_SECONDS = 0.5
ASK_SECONDS = 3.0
MAX_PARALLEL = 64


class NodeDrains:
    """One for each broker, from its start on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            metadata = self._broker.metadata
            for row in list(metadata.state.drains.rows.values()) if metadata.is_leader else ():
                try:
                    await self._move_some(row)
                except IsterError as error:
                    log.debug("the drain of node %d goes on: %s", node_of(row.member), error)

    async def _move_some(self, row: DrainState) -> None:
        """Request moves of what a drained node leads, as many as may be under way."""
        broker, state = self._broker, self._broker.metadata.state
        if not broker.metadata.is_alive(row.member):
            return  # nobody is there to hand off; who has replicas recovers what it led
        room = row.max_parallel - self._moves_from(row.member)
        for uid in list(state.led_by(row.member)):
            if room <= 0:
                break
            found = state.topic_by_uid(uid)
            topic = broker.topics.get(found.name) if found is not None else None
            running = state.moves.of(uid)
            if topic is None or (running is not None and running.is_on_its_way):
                continue
            wish = Wish(topic.state.name, topic.state.settings.replicas, row.member, row.member, Why.LOST)
            target = choose_leader(wish, seen_by(broker.storage))
            if target == row.member or target in state.drains.members:
                continue
            await broker.moves.request(topic, target, MoveReason.DRAIN, stays=False)
            room -= 1

    def _moves_from(self, member: int) -> int:
        rows = self._broker.metadata.state.moves.rows.values()
        return sum(row.source == member and row.is_on_its_way for row in rows)

    # What is asked for.

    async def drain(self, request: messages.DrainNode) -> messages.DrainDescription:
        broker = self._broker
        if not 1 <= request.max_parallel <= MAX_PARALLEL:
            raise BadRequest(f"max_parallel is {request.max_parallel}, and may be 1 to {MAX_PARALLEL}")
        await self._be_current()
        member = self._member(request.node_id)
        if not request.dry_run:
            command = DrainNode(member, request.max_parallel, broker.clock.now_us())
            outcome = await broker.metadata.propose(command)
            if outcome.result is Result.REFUSED:
                raise BadRequest(
                    f"node {request.node_id} is not drained: {outcome.detail}",
                    hint="Add a node first (`ister node add`), or activate one that is drained.",
                )
        return self.describe(member)

    async def activate(self, request: messages.ActivateNode) -> messages.DrainDescription:
        await self._be_current()
        member = self._member(request.node_id)
        await self._broker.metadata.propose(ActivateNode(member))
        return self.describe(member)

    def describe(self, member: int) -> messages.DrainDescription:
        state = self._broker.metadata.state
        held = held_by(member, state.topics.values())
        return messages.DrainDescription(
            node_of(member),
            member in state.drains.rows,
            held.leads,
            held.follows,
            held.copies,
            held.copies_bytes,
            self._moves_from(member),
            "" if held.is_nothing else self._in_the_way(member),
        )

    def _in_the_way(self, member: int) -> str:
        metadata = self._broker.metadata
        drained = metadata.state.drains.members
        others = [one for one in metadata.state.active_members if one != member and one not in drained]
        if not any(map(metadata.is_alive, others)):
            return "no other node answers that what it has could go to"
        if not metadata.is_alive(member):
            return f"node {node_of(member)} does not answer: what it alone has cannot be copied"
        return ""

    def _member(self, node_id: int) -> int:
        node = self._broker.metadata.state.nodes.get(node_id)
        if node is None:
            raise BadRequest(f"there is no node {node_id}", hint="`ister node list` shows them.")
        return node.member

    async def _be_current(self) -> None:
        if not self._broker.metadata.is_alone:
            await self._broker.metadata.read_index(ASK_SECONDS)
