"""Recoveries and leaders with one bug each, which the model must find."""

from __future__ import annotations

from ister.protocol.replication import Replicated
from ister.replication.recovery.failover import Phase, Recovery
from ister.replication.recovery.failover_events import (
    Begin,
    Effect,
    Event,
    Fenced,
    FenceFault,
    FenceMissed,
    Members,
)
from ister.replication.recovery.failover_heard import Heard
from ister.replication.stream.progress import Progress


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


class TakesItsOwnEnd(Recovery):
    """The end of the coordinator's own log is taken for the end, as if it had no other replicas."""

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
    """The leader acknowledges what others have synced, whether it has itself or not."""

    def _advance(self) -> None:
        ends = sorted((self._own_synced, *map(self.synced_end, self._followers)), reverse=True)
        # Its own place among the Q is taken for granted.
        self.quorum_end = max(self.quorum_end, ends[max(0, self.quorum - 2)])


class CommitsWithHalf(Progress):
    def _advance(self) -> None:
        ends = sorted((self._own_synced, *map(self.synced_end, self._followers)), reverse=True)
        self.quorum_end = max(self.quorum_end, min(self._own_synced, ends[max(0, self.quorum - 2)]))


class CountsFencedAnswers(Progress):
    """A fenced follower's end is an acknowledgement like any other (F2)."""

    def answered(self, member: int, answer: Replicated) -> None:
        super().answered(member, Replicated(answer.segment_uid, answer.end_offset))
