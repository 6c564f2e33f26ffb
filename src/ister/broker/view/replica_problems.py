"""What is wrong with the copies of the cluster's segments, and what heals it, in a few lines for people.

It is found from the metadata, from who answers, and from what the nodes say of their own copies (`standing`).
What is not known is not called wrong. A topic with one replica has no copies to miss: that its node is down
is said in `cluster_view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ister.broker.view.descriptions import clock_time, recovery_detail
from ister.broker.view.shortage import Shortage, shortage
from ister.metadata.commands import Reported
from ister.metadata.copies import is_mendable
from ister.metadata.state import SegmentState, TopicState
from ister.protocol.messages import Problem
from ister.protocol.peer import node_of
from ister.protocol.standing import Standing
from ister.quorum import acknowledging, revealing

if TYPE_CHECKING:
    from ister.broker.node.broker import Broker

_SHOWN = 5


def problems(broker: Broker, standings: Mapping[int, Standing]) -> list[Problem]:
    return [
        *_under_replicated(broker, shortage(broker, standings)),
        *_unknown(broker, standings),
        *_recoveries(broker, standings),
        *_too_few(broker),
        *_damaged(broker),
        *_faults(broker, standings),
    ]


def _under_replicated(broker: Broker, found: Shortage) -> list[Problem]:
    if not found.segments:
        return []
    what = (
        f"{_counted(found.segments, 'segment')} of {_counted(len(found.topics), 'topic')} "
        f"({some(list(found.topics))}) {'has' if found.segments == 1 else 'have'} fewer copies than wanted, "
        f"by {_counted(found.copies, 'copy', 'copies')}: {'; '.join(_reasons(found))}"
    )
    return [Problem("under-replicated", what, "; ".join(_remedies(broker, found)))]


def _unknown(broker: Broker, standings: Mapping[int, Standing]) -> list[Problem]:
    """Nodes that are up and were asked, and did not say how their copies are."""
    metadata = broker.metadata
    if not standings or all(topic.settings.replicas < 2 for topic in metadata.state.topics.values()):
        return []
    asked = [member for member in metadata.state.active_members if metadata.is_alive(member)]
    silent = [node_of(member) for member in asked if member not in standings]
    if not silent:
        return []
    return [
        Problem(
            "copies-unknown",
            f"{_nodes(silent)} did not say in time how {'its' if len(silent) == 1 else 'their'} copies are",
            f"look again; if it stays so, look at the log of {_nodes(silent)}",
        )
    ]


def _has_nodes(broker: Broker, found: Shortage) -> bool:
    """Whether enough nodes answer for as many copies as are wanted."""
    state = broker.metadata.state
    wanted = max(state.topics[name].settings.replicas for name in found.topics)
    alive = sum(map(broker.metadata.is_alive, state.active_members))
    return alive >= min(wanted, len(state.active_members))


def _reasons(found: Shortage) -> list[str]:
    reasons = [f"node {node} is down and has {count} of them" for node, count in sorted(found.down.items())]
    for node, count in sorted(found.gone.items()):
        reasons.append(f"{_were(count)} on a disk of node {node} that left the cluster")
    for node, count in sorted(found.incomplete.items()):
        reasons.append(f"node {node} checks or completes {count}")
    for node, count in sorted(found.away.items()):
        reasons.append(f"node {node} does not keep up with {count} that are open ({found.why_away[node]})")
    for node, count in sorted(found.unwritten.items()):
        reasons.append(f"node {node} cannot write {count} of them: {found.disks[node]}")
    if found.unplaced:
        reasons.append(f"{found.unplaced:,} {'has' if found.unplaced == 1 else 'have'} no place yet")
    return reasons


def _remedies(broker: Broker, found: Shortage) -> list[str]:
    """What to do now; or what will be done without anybody's help."""
    config = broker.config
    has_nodes = _has_nodes(broker, found)
    remedies: list[str] = []
    for node in sorted(found.down):
        then = (
            f"after {config.repair_after_ms / 1000:g} s without it its copies are made anew on other nodes"
            if has_nodes
            else "no other node can take its place"
        )
        remedies.append(f"start node {node} again with its own --data-dir; {then}")
    if (found.gone or found.unplaced) and not has_nodes:
        remedies.append(
            "copies that are gone can be made anew once as many nodes are up as copies are wanted"
        )
    elif found.gone or found.unplaced:
        rate = config.repair_bytes_per_second / (1024 * 1024)
        remedies.append(f"copies are made anew by themselves, at up to {rate:g} MiB/s for each node")
    if found.incomplete:
        remedies.append("copies are completed by themselves from other replicas: wait")
    remedies += [
        f"free space on the disk of node {node}, or replace it: its copies are completed by themselves then"
        for node in sorted(found.unwritten)
    ]
    if found.replaceable:
        lost = config.replica_lost_ms / 1000
        remedies.append(f"after {lost:g} s topics go on without a node that gets nothing")
    for node in sorted(found.away):
        place = "" if node in found.replaceable else "no other node can take its place; "
        remedies.append(f"{place}if it lasts, look at the log of node {node}")
    return remedies or ["nothing: it heals by itself"]


