"""A segment's recoveries in miniature: `python -m tests.replication.recovery_model --seeds 5000`.

Each coordinator runs the real `Recovery`, the leader the real `Progress` (`segment_model`); what the replicas
and the metadata answer is in `answering_model`. What is between them is here: a bag of messages that are
lost, late, or executed without an answer; processes that die at any step; disks that are lost, or cut a
rotten tail; a leader that goes on while its segment is recovered; several coordinators at once. In the end
the weather clears, and the segment has to be sealed.

Faults stay within what is promised: a minority is lost or in doubt; or nobody is lost, and of those who had
what was acknowledged one is not in doubt.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random

from ister.replication.recovery.failover import Recovery
from ister.replication.recovery.failover_events import (
    Begin,
    BeginMissed,
    Copy,
    CopyFault,
    CopyMissed,
    Done,
    Effect,
    Event,
    Fence,
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
)
from ister.replication.stream.progress import Progress
from tests.replication.answering_model import Answering
from tests.replication.segment_model import Faults, require

STEPS = 160
CALM_ROUNDS = 60
WEATHERS = ("", "the leader is gone", "the leader runs on", "anybody is hidden", "many coordinate")
UNEXPECTED = (Reason.COMMITTED_MISSING, Reason.DIVERGED)


class Attempt:
    def __init__(self, world: World, own: int) -> None:
        self.world = world
        self.own = own
        self.machine = world.recovery_class(own, world.replicas, world.members())
        self.is_alive = True

    def feed(self, event: Event) -> None:
        if not self.is_alive:
            return
        for effect in self.machine.step(event):
            if isinstance(effect, GiveUp):
                self.world.given_up(effect)
            elif isinstance(effect, ProposeBegin | Fence | Copy | ProposeSeal):
                self.world.ask(self, effect)
        self.is_alive = not self.machine.is_over


class World(Answering):
    """One seed's segment, what befalls it, and its recovery."""

    def __init__(
        self,
        seed: int,
        recovery_class: type[Recovery] = Recovery,
        faults: Faults | None = None,
        progress_class: type[Progress] = Progress,
        weather: str | None = None,
    ) -> None:
        random = Random(seed)
        self.weather = random.choice(WEATHERS) if weather is None else weather
        is_duel = self.weather == "many coordinate"
        count = random.choice((2, 4) if is_duel else (1, 2, 3, 3, 3, 4, 5))
        super().__init__(random, count, random.randint(is_duel, 2), faults or Faults(), progress_class)
        self.recovery_class = recovery_class
        self.bag: list[tuple[Attempt | None, Effect | Event]] = []
        self.late: list[tuple[Attempt | None, Effect]] = []
        self.lateness = 0.35 if is_duel else random.choice((0.0, 0.25))
        self.attempts: list[Attempt] = []
        self.loss = random.choice((0.0, 0.1, 0.3))
        self.may_lose = random.random() < 0.7
        # Somebody who had all that was acknowledged is neither lost nor in doubt: the leader, or one of Q.
        can_be_struck = count - self.quorum if self.may_lose else self.quorum - 1
        self.victims = random.sample(self.replicas, can_be_struck)
        if not self.may_lose and random.random() < 0.5:
            self.victims = list(self.replicas[1:])
        self.actions: list[Callable[[], None]] = [
            self.append,
            self.pump,
            self.link,
            self.sync,
            self.answer,
            self.cut_link,
            self.crash,
            self.start,
            self.strike,
            self.recover,
            self.deliver,
            self.pause,
            self.release,
        ]

    def run(self) -> World:
        random = self.random
        writing = (5, 10, 12, 12, 12, 0.2, 0.1, 3, 0, 0, 0, 0, 0)
        for action in random.choices(self.actions, writing, k=random.randint(30, 100)):
            action()
        crashes, recoveries = random.choice((0.3, 1.5)), random.choice((0.5, 2))
        failing = (3, 4, 4, 4, 4, 0.3, crashes, 3, 0.8, recoveries, 20, 3, 0.7)
        match self.weather:
            case "the leader is gone":
                self.kill(self.leader)
                self.hidden = {self.leader}
            case "the leader runs on":
                self.hidden = {self.leader}
                failing = (3, 8, 8, 8, 8, 0.3, 2.5, 8, 0.2, 1, 16, 3, 0.7)
            case "anybody is hidden":
                self.hidden = set(random.sample(self.replicas, random.randint(0, len(self.replicas) - 1)))
            case "many coordinate":
                self.kill(self.leader)
                self.hidden = {self.leader}
                failing = (0, 0, 0, 0, 0, 0, 0.1, 3, 0.1, 2, 20, 2, 1)
        for action in random.choices(self.actions, failing, k=STEPS):
            action()
        self.clear_up()
        return self

    def members(self) -> Members:
        active = frozenset(member for member, disk in self.disks.items() if not disk.has_left)
        return Members(active, self.substitutes)

    # What goes wrong.

    def crash(self) -> None:
        member = self.random.choice(tuple(self.disks))
        if member != self.leader or self.weather != "the leader runs on":
            self.kill(member)

    def kill(self, member: int) -> None:
        disk = self.disks[member]
        self.counts["crash"] += 1
        disk.is_up = False
        disk.unanswered = disk.known_commit = 0
        # Some of what was not synced may be there all the same, and is synced before it counts (P2).
        disk.written = self.random.randint(disk.durable, max(disk.durable, disk.written))
        disk.sync(disk.written)
        if self.faults.fence_forgotten:
            disk.promised = 0
        if member == self.leader:
            self.is_leading = False  # for good (A3)
        elif member in self.links:
            self.break_link(member)
        for attempt in self.attempts:
            attempt.is_alive = attempt.is_alive and attempt.own != member

    def start(self) -> None:
        disk = self.random.choice(tuple(self.disks.values()))
        disk.is_up = disk.lost is None

    def strike(self) -> None:
        """A disk is lost for good, or what is found on it at the next start is less than it had."""
        if not self.victims:
            return
        member = self.random.choice(self.victims)
        self.kill(member)
        disk = self.disks[member]
        if self.may_lose and self.random.random() < 0.5:
            self.counts["lost"] += 1
            disk.lost = self.random.choice((FenceFault.UNREACHABLE, FenceFault.UNKNOWN, FenceFault.UNKNOWN))
            disk.has_left = self.random.random() < 0.2
        else:
            self.counts["doubt"] += 1
            disk.in_doubt = True
            disk.written = disk.durable = self.random.randint(0, disk.durable)

    # Recovering.

    def recover(self) -> None:
        ready = [m for m in self.replicas if self.disks[m].is_up]
        if ready and self.seal is None:
            attempt = Attempt(self, self.random.choice(ready))
            self.attempts.append(attempt)
            attempt.feed(Begin())

    def pause(self) -> None:
        alive = [attempt for attempt in self.attempts if attempt.is_alive]
        if alive:
            self.random.choice(alive).feed(PausePassed(self.members()))

    def ask(self, attempt: Attempt, effect: Effect) -> None:
        lateness = self.lateness * (2 if isinstance(effect, ProposeSeal) else 1)
        (self.late if self.random.random() < lateness else self.bag).append((attempt, effect))

    def release(self) -> None:
        """What was held up somewhere comes, when nobody expects it any more."""
        if self.late:
            self.bag.append(self.late.pop(self.random.randrange(len(self.late))))

    def given_up(self, effect: GiveUp) -> None:
        self.counts[effect.why.name] += 1
        require(effect.why not in UNEXPECTED, effect.message)
        # A disk that rots while it is copied from is ruled out; at the next attempt it says that it doubts.
        require(effect.why is not Reason.TOO_FEW or effect.retry, effect.message)

    def deliver(self) -> None:
        bag = self.bag
        if not bag:
            return
        place = self.random.randrange(len(bag))
        bag[place], bag[-1] = bag[-1], bag[place]
        attempt, item = bag.pop()
        if not isinstance(item, ProposeBegin | Fence | Copy | ProposeSeal):
            assert attempt is not None
            assert not isinstance(item, Done | GiveUp)
            attempt.feed(item)
            return
        missed = self.random.random() < self.loss
        if missed and self.random.random() < 0.5:
            if self.random.random() < 0.5:
                bag.append((None, item))  # it comes, long after somebody waits for the answer
        else:
            answer = self.execute(item, attempt.own if attempt is not None else self.leader)
            if answer is None:
                bag.append((attempt, item))
                return
            if not missed and attempt is not None:
                bag.append((attempt, answer))
        if missed and attempt is not None:
            bag.append((attempt, self.missed(item)))

    def tell_all(self, event: Event) -> None:
        for attempt in self.attempts:
            if attempt.is_alive:
                self.bag.append((attempt, event))

    def missed(self, effect: Effect) -> Event:
        match effect:
            case Fence(member):
                return FenceMissed(member, FenceFault.UNREACHABLE)
            case Copy(target, source):
                return CopyMissed(target, source, CopyFault.TARGET)
            case ProposeSeal():
                return SealMissed(ProposalFault.FAILED)
            case _:
                return BeginMissed(ProposalFault.FAILED)

    # The end.

    def clear_up(self) -> None:
        """Everybody who is left comes back, and the segment has to be sealed."""
        self.loss = self.lateness = 0.0
        self.bag += self.late
        for disk in self.disks.values():
            disk.is_up = disk.lost is None
        for round_ in range(CALM_ROUNDS):
            if round_ == CALM_ROUNDS // 2:
                self.hidden.clear()
            self.deliver_all()
            for action in (self.append, self.link, self.sync, self.answer):
                action()
            if self.seal is not None:
                break
            alive = [attempt for attempt in self.attempts if attempt.is_alive]
            for attempt in alive:
                attempt.feed(PausePassed(self.members()))
            if not alive:
                self.recover()
        require(self.seal is not None, "the segment is not sealed, although enough replicas answer")
        for action in self.random.choices(self.actions[:5], k=60):
            action()
        self.counts["acknowledged"] = self.acknowledged
        self.deliver_all()
        require(not any(attempt.is_alive for attempt in self.attempts), "somebody does not hear of the seal")

    def deliver_all(self) -> None:
        for _ in range(2_000):
            if not self.bag:
                return
            self.deliver()
        require(False, "messages without end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5_000)
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        try:
            counts += World(seed).run().counts
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{asked.seeds} seeds are clean: {dict(counts)}")


if __name__ == "__main__":
    main()
