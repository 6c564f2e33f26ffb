"""Moves of topics, as a node is asked for them: planned, requested, shown, cancelled; and driven here.

Whoever is asked proposes; the topic's leader carries it out (`broker.topic.moving`). What there is to know is
in the metadata: the answer to a request may be lost, and asking again finds the same move.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ister.broker.node.leftovers import has_files_up_to, list_files
from ister.broker.topic.moving import why_not_led_by
from ister.broker.topic.sealing import seen_by
from ister.broker.topic.topic_log import TopicLog
from ister.errors import BadRequest, IsterError, NotLeader, UnknownTopic
from ister.failpoints import Step
from ister.metadata.commands import CancelMove, EndMove, Outcome, ReleaseTopic, RequestMove, Result
from ister.metadata.moves import MoveReason, MoveStage, MoveState, is_in_history
from ister.metadata.placement import Why, Wish, choose_leader
from ister.metadata.shapes import shapes_of
from ister.metadata.state import TopicState
from ister.protocol import moves as messages
from ister.protocol.peer import node_of

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

log = logging.getLogger("ister.broker.moves")

LOOK_SECONDS = 0.5
ASK_SECONDS = 3.0
LETS_GO = shapes_of([RequestMove, EndMove])
"""What all nodes must know for a move that lets the old node's copies go to the history."""