def _recoveries(broker: Broker, standings: Mapping[int, Standing]) -> list[Problem]:
    """Open segments that lost their leader: by that leader, for there may be many at once."""
    lost: dict[int, list[TopicState]] = {}
    for topic in broker.metadata.state.topics.values():
        segment = topic.open_segment
        if len(segment.replicas) > 1 and (segment.recovery or not broker.metadata.is_alive(segment.leader)):
            lost.setdefault(segment.leader, []).append(topic)
    found: list[Problem] = []
    for leader, topics in sorted(lost.items()):
        stuck = [topic for topic in topics if not _may_recover(broker, topic.open_segment)]
        going = [topic for topic in topics if _may_recover(broker, topic.open_segment)]
        if going:
            found.append(_going(broker, leader, going, standings))
        if stuck:
            found.append(_stuck(broker, stuck, standings))
    return found


def _may_recover(broker: Broker, segment: SegmentState) -> bool:
    """Whether so many of its replicas are there that a recovery can find its end: R - Q + 1."""
    return _alive(broker, segment) >= revealing(len(segment.replicas))


def _away(broker: Broker, segment: SegmentState) -> list[int]:
    metadata = broker.metadata
    return [m for m in segment.replicas if not (metadata.state.is_active(m) and metadata.is_alive(m))]


def _alive(broker: Broker, segment: SegmentState) -> int:
    return len(segment.replicas) - len(_away(broker, segment))


def _going(
    broker: Broker, leader: int, topics: list[TopicState], standings: Mapping[int, Standing]
) -> Problem:
    why = "is down" if not broker.metadata.is_alive(leader) else "gave them up"
    what = f"node {node_of(leader)}, which leads {some([one.name for one in topics])}, {why}; "
    begun = [topic for topic in topics if topic.open_segment.recovery]
    if not broker.metadata.has_majority:
        return Problem(
            "failover",
            f"{what}another replica takes over once the metadata has a leader",
            "start the voters that are down, or mend the network between them",
        )
    if not begun:
        after = broker.config.failover_after_ms / 1000
        return Problem(
            "failover",
            f"{what}another replica takes over",
            f"nothing: that begins {after:g} s after the node fell silent",
        )
    what += _of_recovery(broker, begun[0], standings)
    return Problem(
        "recovering",
        what,
        "nothing, if it is over in a few seconds; else start the nodes that have not answered",
    )


def _of_recovery(broker: Broker, topic: TopicState, standings: Mapping[int, Standing]) -> str:
    segment = topic.open_segment
    since_us = broker.replication.standings.recovering_since_us(topic.uid)
    since = f" since {clock_time(since_us)}" if since_us is not None else ""
    detail = recovery_detail(segment, standings)
    said = f"a recovery of {topic.key_of(segment)} by node {node_of(segment.coordinator)} is under way{since}"
    return f"{said}: {detail}" if detail else said


def _stuck(broker: Broker, topics: list[TopicState], standings: Mapping[int, Standing]) -> Problem:
    """Too few replicas are left: nothing goes on by itself."""
    segment = topics[0].open_segment
    needed = revealing(len(segment.replicas))
    away = _away(broker, segment)
    what = (
        f"{some([one.name for one in topics])} cannot be written: {_alive(broker, segment)} of "
        f"{len(segment.replicas)} replicas answer, {needed} have to for the end of "
        f"{topics[0].key_of(segment)} to be found{_who(broker, away)}"
    )
    if segment.recovery:
        what += f"; {_of_recovery(broker, topics[0], standings)}"
    return Problem(
        "topics-wait",
        what,
        f"{_to_start(broker, away, '; if that is gone for good, ')}`ister topic recover {topics[0].name}` "
        f"says what would be lost",
    )


def _is_short(broker: Broker, segment: SegmentState) -> bool:
    """Whether its leader is up and nobody recovers it, but too few of its replicas are to acknowledge."""
    replicas = segment.replicas
    is_led = len(replicas) > 1 and not segment.recovery and broker.metadata.is_alive(segment.leader)
    return is_led and _alive(broker, segment) < acknowledging(len(replicas))


def _too_few(broker: Broker) -> list[Problem]:
    """Topics that wait for replicas, by those: nothing is wrong with their leaders."""
    waiting: dict[tuple[int, ...], list[TopicState]] = {}
    for topic in broker.metadata.state.topics.values():
        if _is_short(broker, topic.open_segment):
            waiting.setdefault(tuple(sorted(_away(broker, topic.open_segment))), []).append(topic)
    return [_waits_for(broker, list(away), topics) for away, topics in sorted(waiting.items())]


