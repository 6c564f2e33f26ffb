"""Recoveries and leaders with one bug each, which the model must find."""

from __future__ import annotations

from ister.errors import invariant
from ister.protocol.replication import Refusal, Replicated
from ister.replication.failover import Phase, Recovery
from ister.replication.failover_events import (
    Begin,
    Copied,
    Effect,
    Event,
    Fenced,
    FenceFault,
    FenceMissed,
    Members,
)
from ister.replication.failover_heard import Heard
from ister.replication.progress import Progress


class _OneFewer(Heard):
    @property
    def answers_needed(self) -> int:
        return max(1, super().answers_needed - 1)


class LongestAmongTooFew(Recovery):
    """One answer fewer than R - Q + 1 (F2)."""

    def __init__(self, own: int, replicas: tuple[int, ...], members: Members) -> None:
        super().__init__(own, replicas, members)
        self.heard.__class__ = _OneFewer


class _NoDoubt(Heard):
    def is_in_doubt(self, member: int) -> bool:
        return False


class IgnoresDoubt(Recovery):
    """A replica that cut its tail counts as one that did not (P3)."""

    def __init__(self, own: int, replicas: tuple[int, ...], members: Members) -> None:
        super().__init__(own, replicas, members)
        self.heard.__class__ = _NoDoubt


class WipedCountsAsEmpty(Recovery):
    """A disk without a log answers like one with an empty log (I2)."""

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, FenceMissed) and event.why is FenceFault.UNKNOWN:
            event = Fenced(event.member, 0, 0, in_doubt=False, commit_end=0)
        return super().step(event)


class SealsBeforeTheCopies(Recovery):
    """Whoever was asked to copy is named as a holder at once (F2)."""

    def _copy_or_seal(self) -> list[Effect]:
        holders = self._holders()
        return self._propose_seal(list(dict.fromkeys((self.own, *holders, *self._targets(holders)))))


class CountsACopyThatFailed(Recovery):
    """Takes any word of a target for the end of its copy."""

    def _copied(self, copied: Copied) -> list[Effect]:
        assert self.end_offset is not None or self.phase is not Phase.COPYING
        return super()._copied(copied)

    def _targets(self, holders: list[int]) -> list[int]:
        targets = super()._targets(holders)
        for target in targets:
            self.heard._ends[target] = self.end_offset or 0
        return targets


class ShortestLog(Recovery):
    """Takes the coordinator's own end for the end, as a lone log's recovery would."""

    def _choose(self) -> list[Effect]:
        heard = self.heard
        if heard.is_enough() and self.own in heard.answers:
            self.phase, self.end_offset = Phase.COPYING, heard.answers[self.own].end_offset
            return self._copy_or_seal()
        return super()._choose()


class FencesWithoutBeginning(Recovery):
    """Fences under a number of its own making, before the metadata has agreed (F1)."""

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Begin) and self.phase is Phase.READY:
            self.phase = Phase.BEGINNING
            return self._begun(1_000_000)
        return super().step(event)


class CommitsWithoutItself(Progress):
    """The leader serves and acknowledges what only its followers have."""

    def _advance(self) -> None:
        ends = sorted((self.synced_end(member) for member in self._followers), reverse=True)
        if len(ends) >= self.quorum - 1 and self.quorum > 1:
            self.commit_end = max(self.commit_end, ends[self.quorum - 2])
        else:
            super()._advance()


class CommitsWithHalf(Progress):
    def _advance(self) -> None:
        ends = sorted((self.synced_end(member) for member in self._followers), reverse=True)
        ends = sorted((*ends, self._own_synced), reverse=True)
        self.commit_end = max(self.commit_end, min(self._own_synced, ends[max(0, self.quorum - 2)]))


class CountsFencedAnswers(Progress):
    """A fenced follower's end is an acknowledgement like any other (F2)."""

    def answered(self, member: int, answer: Replicated) -> None:
        invariant(answer.refusal in (Refusal.NONE, Refusal.GAP, Refusal.FENCED), str(answer.refusal))
        super().answered(member, Replicated(0, answer.end_offset))
