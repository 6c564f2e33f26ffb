"""Who has what of the sealed segments (C1 to C5): what is kept of it, what changes it, what follows from it.

A sealed segment's list (`replicas`) says who is to have it; `whole` says who is known to have all of it,
durably; `told` what the others in the list have said of their copies. Nobody goes around asking: the plan of
repairs, the guard of a removal, health and what is unavailable are functions of these and of who is there.

Fault model: reports come late, twice, after each other's time, from an earlier start of their node, or never.
What holds:
- `whole` and `told` name members of the list only, and nobody twice.
- A report counts if its node's start is the one that the cluster knows, its number is higher than the last
  one of that start, and the list has not changed since the node looked at it. So a "whole" from before a copy
  left the list is not believed of the copy that came after, and none from before damage was found after that.
- Who is not in `whole` may have everything, nothing, or rot: it counts for nothing.

Pure functions of the state and a command (R3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ister.metadata.commands import CopyEntry, Outcome, ReportCopies, Reported, Result
from ister.metadata.nodes import Nodes, is_in_cluster, why_not_proposer
from ister.metadata.topics import SegmentState, ToldCopy, TopicState
from ister.quorum import acknowledging

if TYPE_CHECKING:
    from ister.metadata.state import ClusterState

MAX_ENTRIES = 1000
"""In one report; the rest goes with the next."""
PASSING_US = 2_000_000


# What follows from it.


def needed(replicas: Sequence[int], staying: Sequence[int]) -> int:
    """How many whole copies a list needs, of which these stay in the cluster (C3)."""
    return max(1, min(acknowledging(len(replicas)), len(staying)))


def is_enough(segment: SegmentState, replicas: Sequence[int], staying: Sequence[int]) -> bool:
    """C3: whether a segment's records are safe with those of its new list who stay in the cluster: Q of that
    list are known to have all of it, or all that are left where those are fewer, and at least one."""
    return sum(map(segment.is_whole_at, staying)) >= needed(replicas, staying)


def may_leave(segment: SegmentState, member: int, replicas: Sequence[int], staying: Sequence[int]) -> bool:
    """C3: whether a member may leave the list, which is `replicas` then, or the cluster."""
    if is_enough(segment, replicas, staying):
        return True
    told = segment.told_by(member)
    has_said_so = told is not None and told.state in (Reported.SHORT, Reported.ABSENT)
    return has_said_so and any(map(segment.is_whole_at, staying))


def staying(nodes: Nodes, replicas: Sequence[int], leaving: int = 0) -> list[int]:
    """Those of a list that are in the cluster, but for one."""
    return [member for member in replicas if member != leaving and is_in_cluster(nodes, member)]


def state_of(segment: SegmentState, member: int) -> Reported | None:
    """How the copy of a member of the list is, by what is known of it. None of one that has not said: it is
    under way, or about to be looked at."""
    if segment.is_whole_at(member):
        return Reported.WHOLE
    told = segment.told_by(member)
    known = [state for state in Reported if told is not None and state == told.state]
    return known[0] if known else None


def is_missing(segment: SegmentState, member: int, now_us: int) -> bool:
    """Whether a member of the list has not all of it, as far as is known. Right after the seal those who were
    behind look at theirs: that is no news, unless it takes long."""
    if not segment.is_sealed or segment.is_whole_at(member):
        return False
    is_new = now_us - segment.sealed_at_us < PASSING_US
    return not is_new or segment.told_by(member) is not None


def is_mendable(segment: SegmentState, nodes: Nodes) -> bool:
    """Whether somebody in the cluster has all of it, for those whose copies are damaged or short."""
    return any(is_in_cluster(nodes, member) for member in segment.whole)


def is_readable(segment: SegmentState, member: int, nodes: Nodes) -> bool:
    """Whether readers get its records from this copy, if its node answers: a damaged one is read as it is if
    nobody has better."""
    state = state_of(segment, member)
    return state == Reported.WHOLE or (state == Reported.DAMAGED and not is_mendable(segment, nodes))


def gone_from(segment: SegmentState, nodes: Nodes) -> int | None:
    """From which offset on a sealed segment's records are on no disk that is in the cluster, as far as those
    have said that have a copy; None if nothing is gone, or one of them may have all of it."""
    if not segment.is_sealed or segment.is_empty or segment.history is not None:
        return None
    there = staying(nodes, segment.replicas)
    if len(there) == len(segment.replicas):
        return None  # who is short waits for one of the others
    told = [segment.told_by(member) for member in there]
    ends = [one.end_offset for one in told if one is not None and one.state == Reported.SHORT]
    if len(ends) < len(there):
        return None
    start = max(ends, default=segment.base_offset)
    return start if segment.data_end is not None and start < segment.data_end else None


# What changes it.


def listed(index: int, segment: SegmentState, replicas: list[int], whole: Sequence[int] | None) -> None:
    """Another list, or another end. Of those in it only `whole` are known to have all of it. None of commands
    from before there were names: they make nobody whole, and leave a segment of which nothing is known by
    name as it would be in a snapshot of then (R3)."""
    is_known = whole is not None or segment.whole or segment.told or segment.listed_at
    kept = segment.whole if whole is None else whole
    segment.replicas = replicas
    segment.whole = [member for member in replicas if member in kept]
    segment.told = [told for told in segment.told if told.member in replicas and told.member not in kept]
    if is_known:
        segment.listed_at = index


def report_copies(state: ClusterState, index: int, command: ReportCopies) -> Outcome:
    """What a node says of its copies (C2). What is old in it is passed over, entry by entry."""
    fault = why_not_proposer(state.nodes, command.member, command.starts)
    if not fault and command.number <= (last := state.reports.get(command.member, 0)):
        fault = f"report {command.number} comes after report {last}"
    if fault:
        return Outcome(Result.STALE, index, fault)
    state.reports[command.member] = command.number
    for entry in command.entries:
        take_report(command, state.topic_by_uid(entry.topic_uid), entry)
    return Outcome(Result.APPLIED, index)


def take_report(command: ReportCopies, topic: TopicState | None, entry: CopyEntry) -> None:
    """One entry of a report that counts. What has changed since the node looked is passed over."""
    segment = find_segment(topic, entry.segment_uid) if topic is not None else None
    member = command.member
    if segment is None or not segment.is_sealed or segment.is_empty:
        return
    if member not in segment.replicas or command.index < segment.listed_at:
        return
    others = [told for told in segment.told if told.member != member]
    if entry.state == Reported.WHOLE:
        segment.told = others
        segment.whole = [one for one in segment.replicas if one == member or one in segment.whole]
    elif entry.state in (Reported.SHORT, Reported.DAMAGED, Reported.ABSENT):
        segment.told = [*others, ToldCopy(member, entry.state, entry.end_offset)]
        segment.whole = [one for one in segment.whole if one != member]


def find_segment(topic: TopicState, uid: int) -> SegmentState | None:
    """The segment of the chain that has this uid."""
    at = bisect_left(topic.segments, uid, key=lambda one: one.uid)  # each was opened after the one before it
    found = topic.segments[at] if at < len(topic.segments) else None
    return found if found is not None and found.uid == uid else None
