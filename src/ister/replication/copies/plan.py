"""What is to become of a sealed segment's list: who comes, and who may leave (C3, C5). Pure functions.

Of the list, of who is known to have all of it (`whole`), of who is in the cluster, who answers, and how many
are wanted. Whether that may be, the metadata judges once more when the change is applied.

- Who is lost, drained, on a disk that left the cluster, or one too many, is to leave.
- Another comes where too few would stay. It has nothing until it has said so itself: then who is to leave
  waits for that, unless those that stay are enough without it. So a list may be longer for a while.
- Nobody waits for who does not answer: what it has is in the metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ister.metadata.copies import may_leave
from ister.metadata.state import SegmentState


@dataclass(frozen=True)
class Members:
    """The members, as one node sees them."""

    active: Collection[int]
    alive: Sequence[int]
    """Those of them that answer, in the order of their numbers."""
    lost: Collection[int] = ()
    """Those of them that have not answered for too long."""
    drained: frozenset[int] = frozenset()
    """Those of them whose copies are to go elsewhere."""

    def stays(self, member: int) -> bool:
        return member in self.active and member not in self.lost and member not in self.drained

    def wanted(self, replicas: Sequence[int], wanted: int) -> int:
        """How many copies there can be now of a segment on these, whose topic wants so many. Nobody who is
        drained leaves for fewer than there can be when those are back that are only down (D1)."""
        is_drained = not self.drained.isdisjoint(replicas)
        able = [m for m in (self.active if is_drained else self.alive) if m not in self.drained]
        return min(wanted, len(able) or len(self.alive))


@dataclass(frozen=True)
class Change:
    """What is to become of a sealed segment's list of replicas."""

    expected: list[int]
    replicas: list[int]
    target: int = 0
    """Who has to copy it first; 0 if nobody comes."""


def change_for(
    segment: SegmentState,
    wanted: int,
    members: Members,
    held: Mapping[int, int],
    avoided: Collection[int] = (),
) -> Change | None:
    """The next step for a segment of a topic that wants so many; None if all is well, or nothing can be done
    now. `held` is how many segments each member has, which are to be spread."""
    replicas = segment.replicas
    comes = 0
    if sum(map(members.stays, replicas)) < members.wanted(replicas, wanted):
        others = [m for m in members.alive if m not in replicas and m not in members.drained]
        if not others:
            return None
        comes = min(others, key=lambda m: (m in avoided, held.get(m, 0), m))
    left = _without_those_who_may_go(segment, wanted, members, comes)
    if not comes and left == replicas:
        return None
    return Change(replicas, [*left, comes] if comes else left, 0 if segment.is_empty else comes)


def _without_those_who_may_go(segment: SegmentState, wanted: int, members: Members, comes: int) -> list[int]:
    left = segment.replicas
    count = len(left) + bool(comes)
    # Their disks never come back (I2), or are to be empty: they go too where the others are all there can be.
    is_all = count > members.wanted(left, wanted)
    # A drain never makes a copy less: who is drained goes after another has come (D1).
    waits = [m for m in left if comes and m in members.drained and not segment.is_empty]
    unwanted = [m for m in left if is_all and (m not in members.active or m in members.drained)]
    unwanted = [m for m in unwanted if m not in waits]
    excess = max(0, count - wanted)
    # Who stays does not go for one that would, and cannot yet.
    to_leave = [m for m in left if not members.stays(m)] or left
    order = [m for m in to_leave if m not in waits]
    order.sort(key=lambda member: _worth(segment, member, members))
    due = list(dict.fromkeys((*unwanted, *order[:excess])))
    if _may_go(segment, due, members, comes):
        return [one for one in left if one not in due]
    for member in (*unwanted, *order):  # one by one: those who are not enough without it keep nobody else
        gone = [one for one in segment.replicas if one not in left or one == member]
        is_due = member in unwanted or len(gone) <= excess
        if is_due and _may_go(segment, gone, members, comes):
            left = [one for one in left if one != member]
    return left


def _may_go(segment: SegmentState, gone: Collection[int], members: Members, comes: int) -> bool:
    """Whether the metadata lets these go, and one that stays can be read and copied from."""
    rest = [one for one in segment.replicas if one not in gone]
    if segment.is_empty:
        return bool(rest) or comes > 0
    there = [one for one in rest if one in members.active]
    replicas = [*rest, comes] if comes else rest
    is_there = any(one in members.alive and segment.is_whole_at(one) for one in there)
    return is_there and all(may_leave(segment, member, replicas, there) for member in gone)


def _worth(segment: SegmentState, member: int, members: Members) -> tuple[bool | int, ...]:
    """Who is least is the first to go."""
    return (
        member in members.active,
        member not in members.drained,
        member not in members.lost,
        member in members.alive,
        segment.is_whole_at(member),
        -segment.replicas.index(member),
    )
