"""The coordinator's side of a recovery (F1 to F3), a machine without I/O: from a lost leader to the seal.

The driver feeds events and carries out the effects, in the order given. One object is one attempt of one
replica; `failover_events` has the words, `failover_heard` keeps the facts.

Fault model: the process may stop at any line. Messages and answers are lost, late or repeated. A minority of
the replicas' disks is lost for good; any number may be in doubt (P3), unreachable for a while, or break while
they are copied from. Others coordinate at the same time, under other numbers, and the old leader may run on.

What holds throughout:
- Nobody is fenced before `BeginRecovery` has committed, and everything carries its number (F1).
- The end that is proposed is the longest among R - Q + 1 answers without doubt, or among all R. Every
  acknowledged record is on Q disks, so one of those has it; and a fenced replica helps to acknowledge nothing
  more. So no acknowledged record is at or past that end, now or later.
- A seal is proposed only when Q members, this one among them, have said that they have all of it, durably.
- A replica without a log, or whose disk left the cluster, is not an empty one: it is no answer (I2).

Answers after the end was chosen do not move it, even if they are longer. That is safe: what they have more
was not acknowledged, and cannot be any more; they cut it at the seal (F3), and it is sent again (H2).
To take it would cost another round of copies while writers wait. Such a replica has all up to the chosen end,
and counts as holding it. Only if nobody is left to copy from is the end chosen anew, among the answers that
still stand; copies for the earlier end do no harm, since all logs are prefixes of one.

A known commit past the longest log is a state that our reasoning excludes as long as disks keep what they
synced. It is an effect here and no exception: a disk that lies is no defect of this program, the node has
other topics to serve, and a person has to be told whose return may help. Nothing is sealed, nothing cut.
"""

from __future__ import annotations

from enum import Enum, auto

from ister.protocol.peer import node_of
from ister.replication.recovery.failover_events import (
    Begin,
    BeginMissed,
    Begun,
    Copied,
    Copy,
    CopyFault,
    CopyMissed,
    Done,
    Effect,
    Event,
    Fence,
    Fenced,
    FenceFault,
    FenceMissed,
    GiveUp,
    Members,
    PausePassed,
    ProposalFault,
    ProposeBegin,
    ProposeSeal,
    Reason,
    SealMissed,
    SegmentSealed,
    Superseded,
)
from ister.replication.recovery.failover_heard import Heard

ANOTHER_GOES_ON = "Nothing to do: whoever began later, or has sealed the segment, goes on."
ANOTHER_REPLICA = "Nothing to do if other replicas of the segment are up: one of them takes over."
BRING_BACK = (
    "Start the nodes that do not answer, with their disks. If those are gone for good, "
    "`ister topic recover --accept-loss` shows what would be lost."
)


class Phase(Enum):
    READY = auto()
    BEGINNING = auto()  # BeginRecovery is proposed
    FENCING = auto()  # too few answers yet to know the end
    COPYING = auto()  # the end is chosen; fewer than Q have it, or this member has not
    SEALING = auto()  # the seal is proposed
    OVER = auto()


