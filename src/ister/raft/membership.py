"""Who is in the cluster, and how that changes: one node at a time, as entries of the log.

A membership holds from the moment its entry is in a node's log, committed or not, and stops holding when that
entry is cut off again (thesis 4.1). Two memberships that differ by one voter have overlapping quorums; that
is why a change waits until the one before it has committed, and until the leader has committed an entry of
its own term (R1): without the latter, two leaders could each hold an uncommitted change of the same ancestor,
and those two may differ by two voters.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ister.errors import invariant
from ister.raft.messages import Membership

PROMOTION_LAG_ENTRIES: Final = 1_000
"""A learner this close to the leader's end may become a voter (R2); one further behind would stall all."""


class ChangeKind(Enum):
    ADD_LEARNER = "add-learner"
    PROMOTE = "promote"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """A node comes as a learner, becomes a voter once it has caught up, and leaves from either."""

    kind: ChangeKind
    node: int


class Unchangeable(Enum):
    """Why a membership can't be changed so, whoever asks."""

    ALREADY_MEMBER = "already a member"
    NOT_A_MEMBER = "not a member"
    NOT_A_LEARNER = "not a learner"
    LAST_VOTER = "the last voter can't be removed"


def change_membership(now: Membership, change: MembershipChange) -> Membership | Unchangeable:
    """The membership after the change, or why there is none."""
    node = change.node
    match change.kind:
        case ChangeKind.ADD_LEARNER:
            if node in now:
                return Unchangeable.ALREADY_MEMBER
            return Membership(now.voters, _with(now.learners, node))
        case ChangeKind.PROMOTE:
            if node not in now.learners:
                return Unchangeable.NOT_A_LEARNER
            return Membership(_with(now.voters, node), _without(now.learners, node))
        case ChangeKind.REMOVE:
            if node not in now:
                return Unchangeable.NOT_A_MEMBER
            if now.voters == (node,):
                return Unchangeable.LAST_VOTER
            return Membership(_without(now.voters, node), _without(now.learners, node))


def _with(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(sorted({*nodes, node}))


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(other for other in nodes if other != node)


class MembershipHistory:
    """The memberships in the log since the newest compaction, by the index from which each holds."""

    __slots__ = ("_indexes", "_memberships", "latest")

    def __init__(self, index: int, membership: Membership) -> None:
        self._indexes = [index]
        self._memberships = [membership]
        self.latest = membership

    @property
    def latest_index(self) -> int:
        return self._indexes[-1]

    def add(self, index: int, membership: Membership) -> None:
        invariant(index > self._indexes[-1], f"a membership at {index} after one at {self._indexes[-1]}")
        self._indexes.append(index)
        self._memberships.append(membership)
        self.latest = membership

    def truncate_from(self, index: int) -> None:
        """The entries from there on are gone, and with them what they said."""
        while self._indexes[-1] >= index:
            invariant(len(self._indexes) > 1, f"cutting the membership at {index}, which is the oldest known")
            self._indexes.pop()
            self._memberships.pop()
        self.latest = self._memberships[-1]

    def at(self, index: int) -> Membership:
        """The one that held at that index of the log."""
        place = bisect_right(self._indexes, index) - 1
        invariant(place >= 0, f"the membership at {index} is older than the oldest known")
        return self._memberships[place]

    def compact(self, index: int) -> None:
        """Forget those that were replaced at or before `index`."""
        place = max(0, bisect_right(self._indexes, index) - 1)
        del self._indexes[:place], self._memberships[:place]