def _waits_for(broker: Broker, away: list[int], topics: list[TopicState]) -> Problem:
    segment, metadata = topics[0].open_segment, broker.metadata
    quorum = acknowledging(len(segment.replicas))
    what = (
        f"{some([one.name for one in topics])} cannot be written: {_alive(broker, segment)} of "
        f"{len(segment.replicas)} replicas of {topics[0].key_of(segment)} answer, {quorum} have to "
        f"acknowledge{_who(broker, away)}"
    )
    actions = [_to_start(broker, away)]
    able = sum(map(metadata.is_alive, metadata.state.active_members))
    goes_on = broker.metadata.has_majority and able >= quorum
    if goes_on and all(_may_recover(broker, topic.open_segment) for topic in topics):
        seconds = max(broker.config.quorum_timeout_ms, broker.config.replica_lost_ms) / 1000
        whose = "it other nodes take its" if len(away) == 1 else "them other nodes take their"
        actions.append(f"after {seconds:g} s without {whose} place")
    wait = "more nodes have to be up for others to take their place"
    return Problem("topics-wait", what, "; ".join(filter(None, actions)) or wait)


def _who(broker: Broker, away: list[int]) -> str:
    """Of replicas that do not answer: which may come back, and which never do (I2)."""
    state = broker.metadata.state
    back = [node_of(member) for member in away if state.is_active(member)]
    gone = [node_of(member) for member in away if not state.is_active(member)]
    said = f"; down: {_nodes(back)}" if back else ""
    return f"{said}; on disks that left the cluster: {_nodes(gone)}" if gone else said


def _to_start(broker: Broker, away: list[int], then: str = "") -> str:
    """Empty if none of these can come back: a disk that left the cluster is not let in again (I2)."""
    back = [node_of(member) for member in away if broker.metadata.state.is_active(member)]
    return f"start {_nodes(back)} with the old --data-dir{then}" if back else ""


def _damaged(broker: Broker) -> list[Problem]:
    """Copies that were found damaged, by node; and whether somebody has them whole."""
    found: list[Problem] = []
    nodes = broker.metadata.state.nodes
    copies: dict[int, list[str]] = {}
    records: dict[int, list[str]] = {}
    for topic in broker.metadata.state.topics.values():
        for segment in topic.segments:
            for told in segment.told:
                if told.state == Reported.DAMAGED and broker.metadata.is_alive(told.member):
                    which = copies if is_mendable(segment, nodes) else records
                    which.setdefault(node_of(told.member), []).append(topic.key_of(segment))
    for node in sorted({*copies, *records}):
        names, worse = copies.get(node, []), records.get(node, [])
        if worse:
            found.append(
                Problem(
                    "damaged-records",
                    f"records of {some(worse, 'segments')} on node {node} are damaged, and no other copy has "
                    f"them whole: readers of them get corrupt-segment",
                    f"bring back a node or a backup that has them; check the disk of node {node}",
                )
            )
        if names:
            found.append(
                Problem(
                    "damaged-copies",
                    f"node {node} found its copies of {some(names, 'segments')} damaged: they are not served",
                    f"nothing for the records: good copies are brought from other nodes; check the disk and "
                    f"the kernel's log of node {node}",
                )
            )
    return found


def _faults(broker: Broker, standings: Mapping[int, Standing]) -> list[Problem]:
    """Topics whose leader is up and does not take appends to them; but for those that wait for replicas."""
    found: list[Problem] = []
    state, has_majority = broker.metadata.state, broker.metadata.has_majority
    for member, standing in sorted(standings.items()):
        broken: dict[str, str] = {}
        given_up: dict[str, str] = {}
        for fault in standing.faults:
            topic = state.topic_by_uid(fault.topic_uid)
            if topic is None or topic.open_segment.leader != member or topic.open_segment.recovery:
                continue
            if not _is_short(broker, topic.open_segment):
                is_given_up = len(topic.open_segment.replicas) > 1 and not has_majority
                (given_up if is_given_up else broken)[topic.name] = fault.why
        node = node_of(member)
        if broken:
            names, why = some([*broken]), next(iter(broken.values()))
            first = next(iter(broken))
            found.append(
                Problem(
                    "topics-broken",
                    f"node {node} leads {names} and cannot append: {why}",
                    f"look at the log of node {node}; `ister topic describe {first}` shows the topic",
                )
            )
        if given_up:
            names, why = some([*given_up]), next(iter(given_up.values()))
            found.append(
                Problem(
                    "topics-wait",
                    f"node {node} has given up {names}, and another leads once the metadata has a leader: "
                    f"{why}",
                    "start the voters that are down, or mend the network between them",
                )
            )
    return found


def some(names: list[str], what: str = "topics") -> str:
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {more} more {what if more > 1 else what.removesuffix('s')}" if more > 0 else shown


def _nodes(nodes: list[int]) -> str:
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(map(str, nodes))


def _were(count: int) -> str:
    return f"{count:,} {'was' if count == 1 else 'were'}"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
