"""Accepting that the records of a node which never comes back are lost (F6).

Who accepts gives up, for good, what nobody who answers has of the open segment: it is sealed past every
offset that may have been given out, and the range that is missing is kept in the metadata, where each reader
of it is told. So it is refused as long as there is another way: while the leader answers anybody, while
enough replicas do for a recovery, and if more would be lost than the operator was shown.

With one replica nothing can be reached but what is sealed. With several, those that answer have been fenced
by the recovery that waits for the others; the longest log among them is kept, and its node is the one that
proposes: it folds the producers' table from what it has.

How a topic stands is `loss_view`'s; sealed segments that left with their disks are `given_up`'.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from ister.broker.losses.given_up import accept_gone
from ister.broker.losses.loss_view import LOOK_AGAIN, Found, LossView
from ister.broker.topic.sealing import Reached, make_loss
from ister.errors import BadRequest, IsterError
from ister.metadata.commands import BeginRecovery, Result
from ister.metadata.state import TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind, RecoverTopic
from ister.protocol.peer import node_of
from ister.protocol.recovery import KnownOfTopic, TopicRecovery
from ister.wal.producers import ProducerTable

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.losses.losses")

CURRENT_SECONDS = 3.0
PASS_ON_SECONDS = 20.0


class Losses:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._view = LossView(broker)

    async def answer(self, request: RecoverTopic) -> TopicRecovery | KnownOfTopic:
        broker = self._broker
        if request.own_only and not request.accept_loss:
            return self._view.own(await broker.find(request.topic, request.min_index))
        try:
            if not broker.metadata.is_alone:
                await broker.metadata.read_index(CURRENT_SECONDS)
        except IsterError as error:
            if request.accept_loss:
                raise
            topic = await broker.find(request.topic)
            return (await self._view.look(topic, f"nothing can be changed now: {error.message}")).shown
        topic = await broker.find(request.topic, request.min_index)
        if request.accept_loss:
            return await self._accept(topic, request)
        return (await self._view.look(topic)).shown

    async def _accept(self, topic: TopicLog, request: RecoverTopic) -> TopicRecovery:
        if request.gone_segments:
            await accept_gone(self._broker, topic, request)
            if not request.segment_uid:
                return _accepted((await self._view.look(topic)).shown, 0, 0)
        state, segment = topic.state, topic.state.open_segment
        again = LOOK_AGAIN.format(topic=state.name)
        if request.segment_uid != segment.uid:
            return await self._settled(topic, request)
        found = await self._view.look(topic)
        if topic.state.open_segment.uid != request.segment_uid:
            return await self._settled(topic, request)
        _check_shown(found.shown, request, again)
        holders = found.reach.holders
        if holders and self._broker.metadata.member not in holders:
            return await self._pass_on(request, holders[0], again)
        if holders:
            # Whoever comes back from here on is heard by a later recovery, and then nothing is given up.
            await self._begin_anew(topic.state, again)
            found = await self._view.look(topic)
            if topic.state.open_segment.uid != request.segment_uid:
                return await self._settled(topic, request)
            _check_shown(found.shown, request, again)
            if self._broker.metadata.member not in found.reach.holders:
                raise BadRequest("nothing is given up: another node has more of it meanwhile", hint=again)
        return await self._propose(topic, request, found, again)

    async def _begin_anew(self, topic: TopicState, again: str) -> None:
        """A recovery of this command's own, which ends the one that waits."""
        metadata = self._broker.metadata
        command = BeginRecovery(topic.uid, topic.open_segment.segment, metadata.member, metadata.starts)
        outcome = await metadata.propose(command)
        if outcome.result is not Result.APPLIED:
            raise BadRequest(f"nothing is given up: {outcome.detail}", hint=again)
        await metadata.wait_applied(outcome.index, CURRENT_SECONDS)

    async def _pass_on(self, request: RecoverTopic, holder: int, again: str) -> TopicRecovery:
        """To the node that has what is kept."""
        if request.own_only:
            raise BadRequest(
                f"nothing is given up: node {node_of(holder)} has more of it than this node", hint=again
            )
        passed = msgspec.structs.replace(
            request, own_only=True, min_index=self._broker.metadata.state.applied_index
        )
        answer = await self._broker.forwarder.request(
            holder, Kind.RECOVER_TOPIC, encode_header(passed), timeout_s=PASS_ON_SECONDS
        )
        return decode_header(TopicRecovery, answer.header or answer.payload)

    async def _propose(
        self, topic: TopicLog, request: RecoverTopic, found: Found, again: str
    ) -> TopicRecovery:
        state, segment, reach, shown = topic.state, topic.state.open_segment, found.reach, found.shown
        reached = Reached(
            segment.base_offset, 0, ProducerTable(segment.carried_producers), segment.carried_append_time_us
        )
        if reach.end_offset > segment.base_offset:
            folded = await self._broker.replication.copies.fold(state.uid, segment.uid, reach.end_offset)
            reached = Reached(
                folded.end_offset, folded.end_position, folded.producers, folded.last_append_time_us
            )
        state = topic.state
        if state.open_segment.uid != request.segment_uid:
            return await self._settled(topic, request)  # recovered meanwhile: what is open now is another one
        starts = request.leader_starts or shown.leader_starts
        command = make_loss(self._broker.storage, state, reached, shown.known_end, starts, found.recovery)
        outcome = await self._broker.metadata.propose(command)
        if outcome.result is Result.STALE:
            return await self._settled(topic, request)
        if outcome.result is not Result.APPLIED:
            raise BadRequest(f"nothing is given up: {outcome.detail}", hint=again)
        log.warning(
            "an operator accepted a loss",
            extra={
                "fields": {
                    "topic": state.name,
                    "segment": command.segment,
                    "lost_from": command.lost_from,
                    "lost_end": command.end_offset,
                    "known_end": shown.known_end,
                    "next_leader": node_of(command.next_leader),
                }
            },
        )
        return _accepted(shown, command.lost_from, command.end_offset)

    async def _settled(self, topic: TopicLog, request: RecoverTopic) -> TopicRecovery:
        """The segment that was meant is not the open one: an earlier attempt may have done it."""
        state = topic.state
        meant = next((one for one in state.segments if one.uid == request.segment_uid), None)
        if meant is not None and meant.lost_from is not None and meant.end_offset is not None:
            return _accepted((await self._view.look(topic)).shown, meant.lost_from, meant.end_offset)
        raise BadRequest(
            f"nothing is given up: the segment of {state.name} that was shown is not open any more"
            + (
                f", it was sealed at {meant.end_offset} and has all of its records"
                if meant is not None
                else ""
            ),
            hint=LOOK_AGAIN.format(topic=state.name),
        )


def _check_shown(found: TopicRecovery, request: RecoverTopic, again: str) -> None:
    """That there is no other way, and that the operator was shown what would be lost."""
    if found.refusal:
        raise BadRequest(f"nothing is given up: {found.refusal}", hint=again)
    if not request.node_stopped:
        raise BadRequest(
            f"nothing is given up: nobody states that node {found.leader}, which leads it, is stopped",
            hint="Stop it for good, and say so with --node-stopped.",
        )
    if found.lost_from < request.lost_from:
        raise BadRequest(
            f"nothing is given up: offsets from {found.lost_from} on would be lost, and those from "
            f"{request.lost_from} on were shown",
            hint=again,
        )


def _accepted(found: TopicRecovery, lost_from: int, lost_end: int) -> TopicRecovery:
    return msgspec.structs.replace(
        found, lost_from=lost_from, lost_end=lost_end, accepted=True, refusal="", choices=[]
    )