class Recovery:
    """One attempt, by `own`, to find the end of an open segment and to seal it there."""

    def __init__(self, own: int, replicas: tuple[int, ...], members: Members) -> None:
        self.own = own
        self.phase = Phase.READY
        self.recovery = 0
        self.end_offset: int | None = None
        """The end that was chosen."""
        self.heard = Heard(own, replicas, members)
        self._asked: set[int] = set()
        self._copying: dict[int, int] = {}
        """Whose copy is under way, and from where."""
        self._resting: set[int] = set()
        """Targets that failed: asked again after a pause."""
        self._lame: set[int] = set()
        """Sources that somebody could not read from: used again after a pause, if they still answer."""
        self._last_begun = (0, 0)
        """The highest number that the metadata is known to have given to a recovery, and to whom."""
        self._is_proposed = False

    @property
    def is_over(self) -> bool:
        return self.phase is Phase.OVER

    def describe(self) -> str:
        """What has been heard, for a person who wonders why it takes so long."""
        if not self.recovery:  # nobody was asked anything yet
            return "no recovery has begun yet: a majority of the voters has to agree to it first"
        return f"recovery {self.recovery} is {self.phase.name.lower()}: {self.heard.describe()}"

    def step(self, event: Event) -> list[Effect]:
        if self.phase is Phase.OVER:
            return []
        match event:
            case SegmentSealed(end_offset):
                self.phase = Phase.OVER
                return [Done(end_offset)]
            case Superseded(recovery, by):
                self._last_begun = max(self._last_begun, (recovery, by))
                return self._superseded(by) if 0 < self.recovery < recovery else []
            case PausePassed(members):
                return self._pause(members)
            case Begin() | Begun() | BeginMissed() | SealMissed():
                return self._proposal(event)
        if self.recovery == 0:
            return []  # nobody was asked anything yet
        match event:
            case Fenced():
                return self._fenced(event)
            case FenceMissed(member, why):
                return self._fence_missed(member, why)
            case Copied():
                return self._copied(event)
            case CopyMissed():
                return self._copy_missed(event)

    # The proposals.

    def _proposal(self, event: Begin | Begun | BeginMissed | SealMissed) -> list[Effect]:
        match event, self.phase:
            case Begin(), Phase.READY:
                return self._propose_begin()
            case Begun(recovery), Phase.BEGINNING:
                return self._begun(recovery)
            case BeginMissed(why), Phase.BEGINNING:
                return self._begin_missed(why)
            case SealMissed(why), Phase.SEALING:
                return self._seal_missed(why)
            case _:
                return []  # late or repeated news about something settled

    def _propose_begin(self) -> list[Effect]:
        self.phase, self._is_proposed = Phase.BEGINNING, True
        return [ProposeBegin()]

    def _begun(self, recovery: int) -> list[Effect]:
        self.recovery, self._is_proposed = recovery, False
        last, by = self._last_begun
        if recovery < last:
            return self._superseded(by)
        self.phase = Phase.FENCING
        return [*self._fences(), *self._go_on()]

    def _begin_missed(self, why: ProposalFault) -> list[Effect]:
        self._is_proposed = False
        match why:
            case ProposalFault.FAILED:
                return []  # proposed again after a pause
            case ProposalFault.STALE:
                message = "there is nothing to recover: the segment is sealed, or its topic is gone"
                return self._give_up(Reason.NOT_OPEN, message, ANOTHER_GOES_ON)
            case ProposalFault.REFUSED:
                return self._cannot_coordinate("it may not begin a recovery, since it is not active any more")

    def _seal_missed(self, why: ProposalFault) -> list[Effect]:
        if why is ProposalFault.STALE:
            return self._superseded()
        self._is_proposed = False
        return []  # proposed again after a pause, with the members of then

    # What the replicas say.

    def _fences(self) -> list[Effect]:
        """Ask those who have not answered and may yet."""
        asked = [member for member in self.heard.silent() if member not in self._asked]
        self._asked.update(asked)
        return [Fence(member, self.recovery) for member in asked]

    def _fenced(self, answer: Fenced) -> list[Effect]:
        self._asked.discard(answer.member)
        if not self.heard.answered(answer):
            return []
        return self._differs(answer) or self._go_on()

    def _fence_missed(self, member: int, why: FenceFault) -> list[Effect]:
        self._asked.discard(member)
        if why is FenceFault.SUPERSEDED:
            return self._superseded()
        if why is FenceFault.UNREACHABLE or member not in self.heard.silent():
            return []
        self.heard.rule_out(member, why)
        if member == self.own:
            return self._cannot_coordinate("it has no log of the segment that can be read")
        return self._go_on()

    def _copied(self, copied: Copied) -> list[Effect]:
        self._copying.pop(copied.member, None)
        if not self.heard.copied(copied):
            return []
        return self._differs(copied) or self._go_on()

    def _copy_missed(self, missed: CopyMissed) -> list[Effect]:
        if missed.why is CopyFault.SUPERSEDED:
            return self._superseded()
        if self._copying.get(missed.member) != missed.source:
            return []
        del self._copying[missed.member]
        match missed.why:
            case CopyFault.TARGET:
                self._resting.add(missed.member)
            case CopyFault.SOURCE_UNREACHABLE:
                self._lame.add(missed.source)
            case CopyFault.SOURCE_DAMAGED if missed.source == self.own:
                return self._cannot_coordinate("its own log cannot be read")
            case CopyFault.SOURCE_DAMAGED:
                self.heard.rule_out(missed.source, FenceFault.STORAGE)
        return self._go_on()

    def _differs(self, said: Fenced | Copied) -> list[Effect]:
        """Over, if a log is not a prefix of the one that the others are prefixes of. Empty if it is."""
        if not self.heard.differs(said.end_offset, said.end_position):
            return []
        message = (
            f"the replicas' logs differ: up to offset {said.end_offset} node {node_of(said.member)} has "
            f"{said.end_position} bytes, another {self.heard.position_of(said.end_offset)}; {self.describe()}"
        )
        return self._give_up(Reason.DIVERGED, message, "Keep all the disks as they are, and report this.")

    def _pause(self, members: Members) -> list[Effect]:
        self.heard.members_are(members)
        if self.own not in members.active:
            return self._cannot_coordinate("it is not active any more")
        if self.phase is Phase.READY or self._is_proposed:
            return []
        if self.phase is Phase.BEGINNING:
            return self._propose_begin()
        if self.phase is Phase.SEALING:
            self.phase = Phase.COPYING
        # A source that could not be read is asked whether it is still there. If it is not, the others decide.
        for member in self._lame - {self.own}:
            self.heard.forget(member)
        self._lame.clear()
        self._resting.clear()
        return [*self._fences(), *self._go_on()]

    # The decisions.

    def _go_on(self) -> list[Effect]:
        """Do what the facts allow now."""
        if self.end_offset is not None and self.heard.committed > self.end_offset:
            return self._committed_missing(self.end_offset)
        if self.phase is Phase.COPYING and not self._holders():
            self.phase, self.end_offset = Phase.FENCING, None
        if self.phase is Phase.FENCING:
            return self._choose()
        return self._copy_or_seal() if self.phase is Phase.COPYING else []

    def _choose(self) -> list[Effect]:
        heard = self.heard
        if not heard.is_enough():
            return [] if heard.may_be_enough() else self._too_few()
        if self.own not in heard.answers:
            return []
        longest = heard.longest()
        if longest < heard.committed:
            return self._committed_missing(longest)
        self.phase, self.end_offset = Phase.COPYING, longest
        return self._copy_or_seal()

    def _copy_or_seal(self) -> list[Effect]:
        holders = self._holders()
        if self.own in holders and len(holders) >= self.heard.quorum:
            return self._propose_seal(holders)
        sources = [member for member in holders if member not in self._lame]
        if not sources:
            return []
        assert self.end_offset is not None
        source = min(sources, key=self.heard.is_in_doubt)
        targets = self._targets(holders)
        if self.heard.has_broken_disks() and not self._may_be_held(holders):
            return self._too_few()
        self._copying.update(dict.fromkeys(targets, source))
        return [Copy(target, source, self.end_offset, self.recovery) for target in targets]

    def _targets(self, holders: list[int]) -> list[int]:
        """All replicas that answered, and so many substitutes that they are Q together."""
        heard = self.heard
        busy = {*holders, *self._copying, *self._resting}
        targets = [m for m in heard.replicas if m in heard.answers and m not in busy]
        # The coordinator has to have the log in any case: nobody stands in for it.
        coming = {self.own, *holders, *self._copying, *targets} & heard.members.active
        missing = max(0, heard.quorum - len(coming))
        spare = [m for m in heard.members.substitutes if m not in heard.replicas and m not in busy]
        return targets + [m for m in spare if not heard.is_ruled_out(m)][:missing]

    def _may_be_held(self, holders: list[int]) -> bool:
        """Can Q come together, if all goes well, without those who are ruled out?"""
        heard = self.heard
        found = {*holders, *heard.answers, *heard.silent(), *heard.members.substitutes}
        return sum(not heard.is_ruled_out(member) for member in found) >= heard.quorum

    def _holders(self) -> list[int]:
        assert self.end_offset is not None
        return self.heard.holders(self.end_offset)

    def _propose_seal(self, holders: list[int]) -> list[Effect]:
        assert self.end_offset is not None
        self.phase, self._is_proposed = Phase.SEALING, True
        heard, end = self.heard, self.end_offset
        later = [m for m in heard.replicas if m in heard.members.active and m not in holders]
        return [
            ProposeSeal(self.recovery, end, heard.position_of(end), tuple(holders), (*holders, *later)),
        ]

    # Ways out.

    def _too_few(self) -> list[Effect]:
        message = f"too few replicas are left; {self.describe()}"
        return self._give_up(Reason.TOO_FEW, message, BRING_BACK, retry=self.heard.has_broken_disks())

    def _committed_missing(self, end_offset: int) -> list[Effect]:
        message = (
            f"records up to offset {self.heard.committed} are known to be committed, but the longest log "
            f"found ends at {end_offset}: a disk lost what it had synced; nothing is cut; {self.describe()}"
        )
        retry = bool(self.heard.silent())
        return self._give_up(Reason.COMMITTED_MISSING, message, BRING_BACK, retry=retry)

    def _superseded(self, by: int = 0) -> list[Effect]:
        """Over; but if the later one is an earlier proposal of this member, nobody else goes on with it."""
        message = f"recovery {self.recovery} is not the segment's last one any more, or the segment is sealed"
        return self._give_up(Reason.SUPERSEDED, message, ANOTHER_GOES_ON, retry=by == self.own)

    def _cannot_coordinate(self, why: str) -> list[Effect]:
        message = f"node {node_of(self.own)} cannot recover the segment: {why}"
        return self._give_up(Reason.CANNOT_COORDINATE, message, ANOTHER_REPLICA)

    def _give_up(self, why: Reason, message: str, hint: str, *, retry: bool = False) -> list[Effect]:
        self.phase = Phase.OVER
        return [GiveUp(why, message, hint, retry)]