class NodeMoves:
    """One for each broker, from its start on."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._number = 0
        """How many this start has requested: by that a repeat of a command is known."""

    async def run(self) -> None:
        """Look after those of topics that this node leads."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for row in self._broker.metadata.state.moves.to_list():
                topic = self._broker.topics.get(row.topic)
                if row.is_over or topic is None or topic.state.uid != row.topic_uid:
                    continue
                try:
                    await topic.moving.look_after()
                    if row.stage == MoveStage.RELEASED:
                        await self._end(row, topic.state)
                except (IsterError, OSError) as error:
                    log.debug("move %d of %s: %s", row.id, row.topic, error)

    async def _end(self, row: MoveState, topic: TopicState) -> None:
        """The old node says that it has no files any more; where it cannot, the topic's leader says so."""
        broker, metadata = self._broker, self._broker.metadata
        if row.source == metadata.member:
            files = await broker.disk.run(lambda: list_files(broker.disk))
            if not has_files_up_to(files, topic, row.segment, metadata.member):
                broker.reach(Step.EMPTIED)
                await metadata.propose(EndMove(row.id))
        elif metadata.member == topic.open_segment.leader and not metadata.is_alive(row.source):
            node = f"node {node_of(row.source)}"
            await metadata.propose(
                EndMove(row.id, f"{node} does not answer: it removes its files at its start")
            )

    # What is asked for.

    async def move(self, request: messages.MoveTopic) -> messages.MoveDescription:
        await self._be_current()
        topic = await self._broker.find(request.topic)
        if request.release:
            return await self._release(topic)
        leader = topic.state.open_segment.leader
        target = self._member(request.node_id) if request.node_id else self._next(topic)
        stays = request.stays and bool(request.node_id)
        running = self._broker.metadata.state.moves.of(topic.state.uid)
        is_there = running is not None and running.arrived and leader == target
        if (
            running is not None
            and running.target == target
            and not request.plan
            and (running.is_on_its_way or is_there)
        ):
            return self._describe(running)  # it was asked for before; its answer may have been lost
        fault = why_not_led_by(target, seen_by(self._broker.storage))
        if fault:
            raise BadRequest(
                f"{topic.state.name} cannot be moved to node {node_of(target)}: {fault}",
                hint="`ister node list` shows the nodes; choose one that is alive and not drained.",
            )
        if request.plan:
            return planned(topic, leader, target, stays=stays, has_history=self._broker.history is not None)
        outcome = await self.request(topic, target, MoveReason.OPERATOR, stays=stays)
        return self._described(outcome.index)

    async def request(self, topic: TopicLog, target: int, reason: MoveReason, *, stays: bool) -> Outcome:
        """Returns once the move is in the metadata; its id is the outcome's index."""
        broker = self._broker
        self._number += 1
        command = RequestMove(
            topic.state.uid,
            target,
            reason,
            stays,
            broker.clock.now_us(),
            broker.metadata.member,
            broker.metadata.starts,
            self._number,
            has_history=broker.history is not None and broker.metadata.state.all_know(LETS_GO),
        )
        outcome = await broker.metadata.propose(command)
        if outcome.result is Result.STALE:
            raise UnknownTopic(f"topic {topic.state.name} was deleted meanwhile")
        if outcome.result is Result.REFUSED:
            raise BadRequest(
                f"{topic.state.name} was not moved: {outcome.detail}",
                hint="`ister move list` shows the moves, `ister move cancel ID` ends one.",
            )
        return outcome

    async def _release(self, topic: TopicLog) -> messages.MoveDescription:
        home, leader = topic.state.home, topic.state.open_segment.leader
        outcome = await self._broker.metadata.propose(ReleaseTopic(topic.state.uid))
        if not outcome.ok:
            raise BadRequest(
                f"{topic.state.name} was not released: {outcome.detail}",
                hint="`ister move list` shows the moves, `ister move cancel ID` ends one.",
            )
        said = f"it stays on node {node_of(home)} no more" if home else "it was not bound to a node"
        return messages.MoveDescription(
            0, topic.state.name, node_of(leader), 0, "operator", "done", True, False, 0, 0, 0, said
        )

    async def list(self, request: messages.ListMoves) -> messages.MoveList:
        await self._be_current()
        name = (await self._broker.find(request.topic)).state.name if request.topic else ""
        rows = self._broker.metadata.state.moves.to_list()
        found = [
            self._describe(row) for row in rows if name in ("", row.topic) and request.move in (0, row.id)
        ]
        if request.move and not found:
            raise BadRequest(
                f"there is no move {request.move}, or no more",
                hint="`ister move list` shows those there are.",
            )
        return messages.MoveList(found)

    async def cancel(self, move: int) -> messages.MoveDescription:
        await self._be_current()
        outcome = await self._broker.metadata.propose(CancelMove(move))
        row = self._broker.metadata.state.moves.rows.get(move)
        if row is None or (outcome.result is Result.STALE and row.stage != MoveStage.CANCELLED):
            raise BadRequest(
                f"nothing was cancelled: {outcome.detail}", hint="`ister move list` shows the moves."
            )
        return self._describe(row)

    # What is said of them.

    def _described(self, move: int) -> messages.MoveDescription:
        row = self._broker.metadata.state.moves.rows.get(move)
        if row is None:
            raise NotLeader(f"move {move} is not known here yet, or no more")
        return self._describe(row)

    def _describe(self, row: MoveState) -> messages.MoveDescription:
        return messages.MoveDescription(
            row.id,
            row.topic,
            node_of(row.source),
            node_of(row.target),
            MoveReason(row.reason).name.lower(),
            MoveStage(row.stage).name.lower(),
            row.is_over,
            row.stays,
            row.requested_at_us,
            row.sealed_at_us,
            row.end_offset,
            row.detail or self._waits_for(row),
            row.arrived or row.stage == MoveStage.DONE,
        )

    def _waits_for(self, row: MoveState) -> str:
        broker = self._broker
        topic = broker.topics.get(row.topic)
        if row.is_over or topic is None:
            return ""
        if row.arrived:
            return what_is_left(row, topic.state)
        leader = topic.state.open_segment.leader
        if not broker.metadata.is_alive(leader):
            return f"node {node_of(leader)}, which leads {row.topic}, does not answer"
        return why_not_led_by(row.target, seen_by(broker.storage)) if row.is_requested else ""

    def _member(self, node_id: int) -> int:
        node = self._broker.metadata.state.nodes.get(node_id)
        if node is None:
            raise BadRequest(f"there is no node {node_id}", hint="`ister node list` shows them.")
        return node.member

    def _next(self, topic: TopicLog) -> int:
        """Where the placement strategy would have it, if not where it is."""
        state = topic.state
        leader = state.open_segment.leader
        wish = Wish(state.name, state.settings.replicas, leader, leader, Why.LOST)
        target = choose_leader(wish, seen_by(self._broker.storage))
        if target == leader:
            raise BadRequest(
                f"there is no other node that could lead {state.name}",
                hint="`ister node list` shows the nodes, and who of them is alive.",
            )
        return target

    async def _be_current(self) -> None:
        if not self._broker.metadata.is_alone:
            await self._broker.metadata.read_index(ASK_SECONDS)


def what_is_left(row: MoveState, topic: TopicState) -> str:
    """What a move waits for whose target leads the topic already."""
    left, node = row.left_of(topic), f"node {node_of(row.source)}"
    exports = sum(not is_in_history(one) for one in left)
    if exports:
        return f"the target leads it; {exports} of {len(left)} segments are not in the history yet"
    copies = sum(row.source in one.replicas for one in left)
    if copies:
        return f"the target leads it; the copies of {copies} segments on {node} are about to be released"
    return f"the target leads it; {node} is about to remove its files"


def planned(
    topic: TopicLog, leader: int, target: int, *, stays: bool, has_history: bool
) -> messages.MoveDescription:
    state = topic.state
    says = (
        f"node {node_of(leader)} seals {state.key_of(state.open_segment)} at its end, node {node_of(target)} "
    )
    says += f"goes on with segment {state.open_segment.segment + 1}; "
    says += (
        f"what was sealed goes to the history, and then from node {node_of(leader)}"
        if has_history
        else "nothing is copied"
    )
    if leader == target:
        says = f"node {node_of(leader)} leads it already"
    return messages.MoveDescription(
        0,
        state.name,
        node_of(leader),
        node_of(target),
        "operator",
        "planned",
        True,
        stays,
        0,
        0,
        0,
        says,
    )
