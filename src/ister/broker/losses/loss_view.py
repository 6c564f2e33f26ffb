"""A topic that waits for a node which may never come back: what is wrong, who has what, what can be done.

Anybody may look: nothing is changed by it, but that replicas which answer repeat a promise that they gave.

Fault model: each node sees only whom it reaches, and what it knows may be old. So all that answer are asked,
and who is up but does not say what it has may have more than the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ister.asking import ask_each
from ister.broker.losses import missing
from ister.broker.topic.sealing import most_it_can_reach
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind, RecoverTopic
from ister.protocol.peer import PeerKind, node_of
from ister.protocol.recovery import KnownOfTopic, LostRecords, ReplicaReach, TopicRecovery
from ister.protocol.replication import Fence, FenceAnswer
from ister.replication.recovery.reach import Reach, reach_of

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
    from ister.broker.topic.topic_log import TopicLog

log = logging.getLogger("ister.broker.losses.losses")

ASK_SECONDS = 2.0
LOOK_AGAIN = "Look again: `ister topic recover {topic}` shows how it stands now."


class Found(NamedTuple):
    """How a topic stands."""

    shown: TopicRecovery
    reach: Reach
    recovery: int
    """The one to which the replicas have answered."""


class LossView:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def own(self, topic: TopicLog) -> KnownOfTopic:
        """What this node knows by itself."""
        metadata, replication = self._broker.metadata, self._broker.replication
        segment = topic.state.open_segment
        followed = replication.copies.follower(segment.uid)
        ends = (
            topic.known.seen_end,
            topic.reads.end_offset,
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

        async def ask(member: int) -> KnownOfTopic:
            answer = await broker.forwarder.request(member, Kind.RECOVER_TOPIC, header)
            return decode_header(KnownOfTopic, answer.header or answer.payload)

        own, told = self.own(topic), await ask_each(broker.metadata.others_alive, ask, ASK_SECONDS)
        return [own, *(found for found in told.answers.values() if found.segment_uid == segment.uid)]

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

        async def fence(member: int) -> FenceAnswer:
            if member == metadata.member:
                return await replication.copies.fence(request)
            found = await replication.ask(member, PeerKind.FENCE, encode_header(request), ASK_SECONDS)
            return decode_header(FenceAnswer, found)

        told = await ask_each(filter(metadata.is_alive, segment.replicas), fence, ASK_SECONDS)
        return {**told.answers, **{member: str(why) for member, why in told.faults.items()}}

    async def look(self, topic: TopicLog, obstacle: str = "") -> Found:
        """`obstacle` is what prevents any change, whatever is found."""
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
        members = self._broker.metadata.state.active_members if state.lost else []
        standings = await self._broker.replication.standings.gather(members, state.uid)
        left = missing.parts_of(state, nodes)
        if left and stands == "open" and not fault:
            stands, wrong = "incomplete", missing.why_incomplete(left, nodes)
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
            gone=missing.ranges(left),
            gone_segments=[one.segment.uid for one in left],
            gone_from=[one.from_offset for one in left],
        )
        return Found(found, reach, recovery)

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


def _who_may_have_it(key: str, fenced: Mapping[int, FenceAnswer | str]) -> str:
    """A replica that is up, and did not say what it has; empty if there is none."""
    for member, said in fenced.items():
        if isinstance(said, str):
            return (
                f"node {node_of(member)} is up and may have more of {key}, but did not say ({said}): mend "
                f"that, or stop it for good"
            )
    return ""


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
