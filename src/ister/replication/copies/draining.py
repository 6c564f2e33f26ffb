"""What a drained node has of sealed segments goes to others: the next step for one segment (C1 to C3, D1).

Three steps, each a change of the list that the metadata compares and judges: another node has made its
copy, and is listed; it reports itself whole (C2); the drained one leaves. Until then its copy counts as any
other. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ister.metadata.copies import may_leave
from ister.metadata.state import SegmentState


def drain_step(
    segment: SegmentState,
    wanted: int,
    drained: Collection[int],
    alive: Sequence[int],
    active: Collection[int],
    held: Mapping[int, int],
    avoided: Collection[int] = (),
) -> tuple[list[int], int] | None:
    """The list that is next, and who has to copy it first (0 if nobody); None if nothing can be done now, or
    nobody in the list is drained. `alive` are the members that answer, `held` is how many each has."""
    leaving = [member for member in segment.replicas if member in drained]
    if not leaving:
        return None
    staying = [member for member in segment.replicas if member not in drained]
    others = [member for member in alive if member not in drained and member not in segment.replicas]
    # One that is only down comes back, and has a copy then: nobody leaves for fewer copies than there can be.
    count = min(wanted, sum(member not in drained for member in active))
    there = [member for member in staying if member in active]
    if len(there) < max(1, count):
        if not others:
            return None
        target = min(others, key=lambda member: (member in avoided, held.get(member, 0), member))
        if segment.is_empty:
            return [*staying, target], 0  # there is nothing to copy
        return [*segment.replicas, target], target
    may = all(may_leave(segment, member, staying, there) for member in leaving)
    return (staying, 0) if there and (segment.is_empty or may) else None
