"""What the coordinator of a recovery has heard: who answered its fence, who has how much, and is that enough.

Facts only; what is done about them is `failover`'s.
"""

from __future__ import annotations

from ister.errors import invariant
from ister.protocol.peer import node_of
from ister.quorum import acknowledging, revealing
from ister.replication.recovery.failover_events import Copied, Fenced, FenceFault, Members


class Heard:
    def __init__(self, own: int, replicas: tuple[int, ...], members: Members) -> None:
        invariant(own in replicas, f"{own} coordinates, but is none of the replicas {replicas}")
        invariant(len(set(replicas)) == len(replicas), f"a replica is named twice in {replicas}")
        self.own = own
        self.replicas = replicas
        self.quorum = acknowledging(len(replicas))
        self.members = members
        self.answers: dict[int, Fenced] = {}
        """The replicas' answers that stand."""
        self.committed = 0
        """What somebody knows to be committed. It stays known when whoever said so is gone."""
        self._ends: dict[int, int] = {}
        """How far a member has the log, durably: by its answer, and by what it copied since."""
        self._positions: dict[int, int] = {}
        """The end in bytes of a log with this end: the same for all, since all are prefixes of one."""
        self._ruled_out: dict[int, FenceFault] = {}

    # Being told.

    def answered(self, answer: Fenced) -> bool:
        """Whether it counts. The first answer of a replica stands until it is forgotten."""
        if answer.member not in self.silent():
            return False
        self.answers[answer.member] = answer
        self._ends[answer.member] = answer.end_offset
        self.committed = max(self.committed, answer.commit_end)
        return True

    def copied(self, copied: Copied) -> bool:
        """Whether it counts: of a replica that was forgotten it does not, until it answers again."""
        member = copied.member
        if member in self.replicas:
            counts = member in self.answers
        else:
            counts = member in self.members.active and member not in self._ruled_out
        if counts:
            self._ends[member] = max(self._ends.get(member, 0), copied.end_offset)
        return counts

    def differs(self, end_offset: int, end_position: int) -> bool:
        """Whether this log is not the one that the others are prefixes of."""
        return self._positions.setdefault(end_offset, end_position) != end_position

    def position_of(self, end_offset: int) -> int:
        return self._positions[end_offset]

    def rule_out(self, member: int, why: FenceFault) -> None:
        """It counts for nothing in this attempt, whatever it says later."""
        self.forget(member)
        self._ruled_out[member] = why

    def forget(self, member: int) -> None:
        """As if it had not answered yet."""
        self.answers.pop(member, None)
        self._ends.pop(member, None)

    def members_are(self, members: Members) -> None:
        self.members = members
        for member in [one for one in self._ends if one not in members.active]:
            self.forget(member)

    # What follows.

    def silent(self) -> list[int]:
        """The replicas that have not answered, and may yet."""
        silent = [m for m in self.replicas if m not in self.answers and m not in self._ruled_out]
        return [m for m in silent if m in self.members.active]

    @property
    def answers_needed(self) -> int:
        """So many without doubt that one of them has every acknowledged record: R - Q + 1."""
        return revealing(len(self.replicas))

    def is_enough(self) -> bool:
        """Has one of those who answered every acknowledged record, whichever Q acknowledged it (F2, P3)?"""
        return self._without_doubt() >= self.answers_needed or len(self.answers) == len(self.replicas)

    def may_be_enough(self) -> bool:
        """Can those who have not answered yet make it enough?"""
        silent = len(self.silent())
        all_may_answer = silent + len(self.answers) == len(self.replicas)
        return all_may_answer or self._without_doubt() + silent >= self.answers_needed

    def longest(self) -> int:
        return max(self._ends[member] for member in self.answers)

    def holders(self, end_offset: int) -> list[int]:
        """Who has all up to this end: the coordinator, the replicas in their order, substitutes."""
        order = dict.fromkeys((self.own, *self.replicas, *self._ends))
        return [member for member in order if self._ends.get(member, -1) >= end_offset]

    def is_in_doubt(self, member: int) -> bool:
        return member in self.answers and self.answers[member].in_doubt

    def is_ruled_out(self, member: int) -> bool:
        return member in self._ruled_out

    def has_broken_disks(self) -> bool:
        """A disk that failed may read again after a restart; one that is gone stays so."""
        return FenceFault.STORAGE in self._ruled_out.values()

    def _without_doubt(self) -> int:
        return sum(not self.is_in_doubt(member) for member in self.answers)

    def describe(self) -> str:
        return (
            f"{self.answers_needed} of {len(self.replicas)} replicas have to answer without doubt, or all: "
            + ", ".join(map(self._standing, self.replicas))
        )

    def _standing(self, member: int) -> str:
        name = f"node {node_of(member)}"
        if member in self.answers:
            doubt = ", in doubt" if self.is_in_doubt(member) else ""
            return f"{name} ends at {self._ends[member]}{doubt}"
        if member not in self.members.active:
            return f"{name} left the cluster with that disk"
        match self._ruled_out.get(member):
            case None:
                return f"{name} has not answered"
            case FenceFault.UNKNOWN:
                return f"{name} has no log of it"
            case _:
                return f"{name} has a damaged log or disk"
