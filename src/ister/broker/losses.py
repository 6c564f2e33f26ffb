"""A topic that waits for a node which may never come back: what is wrong, and accepting the loss (F6).

Anybody may look. Who accepts gives up, for good, what nobody who answers has of the open segment: it is
sealed past every offset that may have been given out, and the range that is missing is kept in the metadata,
where each reader of it is told. So it is refused as long as there is another way: while the leader answers
anybody, while enough replicas do for a recovery, and if more would be lost than the operator was shown.

With one replica nothing can be reached but what is sealed. With several, those that answer have been fenced
by the recovery that waits for the others; the longest log among them is kept, and its node is the one that
proposes: it folds the producers' table from what it has.

Of sealed segments that left with their disks what is left is kept too: all who are in the cluster and are to
have one say how far their copy goes, and the longest is where the loss begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ister.broker import gone
from ister.broker.sealing import Reached, make_loss, most_it_can_reach
from ister.errors import BadRequest, IsterError
from ister.metadata.commands import AcceptGone, BeginRecovery, KeptPart, Result
from ister.metadata.nodes import is_in_cluster
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind, RecoverTopic
from ister.protocol.peer import PeerKind, node_of
from ister.protocol.recovery import KnownOfTopic, LostRecords, ReplicaReach, TopicRecovery
from ister.protocol.replication import AskReach, Fence, FenceAnswer, ReachAnswer
from ister.replication.reach import Reach, reach_of
from ister.wal.producers import ProducerTable

if TYPE_CHECKING:
    from ister.broker.broker import Broker
    from ister.broker.topic_log import TopicLog

log = logging.getLogger("ister.broker.losses")

ASK_SECONDS = 2.0
CURRENT_SECONDS = 3.0
PASS_ON_SECONDS = 20.0
LOOK_AGAIN = "Look again: `ister topic recover {topic}` shows how it stands now."


class _Found(NamedTuple):
    """How a topic stands."""

    shown: TopicRecovery
    reach: Reach
    recovery: int
    """The one to which the replicas have answered."""


class Losses:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def answer(self, request: RecoverTopic) -> TopicRecovery | KnownOfTopic:
        broker = self._broker
        if request.own_only and not request.accept_loss:
            return self._own(await broker.find(request.topic, request.min_index))
        try:
            if not broker.metadata.is_alone:
                await broker.metadata.read_index(CURRENT_SECONDS)
        except IsterError as error:
            if request.accept_loss:
                raise
            return await self._look(
                await broker.find(request.topic), f"nothing can be changed now: {error.message}"
            )
        topic = await broker.find(request.topic, request.min_index)
        if request.accept_loss:
            return await self._accept(topic, request)
        return await self._look(topic)

    # Looking.

    def _own(self, topic: TopicLog) -> KnownOfTopic:
        """What this node knows by itself."""
        metadata, replication = self._broker.metadata, self._broker.replication
        segment = topic.state.open_segment
        followed = replication.copies.follower(segment.uid)
        ends = (
            topic.seen_end,
            topic.end_offset,
            replication.copies.commit_known.get(segment.uid, 0),
            followed.known_commit if followed is not None else 0,
        )
        return KnownOfTopic(
            self._broker.config.node_id,
            segment.uid,
            max(ends),
            metadata.is_alive(segment.leader),
            replication.recoveries.describe(segment.uid),
        )

    async def _ask_all(self, topic: TopicLog) -> list[KnownOfTopic]:
        """What the nodes that answer know, this one among them. Those that know of a later segment speak of
        that one: they are left out."""
        broker, segment = self._broker, topic.state.open_segment
        header = encode_header(RecoverTopic(topic.state.name, own_only=True, min_index=segment.uid))

        async def ask(member: int) -> KnownOfTopic | None:
            try:
                answer = await broker.forwarder.request(
                    member, Kind.RECOVER_TOPIC, header, timeout_s=ASK_SECONDS
                )
                return decode_header(KnownOfTopic, answer.header or answer.payload)
            except IsterError as error:
                log.debug("node %d did not say what it knows: %s", node_of(member), error)
                return None

        metadata = broker.metadata
        others = [m for m in metadata.state.active_members if m != metadata.member and metadata.is_alive(m)]
        own, told = self._own(topic), await asyncio.gather(*map(ask, others))
        return [own, *(found for found in told if found is not None and found.segment_uid == segment.uid)]

    async def _fence_all(
        self, topic: TopicState, segment: SegmentState, recovery: int
    ) -> dict[int, FenceAnswer | str]:
        """Have the replicas that answer repeat their promise to the recovery that stands: what they have
        then is what they will have. Why not, of those that do not; nobody is asked where no recovery was
        begun (F1)."""
        if not recovery:
            return {}
        replication, metadata = self._broker.replication, self._broker.metadata
        request = Fence(topic.uid, segment.uid, recovery)

        async def fence(member: int) -> FenceAnswer | str:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    if member == metadata.member:
                        return await replication.copies.fence(request)
                    header = encode_header(request)
                    found = await replication.ask(member, PeerKind.FENCE, header, ASK_SECONDS)
                    return decode_header(FenceAnswer, found)
            except (IsterError, OSError, TimeoutError) as error:
                return str(error) or "it did not answer in time"

        members = [m for m in segment.replicas if metadata.is_alive(m)]
        return dict(zip(members, await asyncio.gather(*map(fence, members)), strict=True))

    async def _look(self, topic: TopicLog, obstacle: str = "") -> TopicRecovery:
        """`obstacle` is what prevents any change, whatever is found."""
        return (await self._reach(topic, obstacle)).shown

    async def _reach(self, topic: TopicLog, obstacle: str = "") -> _Found:
        state, segment = topic.state, topic.state.open_segment
        known, recovery = await self._ask_all(topic), segment.recovery
        fenced = await self._fence_all(state, segment, recovery)
        reach = reach_of(segment, {m: one for m, one in fenced.items() if isinstance(one, FenceAnswer)})
        hearing = [found.node_id for found in known if found.hears_leader]
        wrong = self._what_is_wrong(state, segment, hearing)
        about_to = "" if hearing and not segment.recovery else self._who_is_about_to(state, segment)
        refusal = obstacle or self._why_kept(state, segment, hearing) or about_to or reach.refusal
        refusal = refusal or _who_may_have_it(state.key_of(segment), fenced)
        replicas = [self._replica(segment, member, fenced.get(member)) for member in segment.replicas]
        silent = [one.node_id for one in replicas if one.state == "silent"]
        known_end = max(reach.known_end, *(found.end_offset for found in known))
        told = [found.recovery for found in known if found.recovery]
        goes_on = not obstacle and bool(about_to or reach.is_enough)
        stands = "open" if not wrong else "recovering" if goes_on else "waits"
        fault = await self._fault(topic) if stands == "open" else ""
        nodes = self._broker.metadata.state.nodes
        is_asked = state.lost or gone.may_be_short(state, nodes)
        members = self._broker.metadata.state.active_members if is_asked else []
        standings = await self._broker.replication.standings.gather(members, state.uid)
        left = gone.parts_of(state, nodes, gone.short_copies(standings))
        if left and stands == "open" and not fault:
            stands, wrong = "incomplete", gone.why_incomplete(left, nodes)
        found = TopicRecovery(
            topic=state.name,
            uid=state.uid,
            segment=segment.segment,
            segment_uid=segment.uid,
            base_offset=segment.base_offset,
            leader=node_of(segment.leader),
            leader_starts=self._leader_starts(segment),
            silent_ms=int(1000 * self._broker.replication.silent_for(segment.leader)),
            state="waits" if fault else stands,
            why=fault or wrong,
            recovery=told[0] if told else "",
            replicas=replicas,
            known_end=known_end,
            lost_from=reach.end_offset,
            lost_end=max(most_it_can_reach(state), known_end),
            silent=silent,
            refusal=refusal,
            choices=_choices(state.name, stands, silent, refusal, fault),
            lost=[LostRecords(one.from_offset, one.end_offset, one.segment, one.at_us) for one in state.lost],
            notes=[note for standing in standings.values() for note in standing.notes],
            gone=gone.ranges(left),
            gone_segments=[one.segment.uid for one in left],
            gone_from=[one.from_offset for one in left],
        )
        return _Found(found, reach, recovery)

    def _leader_starts(self, segment: SegmentState) -> int:
        """0 if its disk is not in the cluster any more: then it cannot come back."""
        node = self._broker.metadata.state.nodes.get(node_of(segment.leader))
        return node.starts if node is not None and node.member == segment.leader else 0

    async def _fault(self, topic: TopicLog) -> str:
        """Why the leader, which answers, takes no appends; empty if it does."""
        leader = topic.state.open_segment.leader
        standings = await self._broker.replication.standings.gather([leader], topic.state.uid)
        faults = standings[leader].faults if leader in standings else []
        return f"node {node_of(leader)} leads it and takes no appends: {faults[0].why}" if faults else ""

    def _what_is_wrong(self, topic: TopicState, segment: SegmentState, hearing: list[int]) -> str:
        """Empty if nothing is."""
        key, leader = topic.key_of(segment), node_of(segment.leader)
        if segment.recovery:
            return f"{key} was led by node {leader}, and is being recovered"
        if hearing:
            return ""
        if not self._broker.metadata.state.is_active(segment.leader):
            return f"{key} is led by node {leader}, on a disk that is not in the cluster any more"
        return f"{key} is led by node {leader}, which does not answer"

    def _why_kept(self, topic: TopicState, segment: SegmentState, hearing: list[int]) -> str:
        """Why nothing of what the leader has may be given up: it is there. Of one whose segment is being
        recovered that does not matter; it is one of the replicas then."""
        if not hearing or segment.recovery:
            return ""
        leader = node_of(segment.leader)
        who = "it answers" if leader in hearing else f"it answers node {hearing[0]}"
        return f"node {leader} leads {topic.key_of(segment)}, and {who}: what it has is not lost"

    def _who_is_about_to(self, topic: TopicState, segment: SegmentState) -> str:
        """Replicas that answer where no recovery was begun yet; empty if there are none."""
        alive = [str(node_of(m)) for m in segment.replicas if self._broker.metadata.is_alive(m)]
        if not alive or segment.recovery:
            return ""
        nodes = f"node{'s' if len(alive) > 1 else ''} {', '.join(alive)}"
        return f"{nodes} will begin to recover {topic.key_of(segment)}"

    def _replica(self, segment: SegmentState, member: int, said: FenceAnswer | str | None) -> ReplicaReach:
        metadata, is_leader = self._broker.metadata, member == segment.leader
        node = node_of(member)
        if isinstance(said, FenceAnswer):
            detail = "in doubt: it cut a tail that may have been acknowledged" if said.in_doubt else ""
            return ReplicaReach(node, is_leader, "alive", said.end_offset, detail)
        if not metadata.state.is_active(member):
            return ReplicaReach(node, is_leader, "gone", detail="that disk is not in the cluster any more")
        if said is not None:
            return ReplicaReach(node, is_leader, "failed", detail=said)
        return ReplicaReach(node, is_leader, "alive" if metadata.is_alive(member) else "silent")

    # Accepting.

    async def _accept(self, topic: TopicLog, request: RecoverTopic) -> TopicRecovery:
        if request.gone_segments:
            await self._accept_gone(topic, request)
            if not request.segment_uid:
                return _accepted(await self._look(topic), 0, 0)
        state, segment = topic.state, topic.state.open_segment
        again = LOOK_AGAIN.format(topic=state.name)
        if request.segment_uid != segment.uid:
            return await self._settled(topic, request)
        found = await self._reach(topic)
        if topic.state.open_segment.uid != request.segment_uid:
            return await self._settled(topic, request)
        _check_shown(found.shown, request, again)
        holders = found.reach.holders
        if holders and self._broker.metadata.member not in holders:
            return await self._pass_on(request, holders[0], again)
        if holders:
            # Whoever comes back from here on is heard by a later recovery, and then nothing is given up.
            await self._begin_anew(topic.state, again)
            found = await self._reach(topic)
            if topic.state.open_segment.uid != request.segment_uid:
                return await self._settled(topic, request)
            _check_shown(found.shown, request, again)
            if self._broker.metadata.member not in found.reach.holders:
                raise BadRequest("nothing is given up: another node has more of it meanwhile", hint=again)
        return await self._propose(topic, request, found, again)

    async def _accept_gone(self, topic: TopicLog, request: RecoverTopic) -> None:
        """Sealed segments that left with their disks, or the rest of them. Those that an earlier attempt gave
        up are done."""
        metadata, again = self._broker.metadata, LOOK_AGAIN.format(topic=topic.state.name)
        shown = dict.fromkeys(request.gone_segments, 0)
        shown |= dict(zip(request.gone_segments, request.gone_from, strict=False))

        def named() -> list[SegmentState]:
            meant = [one for one in topic.state.segments if one.uid in shown and not one.is_empty]
            return [one for one in meant if one.lost_from is None or one.lost_from > shown[one.uid]]

        left = named()
        if not left:
            return
        kept = [part for one in left if (part := await self._kept_part(topic.state, one, again)) is not None]
        for part in kept:
            if part.end_offset < shown[part.segment]:
                raise BadRequest(
                    f"nothing is given up: offsets from {part.end_offset} on would be lost, and those from "
                    f"{shown[part.segment]} on were shown",
                    hint=again,
                )
        now_us = self._broker.storage.clock.now_us()
        uids = [one.uid for one in left]
        outcome = await metadata.propose(AcceptGone(topic.state.uid, uids, now_us, metadata.member, kept))
        if outcome.result is Result.STALE and not named():
            return
        if outcome.result is not Result.APPLIED:
            raise BadRequest(f"nothing is given up: {outcome.detail}", hint=again)
        log.warning(
            "an operator accepted the loss of sealed segments",
            extra={"fields": {"topic": topic.state.name, "segments": len(left), "kept_in_part": len(kept)}},
        )

    async def _kept_part(self, topic: TopicState, segment: SegmentState, again: str) -> KeptPart | None:
        """What is left of a sealed segment, by all who are in the cluster and may have some of it: whoever
        does not say it may have all. None if there is nobody."""
        metadata, replication, key = self._broker.metadata, self._broker.replication, topic.key_of(segment)
        there = [m for m in segment.replicas if is_in_cluster(metadata.state.nodes, m)]
        request = AskReach(topic.uid, segment.uid, metadata.state.applied_index)

        async def ask(member: int) -> ReachAnswer:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    if member == metadata.member:
                        return await replication.reach(request)
                    header = encode_header(request)
                    found = await replication.ask(member, PeerKind.REACH, header, ASK_SECONDS)
                    return decode_header(ReachAnswer, found)
            except (IsterError, TimeoutError) as error:
                raise BadRequest(
                    f"nothing is given up: node {node_of(member)} is in the cluster and may have {key}, but "
                    f"did not say how far ({str(error) or 'it did not answer in time'})",
                    hint=f"Start node {node_of(member)}, or mend what it says. If its disk is gone for good, "
                    f"say so (--replace-disk, or `ister node remove --disk-gone`). {again}",
                ) from error

        reached = dict(zip(there, await asyncio.gather(*map(ask, there)), strict=True))
        if not reached:
            return None
        longest = max(reached, key=lambda member: reached[member].end_offset)
        found = reached[longest]
        if found.end_offset == segment.data_end:
            raise BadRequest(
                f"nothing is given up: node {node_of(longest)} is in the cluster, and has a copy of {key}",
                hint=again,
            )
        return KeptPart(segment.uid, found.end_offset, found.end_position, found.last_append_time_us, there)

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
        self, topic: TopicLog, request: RecoverTopic, found: _Found, again: str
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
            return _accepted(await self._look(topic), meant.lost_from, meant.end_offset)
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


def _who_may_have_it(key: str, fenced: Mapping[int, FenceAnswer | str]) -> str:
    """A replica that is up, and did not say what it has; empty if there is none."""
    for member, said in fenced.items():
        if isinstance(said, str):
            return (
                f"node {node_of(member)} is up and may have more of {key}, but did not say ({said}): mend "
                f"that, or stop it for good"
            )
    return ""


def _accepted(found: TopicRecovery, lost_from: int, lost_end: int) -> TopicRecovery:
    return msgspec.structs.replace(
        found, lost_from=lost_from, lost_end=lost_end, accepted=True, refusal="", choices=[]
    )


def _choices(topic: str, stands: str, silent: list[int], refusal: str, fault: str) -> list[str]:
    """What a person may do now, in the order in which it is worth a try."""
    if fault:
        return ["mend what the node says, or restore its data directory"]
    if stands == "open":
        return []
    if stands == "incomplete":
        return [f"record them as lost, so that readers know: ister topic recover {topic} --accept-loss"]
    nodes = f"node{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
    are = "are" if len(silent) > 1 else "is"
    choices = [f"wait: {refusal}"] if stands == "recovering" else []
    if silent:
        choices.append(f"start {nodes} again, with the old data directory: then nothing is lost")
    if not refusal:
        given_up = f"if {nodes} {are} stopped and gone for good" if silent else "the disk left the cluster"
        accept = f"ister topic recover {topic} --accept-loss --node-stopped"
        choices.append(f"{given_up}, give up what nobody else has: {accept}")
    return choices
