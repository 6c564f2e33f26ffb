"""What replicas and metadata do when a coordinator asks: the part of the recovery model that answers.

A fence and a copy compare the recovery's number with what the disk has promised, a seal with the last one
begun; `Faults` leaves such a comparison out. Every seal is checked as it is applied: it keeps what was
acknowledged, and whoever it names as a holder has it.
"""

from __future__ import annotations

from random import Random

from ister.replication.recovery.failover_events import (
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
    ProposalFault,
    ProposeSeal,
    SealMissed,
    SegmentSealed,
    Superseded,
)
from ister.replication.stream.progress import Progress
from tests.replication.segment_model import Disk, Faults, Segment, require

RECORD_BYTES = 10


class Answering(Segment):
    """The segment's disks and its line in the metadata, as its coordinators see them."""

    def __init__(
        self, random: Random, count: int, spares: int, faults: Faults, progress_class: type[Progress]
    ) -> None:
        super().__init__(random, count, spares, faults, progress_class)
        self.last_begun = 0
        self.seal: ProposeSeal | None = None
        self.hidden: set[int] = set()
        """Members that others' requests do not reach, though the leader's stream may."""

    def tell_all(self, event: Event) -> None:
        """Every coordinator hears of what was applied, sooner or later."""
        raise NotImplementedError

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
            target.promised, target.durable, target.written = effect.recovery, 0, 0
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
        self.seal, self.sealed_end = seal, seal.end_offset
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
                disk.durable >= end or was_struck,
                f"{member} is said to hold {end}, but ends at {disk.durable}",
            )
        self.counts["substituted"] += any(member in self.substitutes for member in holders)
        self.counts["tail kept"] += end > self.acknowledged
        self.counts["tail cut"] += end < self.log_end
