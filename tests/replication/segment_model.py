"""A segment's replicas and its leader in miniature: the part of the recovery model that writes.

Replicas are ends of logs on disks; all are prefixes of what one leader wrote, with the real `Progress`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from random import Random

from ister.protocol.replication import Refusal, Replicated
from ister.replication.recovery.failover_events import FenceFault
from ister.replication.stream.progress import Progress

WINDOW = 5


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


class Segment:
    """A leader that appends, followers that sync, and what was acknowledged."""

    def __init__(
        self, random: Random, count: int, spares: int, faults: Faults, progress_class: type[Progress]
    ) -> None:
        self.random = random
        self.faults = faults
        self.quorum = count // 2 + 1
        self.replicas = tuple(random.sample(range(1, count + 1), count))
        self.disks = {member: Disk(member) for member in range(1, count + spares + 1)}
        self.substitutes = tuple(member for member in self.disks if member > count)
        self.leader = self.replicas[0]
        self.is_leading = True
        self.log_end = 0
        self.sealed_end: int | None = None
        self.progress = progress_class(self.leader, self.replicas, 0)
        self.links = {member: Link() for member in self.replicas[1:]}
        self.acknowledged = 0
        self.counts: Counter[str] = Counter()
        self.slow = set(random.sample(self.replicas[1:], random.choice((0, count - self.quorum))))
        """Followers that are mostly behind."""

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
                if self.progress.is_fenced and self.random.random() < 0.1:
                    self.is_leading = False

    def acknowledge(self) -> None:
        end = self.acknowledged = self.progress.quorum_end
        holding = [m for m in self.replicas if self.disks[m].most >= end]
        require(len(holding) >= self.quorum, f"{end} was acknowledged, and was durable only on {holding}")
        sealed = self.sealed_end
        require(sealed is None or end <= sealed, f"{end} was acknowledged, {sealed} is the sealed end")

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
