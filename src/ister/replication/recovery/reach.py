"""What can still be had of an open segment, and whether that is a reason to give up the rest (F6). No I/O.

An operator may give up only what the cluster cannot find by itself. Where enough replicas answer, a recovery
finds all that was acknowledged, and nothing may be given up; where too few do, what the longest of them has
is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ister.metadata.state import SegmentState
from ister.protocol.peer import node_of
from ister.protocol.replication import FenceAnswer
from ister.quorum import revealing


@dataclass(frozen=True)
class Reach:
    """Of a segment's replicas, what those have that have promised to take no more."""

    end_offset: int
    """The longest log's; the segment's base where there is none."""
    holders: tuple[int, ...]
    """Who has all up to there, in the order of the replicas."""
    known_end: int
    """Up to here somebody knows records to be committed, or has them."""
    is_enough: bool
    """Enough of them have answered: a recovery finds all that was acknowledged."""
    refusal: str
    """Why what lies behind must not be given up; empty if it may."""


def reach_of(segment: SegmentState, answers: Mapping[int, FenceAnswer]) -> Reach:
    """By the answers of those of its replicas that were fenced."""
    end = max((answer.end_offset for answer in answers.values()), default=segment.base_offset)
    holders = tuple(m for m in segment.replicas if m in answers and answers[m].end_offset == end)
    known = max((answer.commit_end for answer in answers.values()), default=0)
    differ = _why_they_differ(answers)
    recovered = _why_recovered(segment, answers, end, known)
    return Reach(end, holders, max(end, known), bool(recovered) and not differ, differ or recovered)


def _why_they_differ(answers: Mapping[int, FenceAnswer]) -> str:
    positions: dict[int, tuple[int, int]] = {}
    for member, answer in answers.items():
        other, position = positions.setdefault(answer.end_offset, (member, answer.end_position))
        if position != answer.end_position:
            return (
                f"the logs of nodes {node_of(other)} and {node_of(member)} differ: up to offset "
                f"{answer.end_offset} they have {position} and {answer.end_position} bytes. Keep both disks "
                f"as they are, and report this"
            )
    return ""


def _why_recovered(segment: SegmentState, answers: Mapping[int, FenceAnswer], end: int, known: int) -> str:
    """Empty also where enough answer, and yet nobody has what is known to be committed: a disk lost it."""
    count = len(segment.replicas)
    needed = revealing(count)
    without_doubt = sum(not answer.in_doubt for answer in answers.values())
    if known <= end and count > 1 and (without_doubt >= needed or len(answers) == count):
        return (
            f"{without_doubt} of its {count} replicas answer without doubt, and {needed} are enough: all "
            f"that was acknowledged is found, and the recovery goes on by itself"
        )
    return ""
