"""The cluster as people are shown it by one of its nodes, and what they should do about it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ister.broker.losses import missing
from ister.broker.view import replica_problems
from ister.broker.view.replica_problems import some
from ister.metadata.copies import is_readable
from ister.metadata.state import NodeState
from ister.protocol.messages import ClusterAnswer, ClusterNode, Problem
from ister.protocol.peer import node_of
from ister.protocol.standing import Standing
from ister.raft import RaftStatus

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker
from ister.metadata.replicated import ReplicatedMetadata


def of(broker: Broker, standings: Mapping[int, Standing], *, is_current: bool) -> ClusterAnswer:
    """`standings` are what nodes say of their copies: of those that do not, nothing is said."""
    metadata = broker.metadata
    state, status = metadata.state, metadata.status()
    leader = node_of(status.leader) if status.leader and metadata.is_alive(status.leader) else 0
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    segments = 0
    for topic in state.topics.values():
        segments += len(topic.segments)
        led[topic.open_segment.leader] += 1
        for segment in topic.segments:
            for replica in segment.replicas:
                held[replica] += 1
    nodes = [
        ClusterNode(
            node_id=node.node_id,
            client_host=node.client_host,
            client_port=node.client_port,
            peer_host=node.peer_host,
            peer_port=node.peer_port,
            role=_role(node, status, leader),
            alive=metadata.is_alive(node.member),
            disk_id=node.disk_id,
            starts=node.starts,
            behind=_behind(node, status),
            open_segments=led[node.member],
            segments=held[node.member],
            drained=node.member in state.drains.rows,
        )
        for _, node in sorted(state.nodes.items())
    ]
    return ClusterAnswer(
        cluster_id=metadata.cluster_id,
        nodes=nodes,
        answered_by=broker.config.node_id,
        leader=leader,
        term=status.term,
        commit_index=status.commit,
        applied_index=status.applied,
        snapshot_index=status.snapshot_index,
        topics=len(state.topics),
        segments=segments,
        is_current=is_current,
        problems=_problems(broker, nodes, status, standings, is_current=is_current),
    )


def _role(node: NodeState, status: RaftStatus, leader: int) -> str:
    if node.node_id == leader:
        return "leader"
    if node.member in status.membership.voters:
        return "voter"
    return "learner" if node.member in status.membership.learners else "joining"


def _behind(node: NodeState, status: RaftStatus) -> int:
    match = next((peer.match for peer in status.peers if peer.node == node.member), status.last_index)
    return status.last_index - match


def _problems(
    broker: Broker,
    nodes: list[ClusterNode],
    status: RaftStatus,
    standings: Mapping[int, Standing],
    *,
    is_current: bool,
) -> list[Problem]:
    metadata = broker.metadata
    found: list[Problem] = []
    dead = [node for node in nodes if not node.alive]
    if not is_current:
        voters = status.membership.voters
        alive = sum(metadata.is_alive(member) for member in voters)
        found.append(
            Problem(
                "no-metadata-leader",
                f"node {broker.config.node_id} sees {alive} of {len(voters)} voters, "
                f"{status.membership.quorum} are needed: no topic can be made or handed off",
                "start the voters that are down, or mend the network between them; without so many of them "
                "nothing can be changed, and no record be given up",
            )
        )
    for node in dead:
        address = f"{node.peer_host}:{node.peer_port}"
        found.append(
            Problem(
                "node-down",
                f"node {node.node_id} does not answer node {broker.config.node_id} at {address}",
                f"start it again with --node-id {node.node_id} and its own --data-dir",
            )
        )
    found += _waiting_topics(metadata)
    found += _unreadable_topics(metadata)
    found += _topics_cut_short(metadata)
    found += _damaged_objects(metadata)
    found += replica_problems.problems(broker, standings)
    return found


def _waiting_topics(metadata: ReplicatedMetadata) -> list[Problem]:
    """Topics that nobody can append to, because the only node that has their open segment is not there."""
    found: list[Problem] = []
    waiting: dict[int, list[str]] = {}
    left: dict[int, list[str]] = {}
    for topic in metadata.state.topics.values():
        member = topic.open_segment.leader
        if len(topic.open_segment.replicas) > 1:
            continue  # others may take over: `replica_problems`
        if not metadata.state.is_active(member):
            left.setdefault(node_of(member), []).append(topic.name)
        elif not metadata.is_alive(member):
            waiting.setdefault(node_of(member), []).append(topic.name)
    for node_id, topics in sorted(waiting.items()):
        found.append(
            Problem(
                "topics-wait",
                f"{some(topics)} cannot be written: node {node_id} leads and is down",
                f"start node {node_id} again; if its disk is gone for good, "
                f"`ister topic recover {topics[0]}` says what would be lost",
            )
        )
    for node_id, topics in sorted(left.items()):
        found.append(
            Problem(
                "topics-lost-their-node",
                f"{some(topics)} cannot be written: the disk of node {node_id} that led them is gone",
                f"`ister topic recover {topics[0]}` says what would be lost, and lets the topic go on",
            )
        )
    return found


def _unreadable_topics(metadata: ReplicatedMetadata) -> list[Problem]:
    """Topics with sealed segments of which no copy can be read now."""
    found: list[Problem] = []
    waiting: dict[int, list[str]] = {}
    left: dict[int, list[str]] = {}
    is_alive = functools.cache(metadata.is_alive)
    nodes = metadata.state.nodes
    for topic in metadata.state.topics.values():
        holders = {
            tuple(segment.replicas)
            for segment in topic.segments[:-1]
            if not segment.is_empty
            and segment.history is None
            and not any(is_alive(m) and is_readable(segment, m, nodes) for m in segment.replicas)
        }
        for replicas in sorted(holders):
            if not replicas:
                continue
            back = [m for m in replicas if metadata.state.is_active(m) and not is_alive(m)]
            if not back and any(map(is_alive, replicas)):
                continue  # copies that are there are being completed (`replica_problems`), or all end short
            topics = (waiting if back else left).setdefault(node_of((back or replicas)[0]), [])
            if topic.name not in topics[-1:]:
                topics.append(topic.name)
    for node_id, topics in sorted(waiting.items()):
        found.append(
            Problem(
                "records-wait",
                f"{some(topics)} cannot be read in full: node {node_id} has sealed segments and is down",
                f"start node {node_id} again",
            )
        )
    for node_id, topics in sorted(left.items()):
        found.append(
            Problem(
                "records-lost-their-node",
                f"{some(topics)} cannot be read in full: sealed segments were on a disk of node {node_id} "
                f"that is gone",
                f"`ister topic recover {topics[0]}` says which offsets, and records that they are lost",
            )
        )
    return found


def _damaged_objects(metadata: ReplicatedMetadata) -> list[Problem]:
    """Objects of the history that are no good; who has a whole copy of their segment makes them anew."""
    mended: list[str] = []
    lost: dict[str, str] = {}
    for topic in metadata.state.topics.values():
        for segment in topic.segments:
            if segment.history is not None and segment.history.damaged:
                if segment.whole and segment.history.is_to_be_made_anew:
                    mended.append(topic.key_of(segment))
                else:
                    lost[topic.key_of(segment)] = segment.history.name
    found: list[Problem] = []
    if mended:
        found.append(
            Problem(
                "damaged-objects",
                f"objects of {some(mended, 'segments')} in the store are damaged or missing",
                "nothing for the records: nodes have them, and export them again; find out who else writes "
                "or deletes in the store",
            )
        )
    if lost:
        key, name = next(iter(lost.items()))
        found.append(
            Problem(
                "damaged-objects",
                f"objects of {some([*lost], 'segments')} in the store are damaged or missing, and stay so: no"
                f" node has a whole copy, or they were merged with others; that of {key} is {name}",
                f"put them back, from a copy of the store; then `ister history verify "
                f"{key.rpartition(':')[0]}` looks again",
            )
        )
    return found


def _topics_cut_short(metadata: ReplicatedMetadata) -> list[Problem]:
    """Topics with sealed segments whose whole copies left with their disks, and what is left ends short."""
    nodes = metadata.state.nodes
    cut: dict[str, list[missing.Missing]] = {}
    for topic in metadata.state.topics.values():
        parts = [one for one in missing.parts_of(topic, nodes) if not missing.is_gone(one.segment, nodes)]
        if parts:
            cut[topic.name] = parts
    if not cut:
        return []
    first = next(iter(cut))
    others = f"; so had some of {some([*cut][1:])}" if len(cut) > 1 else ""
    return [
        Problem(
            "records-lost-their-node",
            f"{first} cannot be read in full: {missing.why_incomplete(cut[first], nodes)}{others}",
            f"`ister topic recover {first}` says which offsets; with --accept-loss it records that they are "
            f"lost",
        )
    ]
