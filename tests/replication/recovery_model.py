"""A segment's life and recovery in miniature, from a seed: `python -m tests.replication.recovery_model --seeds 5000`.

Replicas are ends of logs on disks; all are prefixes of what one leader wrote. The leader runs the real `Progress`,
each coordinator the real `Recovery`; what is between them is this file: a bag of messages that are lost, late and
executed without an answer, processes that die at any step, disks that are lost or cut a rotten tail, a leader that
goes on while it is being recovered, and several coordinators at once. In the end the weather clears, and the
segment has to be sealed.

Faults stay within what is promised: a minority is lost or in doubt; or nobody is lost, and all but one may doubt.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ister.protocol.replication import Refusal, Replicated
from ister.replication.failover import Recovery
from ister.replication.failover_events import (
    Begin,
    BeginMissed,
    Begun,
    Copied,
    Copy,
    CopyFault,
    CopyMissed,
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
from ister.replication.progress import Progress

STEPS = 160
CALM_ROUNDS = 60
WINDOW = 5
RECORD_BYTES = 10
WEATHERS = ("", "the leader is gone", "the leader runs on", "anybody is hidden", "many coordinate")
UNEXPECTED = (Reason.COMMITTED_MISSING, Reason.DIVERGED)


class PropertyBroken(AssertionError):
    """Something that must hold did not."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise PropertyBroken(message)


@dataclass(frozen=True)
class Faults:
    """Bugs of those who are neither the coordinator nor the leader."""

    fence_not_compared: bool = False
    fence_forgotten: bool = False
    answers_before_sync: bool = False
    takes_appends_when_fenced: bool = False
    older_seal_accepted: bool = False


