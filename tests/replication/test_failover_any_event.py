"""State x event: any event in any state of a recovery is taken or ignored, and never breaks its rules."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.replication.recovery.failover import Phase, Recovery
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
    SealMissed,
    SegmentSealed,
    Superseded,
)

OWN = 2
SUBSTITUTES = (8, 9)
STRANGER = 77
NUMBER = 17


def everybody(count: int) -> Members:
    return Members(frozenset((*range(1, count + 1), *SUBSTITUTES)), SUBSTITUTES)


class Watched:
    """A recovery, and what it may do: judged from the events that it was told, not from what it keeps."""

    def __init__(self, count: int) -> None:
        self.machine = Recovery(OWN, tuple(range(1, count + 1)), everybody(count))
        self.count = count
        self.quorum = count // 2 + 1
        self.number = 0
        self.answered: set[int] = set()
        self.without_doubt: set[int] = set()
        self.ends: dict[int, set[int]] = {}
        self.fencing: set[int] = set()
        self.copying: set[int] = set()
        self.is_over = False

    def step(self, event: Event) -> list[Effect]:
        self.hear(event)
        effects = self.machine.step(event)
        for effect in effects:
            self.check(effect)
        assert self.machine.is_over == self.is_over
        return effects

    def hear(self, event: Event) -> None:
        match event:
            case Begun(recovery) if self.machine.phase is Phase.BEGINNING:
                self.number = recovery
            case Fenced(member, end, _, in_doubt):
                self.fencing.discard(member)
                self.answered.add(member)
                self.ends.setdefault(member, set()).add(end)
                if not in_doubt:
                    self.without_doubt.add(member)
            case FenceMissed(member):
                self.fencing.discard(member)
            case Copied(member, end):
                self.copying.discard(member)
                self.ends.setdefault(member, set()).add(end)
            case CopyMissed(member):
                self.copying.discard(member)
            case _:
                pass

    def check(self, effect: Effect) -> None:
        assert not self.is_over, f"{effect} after the end"
        match effect:
            case Fence(member, recovery):
                assert recovery == self.number > 0
                assert member not in self.fencing
                self.fencing.add(member)
            case Copy(target, source, end, recovery):
                assert recovery == self.number > 0
                assert target not in self.copying
                assert target != source
                assert end <= max(self.ends[source])
                self.copying.add(target)
            case ProposeSeal():
                self.check_seal(effect)
            case Done() | GiveUp():
                self.is_over = True
            case ProposeBegin():
                assert self.number == 0

    def check_seal(self, seal: ProposeSeal) -> None:
        replicas = set(range(1, self.count + 1))
        assert seal.recovery == self.number > 0
        assert seal.holders[0] == OWN
        assert len(set(seal.holders)) == len(seal.holders) >= self.quorum
        assert seal.replicas[: len(seal.holders)] == seal.holders
        assert set(seal.replicas) <= replicas | set(SUBSTITUTES)
        for member in seal.holders:
            assert max(self.ends[member]) >= seal.end_offset
        assert seal.end_position == seal.end_offset * 10
        enough = len(self.without_doubt & replicas) >= self.count - self.quorum + 1
        assert enough or replicas <= self.answered


def events(count: int) -> list[Event]:
    """Every kind, with members of every kind, and values below, at and above those that matter."""
    members = (*range(1, count + 1), *SUBSTITUTES, STRANGER)
    found: list[Event] = [Begin(), SegmentSealed(5)]
    found += [Begun(NUMBER + more) for more in (-1, 0, 1)]
    found += [Superseded(NUMBER + more, by) for more in (-1, 0, 1) for by in (1, OWN)]
    for fault in ProposalFault:
        found += [BeginMissed(fault), SealMissed(fault)]
    for member in members:
        found += [Fenced(member, end, end * 10, doubt, 0) for end in (3, 5, 7) for doubt in (False, True)]
        found += [Fenced(member, 5, 50, False, 6), FenceMissed(member, FenceFault.UNREACHABLE)]
        found += [FenceMissed(member, fault) for fault in FenceFault]
        found += [Copied(member, end, end * 10) for end in (3, 5, 7)]
        for source in (1, OWN, STRANGER):
            found += [CopyMissed(member, source, fault) for fault in CopyFault]
    everyone = everybody(count)
    found += [PausePassed(everyone), PausePassed(Members(everyone.active - {1}, ()))]
    found += [PausePassed(Members(everyone.active - {8}, (9,)))]
    return found


def in_phase(phase: Phase) -> Watched:
    steps: list[tuple[Phase, list[Event]]] = [
        (Phase.READY, []),
        (Phase.BEGINNING, [Begin()]),
        (Phase.FENCING, [Begun(NUMBER), Fenced(OWN, 3, 30, False, 0)]),
        (Phase.COPYING, [Fenced(1, 5, 50, False, 0)]),
        (Phase.SEALING, [Copied(OWN, 5, 50)]),
        (Phase.OVER, [SegmentSealed(5)]),
    ]
    watched = Watched(3)
    for reached, fed in steps:
        for event in fed:
            watched.step(event)
        assert watched.machine.phase is reached
        if reached is phase:
            break
    return watched


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_any_event_and_its_repetition_are_harmless_in_any_phase(phase: Phase) -> None:
    start = in_phase(phase)
    for event in events(3):
        watched = deepcopy(start)
        watched.step(event)
        watched.step(event)
        # And after it the news of a seal still ends the recovery, once.
        assert watched.is_over or isinstance(watched.step(SegmentSealed(5))[0], Done)


@pytest.mark.slow
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_any_two_events_are_harmless_in_any_phase(phase: Phase) -> None:
    start = in_phase(phase)
    few = [event for event in events(3) if getattr(event, "member", 1) in (1, 3, 8)]
    for first in few:
        after = deepcopy(start)
        after.step(first)
        if after.is_over:
            continue
        for second in few:
            deepcopy(after).step(second)


def goes_on(event: Event) -> bool:
    """Whether a recovery may live on after it. Those that end it are in the tables above."""
    faults = (FenceFault.SUPERSEDED, CopyFault.SUPERSEDED, ProposalFault.STALE)
    is_end = isinstance(event, SegmentSealed | Superseded) or getattr(event, "why", None) in faults
    return not is_end and getattr(event, "commit_end", 0) == 0


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[Event]]:
    count = draw(st.integers(2, 5))
    answer = st.builds(
        lambda member, end, doubt: Fenced(member, end, end * 10, doubt, 0),
        st.sampled_from(range(1, count + 1)),
        st.integers(0, 4),
        st.sampled_from((False, False, True)),
    )
    copy = st.builds(
        lambda member, end: Copied(member, end, end * 10),
        st.sampled_from((*range(1, count + 1), *SUBSTITUTES)),
        st.integers(0, 4),
    )
    anything = st.sampled_from([event for event in events(count) if goes_on(event)])
    wiped = st.builds(FenceMissed, st.sampled_from((1, 3)), st.just(FenceFault.UNKNOWN))
    kinds: dict[str, st.SearchStrategy[Event]] = {
        "answer": answer,
        "copy": copy,
        "anything": anything,
        "wiped": wiped,
    }
    chances = ("answer",) * 4 + ("copy",) * 3 + ("anything",) * 3 + ("wiped",)
    kind = st.sampled_from(chances)
    return count, draw(st.lists(kind.flatmap(lambda name: kinds[name]), min_size=5, max_size=40))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(histories())
def test_any_history_keeps_the_rules(history: tuple[int, list[Event]]) -> None:
    count, told = history
    watched = Watched(count)
    watched.step(Begin())
    watched.step(Begun(NUMBER))
    for event in told:
        watched.step(event)
