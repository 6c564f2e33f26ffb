"""Nodes tell of themselves, and leave: what of that is let through (I2, R2).

Everything is held by members: a node with its disk. A node that says what cannot be true of it is refused,
and so is the removal of one that has what nobody else is known to have (C3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ister.metadata.commands import FoundCluster, Outcome, RemoveNode, Result, UpsertNode
from ister.metadata.copies import may_leave, staying
from ister.metadata.nodes import NodeState, node_state_of
from ister.metadata.shapes import Shapes, what_lacks
from ister.metadata.topics import SegmentState, TopicState
from ister.protocol.peer import identity_fault, node_of

if TYPE_CHECKING:
    from ister.metadata.state import ClusterState


def found_cluster(state: ClusterState, index: int, command: FoundCluster) -> Outcome:
    if state.cluster_id:
        return Outcome(Result.STALE, index, f"this is cluster {state.cluster_id} already")
    state.cluster_id = command.cluster_id
    return Outcome(Result.APPLIED, index)


def upsert_node(state: ClusterState, index: int, command: UpsertNode) -> Outcome:
    told = node_state_of(command)
    refused = (
        identity_fault(told.node_id, told.disk_id)
        or why_too_old(state, told.node_id, told.knows)
        or _why_not(state, told, command)
    )
    if refused:
        return Outcome(Result.REFUSED, index, refused)
    known = state.nodes.get(told.node_id)
    if known is not None and known.member != told.member:
        state.gone.append(known.member)
        state.reports.pop(known.member, None)
        state.drains.left(known.member)
    if known is not None and known.starts != told.starts:
        state.reports.pop(told.member, None)  # each start counts anew
    state.nodes[told.node_id] = told
    return Outcome(Result.APPLIED, index)


def why_too_old(state: ClusterState, node_id: int, knows: Shapes) -> str:
    """Why a build that knows this cannot have the state of this cluster; empty if it can."""
    lacks = what_lacks(knows, state.used) if knows else ""
    return f"the build of node {node_id} does not know {lacks}, which this cluster has used" if lacks else ""


def _why_not(state: ClusterState, told: NodeState, command: UpsertNode) -> str:
    """Why what a node says of itself does not hold (I2); empty if it does."""
    known = state.nodes.get(told.node_id)
    if told.member in state.gone:
        # A request of that disk to be let in may have been long on its way.
        if known is not None:
            return f"node {told.node_id} is in the cluster on another disk"
        return f"node {told.node_id} was removed from the cluster, and this disk with it"
    if known is None:
        return ""
    if known.disk_id != told.disk_id:
        # A new disk is let in first, and then says nothing of clients yet. One that comes back and
        # announces itself must not push out the one that has its place.
        if told.client_port:
            return f"node {told.node_id} is in the cluster on another disk"
        if command.replaced and command.replaced != known.member:
            return f"node {told.node_id} is on another disk by now than the one that was to be replaced"
        is_looked_at = command.replaced or command.replaced_starts
        if is_looked_at and command.replaced_starts != known.starts:
            return f"node {told.node_id} has come back on the disk that was to be replaced"
        held = ""
        if not command.replaces:
            held = only_copy(state, known.member, may_be_short=True, by_name=command.by_name)
        return f"node {told.node_id} has {held}, on another disk" if held else ""
    if told.starts <= known.starts and told != known:
        return (
            f"node {told.node_id} says it was started {told.starts} times, {known.starts} are known: "
            f"its directory is a copy of another one that is in use"
        )
    return ""


def remove_node(state: ClusterState, index: int, command: RemoveNode) -> Outcome:
    """Refused while the node has what nobody else has (R2)."""
    if command.node_id not in state.nodes:
        return Outcome(Result.STALE, index, f"there is no node {command.node_id}")
    member, starts = state.nodes[command.node_id].member, state.nodes[command.node_id].starts
    if command.member and command.member != member:
        return Outcome(Result.STALE, index, f"node {command.node_id} is on another disk by now")
    is_looked_at = command.starts or (command.disk_gone and command.member)
    if is_looked_at and command.starts != starts:
        return Outcome(Result.REFUSED, index, f"node {command.node_id} has come back meanwhile")
    where = _holds_open(state, member)
    if not where and not command.disk_gone:
        where = only_copy(state, member, may_be_short=command.keeps_whole, by_name=command.by_name)
    if where:
        return Outcome(Result.REFUSED, index, f"node {command.node_id} holds {where}")
    if len(state.nodes) == 1:
        return Outcome(Result.REFUSED, index, f"node {command.node_id} is the last one")
    state.gone.append(state.nodes.pop(command.node_id).member)
    state.reports.pop(member, None)
    state.drains.left(member)
    return Outcome(Result.APPLIED, index)


def _holds_open(state: ClusterState, member: int) -> str:
    """A segment that is open at this member; empty if none is."""
    for topic in state.topics_by_uid.values():
        if member in topic.open_segment.replicas:
            return f"the open {topic.key_of(topic.open_segment)}"
    return ""


def only_copy(state: ClusterState, member: int, *, may_be_short: bool, by_name: bool) -> str:
    """A segment with something in it that nobody else in the cluster has; empty if there is none. What
    another disk of its node had is not held here (I2). `may_be_short`: of a sealed one too only some are
    known to have had all of it; who was behind may not have been completed yet. `by_name`: those are
    known (C3), and not only how many."""
    for topic in state.topics_by_uid.values():
        for segment in topic.segments:
            if member not in segment.replicas or segment.is_empty:
                continue
            if by_name and segment.is_sealed:
                stay = staying(state.nodes, segment.replicas, member)
                if not may_leave(segment, member, segment.replicas, stay):
                    return _why_kept(topic, segment, stay)
                continue
            others = sum(other != member and state.is_active(other) for other in segment.replicas)
            if not others:
                return f"the last copy of {topic.key_of(segment)}"
            is_unsure = others <= len(segment.replicas) - segment.surely_whole
            if is_unsure and (may_be_short or not segment.is_sealed):
                why = "the others may end short of it" if segment.is_sealed else "which is open"
                return f"one of the last {others + 1} copies of {topic.key_of(segment)}, {why}"
    return ""


def _why_kept(topic: TopicState, segment: SegmentState, stay: list[int]) -> str:
    """What a member that may not leave has (C3)."""
    key, whole = topic.key_of(segment), [one for one in stay if segment.is_whole_at(one)]
    if not stay:
        return f"the last copy of {key}"
    known = f"only node {node_of(whole[0])} is" if len(whole) == 1 else f"{len(whole) or 'none'} of them are"
    return f"one of the last {len(stay) + 1} copies of {key}: of the others {known} known to have all of it"