class Disk:
    """One member's log of the segment, and its process."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.durable = 0
        self.most = 0
        """The most that was ever durable here."""
        self.written = 0
        self.promised = 0
        self.in_doubt = False
        self.known_commit = 0
        self.is_up = True
        self.lost: FenceFault | None = None
        """Of a lost disk, what is heard instead of it."""
        self.has_left = False
        self.unanswered = 0

    def sync(self, end: int) -> None:
        self.durable = max(self.durable, end)
        self.most = max(self.most, self.durable)


class Link:
    """The stream from the leader to a follower, and back."""

    def __init__(self) -> None:
        self.out: deque[tuple[int, int, int]] = deque()
        self.back: deque[Replicated] = deque()
        self.is_up = False


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


class World:
    """One seed's segment."""

    def __init__(
        self,
        seed: int,
        recovery_class: type[Recovery] = Recovery,
        faults: Faults | None = None,
        progress_class: type[Progress] = Progress,
        weather: str | None = None,
    ) -> None:
        self.random = random = Random(seed)
        self.recovery_class = recovery_class
        self.faults = faults or Faults()
        self.weather = random.choice(WEATHERS) if weather is None else weather
        count = random.choice((2, 4) if self.weather == "many coordinate" else (1, 2, 3, 3, 3, 4, 5))
        self.quorum = count // 2 + 1
        self.replicas = tuple(random.sample(range(1, count + 1), count))
        self.disks = {member: Disk(member) for member in range(1, count + 1 + random.randint(0, 2))}
        self.substitutes = tuple(member for member in self.disks if member > count)
        self.leader = self.replicas[0]
        self.is_leading = True
        self.log_end = 0
        self.progress = progress_class(self.leader, self.replicas, 0)
        self.links = {member: Link() for member in self.replicas[1:]}
        self.acknowledged = 0
        self.last_begun = 0
        self.seal: ProposeSeal | None = None
        self.bag: list[tuple[Attempt | None, Effect] | tuple[Attempt, Event]] = []
        self.late: list[tuple[Attempt | None, Effect]] = []
        self.lateness = random.choice((0.0, 0.25))
        self.attempts: list[Attempt] = []
        self.counts: Counter[str] = Counter()
        self.loss = random.choice((0.0, 0.1, 0.3))
        self.may_lose = random.random() < 0.7
        # Somebody who had all that was acknowledged is neither lost nor in doubt: the leader, or one of any Q.
        can_be_struck = count - self.quorum if self.may_lose else self.quorum - 1
        self.victims = random.sample(self.replicas, can_be_struck)
        if not self.may_lose and random.random() < 0.5:
            self.victims = list(self.replicas[1:])
        self.slow = set(random.sample(self.replicas[1:], random.choice((0, count - self.quorum))))
        """Followers that are mostly behind."""
        self.hidden: set[int] = set()
        """Members that others' requests do not reach, though the leader's stream may."""
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
                failing = (3, 6, 6, 6, 6, 0.3, 1.5, 6, 0.3, recoveries, 20, 3, 0.7)
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

    # Writing.

    def append(self) -> None:
        if self.is_leading:
            self.log_end += self.random.randint(1, 3)
            self.pump()
            self.disks[self.leader].written = self.log_end

    def pump(self) -> None:
        if not self.is_leading:
            return
        for member, link in self.links.items():
            if member in self.slow and self.random.random() < 0.9:
                continue
            if not link.is_up:
                if self.random.random() < 0.5 and self.disks[member].is_up:
                    link.is_up = True
                    self.progress.connected(member)
                    self.progress.told(member, self.acknowledged)
                    link.out.append((0, 0, self.acknowledged))
                continue
            start = self.progress.wants(member, self.log_end, WINDOW)
            if start is not None:
                end = min(self.log_end, start + self.random.randint(1, 4))
                self.progress.sent(member, end, end - start, self.acknowledged)
                link.out.append((start, end, self.acknowledged))

    def link(self) -> None:
        for member, link in self.links.items():
            if link.out and self.random.random() < 0.6:
                self.follow(self.disks[member], link, *link.out.popleft())

    def follow(self, disk: Disk, link: Link, start: int, end: int, commit: int) -> None:
        if disk.promised and not self.faults.takes_appends_when_fenced:
            link.back.append(Replicated(0, disk.durable, Refusal.FENCED, disk.promised))
        elif start > disk.written:
            link.back.append(Replicated(0, disk.durable, Refusal.GAP))
        else:
            disk.written = max(disk.written, end)
            disk.known_commit = max(disk.known_commit, commit)
            if self.faults.answers_before_sync:
                link.back.append(Replicated(0, disk.written))
            elif disk.written > disk.durable:
                disk.unanswered += 1
            else:
                link.back.append(Replicated(0, disk.durable))

    def sync(self) -> None:
        disk = self.disks[self.random.choice(self.replicas)]
        if not disk.is_up:
            return
        disk.sync(disk.written)
        if disk.member == self.leader:
            if self.is_leading:
                self.progress.own_synced(disk.durable)
                self.acknowledge()
        elif self.links[disk.member].is_up and not disk.promised:
            self.links[disk.member].back.extend([Replicated(0, disk.durable)] * disk.unanswered)
        disk.unanswered = 0

    def answer(self) -> None:
        for member, link in self.links.items():
            if link.back and self.is_leading and self.random.random() < 0.6:
                self.progress.answered(member, link.back.popleft())
                self.acknowledge()
                # A leader that learns that it is fenced stops (H4), sooner or later.
                if self.progress.is_fenced and self.random.random() < 0.3:
                    self.is_leading = False

    def acknowledge(self) -> None:
        end = self.acknowledged = self.progress.commit_end
        holding = [m for m in self.replicas if self.disks[m].most >= end]
        require(len(holding) >= self.quorum, f"{end} was acknowledged, and was durable only on {holding}")
        require(self.seal is None or end <= self.seal.end_offset, f"{end} was acknowledged after {self.seal}")

    def cut_link(self) -> None:
        if self.links:
            self.break_link(self.random.choice(self.replicas[1:]))

    def break_link(self, member: int) -> None:
        link = self.links[member]
        if link.is_up:
            link.out.clear()
            link.back.clear()
            link.is_up = False
            self.disks[member].unanswered = 0
            self.progress.disconnected(member)

    # What goes wrong.

    def crash(self) -> None:
        self.kill(self.random.choice(tuple(self.disks)))

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
            attempt.feed(item)
            return
        missed = self.random.random() < self.loss
        if missed and self.random.random() < 0.5:
            if self.random.random() < 0.5:
                bag.append((None, item))  # it comes, long after somebody waits for the answer
            answer: Event | None = self.missed(item)
        else:
            by = attempt.own if attempt is not None else self.leader
            answer = self.execute(item, by)
            if answer is None:
                bag.append((attempt, item))
                return
            answer = self.missed(item) if missed else answer
        if attempt is not None:
            bag.append((attempt, answer))

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

    def execute(self, effect: Effect, by: int) -> Event | None:
        """The answer, or nothing while it is not done."""
        match effect:
            case Fence(member, recovery):
                if member in self.hidden and member != by:
                    return FenceMissed(member, FenceFault.UNREACHABLE)
                return self.fence(self.disks[member], recovery)
            case Copy():
                return self.copy(effect)
            case ProposeSeal():
                return self.apply_seal(effect)
            case _:
                return self.apply_begin(by)

    def apply_begin(self, by: int) -> Event:
        if self.seal is not None:
            return BeginMissed(ProposalFault.STALE)
        self.last_begun += self.random.randint(1, 9)
        self.tell_all(Superseded(self.last_begun, by))
        self.counts["begun"] += 1
        return Begun(self.last_begun)

    def tell_all(self, event: Event) -> None:
        for attempt in self.attempts:
            if attempt.is_alive:
                self.bag.append((attempt, event))

    def fence(self, disk: Disk, recovery: int) -> Event:
        if disk.lost is not None:
            return FenceMissed(disk.member, disk.lost)
        if not disk.is_up:
            return FenceMissed(disk.member, FenceFault.UNREACHABLE)
        if recovery < disk.promised and not self.faults.fence_not_compared:
            return FenceMissed(disk.member, FenceFault.SUPERSEDED)
        disk.promised = recovery
        disk.sync(disk.written)
        if disk.member == self.leader:
            self.is_leading = False
        commit = self.acknowledged if disk.member == self.leader else disk.known_commit
        return Fenced(disk.member, disk.durable, disk.durable * RECORD_BYTES, disk.in_doubt, commit)

    def copy(self, effect: Copy) -> Event | None:
        target, source = self.disks[effect.target], self.disks[effect.source]
        if not target.is_up or target.lost is not None:
            return CopyMissed(target.member, source.member, CopyFault.TARGET)
        if effect.recovery != target.promised and target.member in self.substitutes:
            if effect.recovery < target.promised and not self.faults.fence_not_compared:
                return CopyMissed(target.member, source.member, CopyFault.SUPERSEDED)
            # A substitute has no log of its own to go on with: each recovery's copy begins anew.
            target.promised, target.durable = effect.recovery, 0
        elif effect.recovery < target.promised and not self.faults.fence_not_compared:
            return CopyMissed(target.member, source.member, CopyFault.SUPERSEDED)
        if target.durable < effect.end_offset:
            if not source.is_up or source.lost is not None or source.member in self.hidden:
                return CopyMissed(target.member, source.member, CopyFault.SOURCE_UNREACHABLE)
            if source.durable < effect.end_offset:
                return CopyMissed(target.member, source.member, CopyFault.SOURCE_DAMAGED)
            target.sync(min(effect.end_offset, target.durable + self.random.randint(1, 5)))
            target.written = max(target.written, target.durable)
            if target.durable < effect.end_offset:
                return None
        return Copied(target.member, target.durable, target.durable * RECORD_BYTES)

    def apply_seal(self, seal: ProposeSeal) -> Event:
        is_last = seal.recovery == self.last_begun or self.faults.older_seal_accepted
        if self.seal is not None or not is_last:
            return SealMissed(ProposalFault.STALE)
        if any(self.disks[member].has_left for member in seal.replicas):
            return SealMissed(ProposalFault.REFUSED)
        self.seal = seal
        self.check_seal(seal)
        self.tell_all(SegmentSealed(seal.end_offset))
        return SegmentSealed(seal.end_offset)

    def check_seal(self, seal: ProposeSeal) -> None:
        end, holders = seal.end_offset, seal.holders
        require(end >= self.acknowledged, f"sealed at {end}, {self.acknowledged} was acknowledged")
        require(len(set(holders)) >= self.quorum, f"{holders} are fewer than {self.quorum}")
        require(seal.replicas[: len(holders)] == holders, f"{seal.replicas} does not begin with {holders}")
        require(len(set(seal.replicas)) == len(seal.replicas), f"{seal.replicas} names somebody twice")
        for member in holders:
            disk = self.disks[member]
            was_struck = disk.lost is not None or disk.in_doubt
            require(
                disk.durable >= end or was_struck, f"{member} is said to hold {end}, but ends at {disk.durable}"
            )
        self.counts["substituted"] += any(member in self.substitutes for member in holders)
        self.counts["tail kept"] += end > self.acknowledged
        self.counts["tail cut"] += end < self.log_end

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
            for _ in range(1_000):
                if not self.bag:
                    break
                self.deliver()
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
        require(not any(attempt.is_alive for attempt in self.attempts) or bool(self.bag), "somebody waits on")


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
