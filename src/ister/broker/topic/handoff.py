"""The leader's side of a handoff, a machine without I/O: from "this segment is full" to "the next is open".

The driver (`handing_off`) feeds events and carries out the effects, in the order given.

Fault model: the process may stop at any line; a proposal may be lost, applied twice, or beaten by another
node's seal of the same segment; the disk may fail while the segment drains.

What holds throughout:
- No record is acknowledged at or past the end that metadata records for its segment.
- An append that arrives during the handoff is answered by whoever leads next, in the order of arrival. It is
  never dropped, and never acknowledged by a segment that does not keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ister.metadata.placement import Why


class Phase(Enum):
    OPEN = auto()
    DRAINING = auto()
    SEALING = auto()
    FENCED = auto()
    SEALED = auto()


@dataclass(frozen=True)
class Close:
    """Somebody wants the next segment: an append that filled this one, its age, an operator."""

    why: Why = Why.FULL


@dataclass(frozen=True)
class Drained:
    """All that was admitted is committed; `end_offset` is the true end."""

    end_offset: int


@dataclass(frozen=True)
class StorageBroke:
    """The disk failed: the segment ends at its last good end, and nothing more is waited for (P1)."""

    last_good_end: int


@dataclass(frozen=True)
class Lost:
    """The segment has other replicas, and is not this leader's to end any more: a recovery has begun, this
    disk failed, or too few of them could be reached (H4). Nothing more is acknowledged until somebody has
    sealed."""


@dataclass(frozen=True)
class ProposalFailed:
    """Not applied, or nobody can say. Proposing again is safe: it is a compare-and-set (H1)."""


@dataclass(frozen=True)
class SealApplied:
    end_offset: int
    index: int


@dataclass(frozen=True)
class Drain: ...


@dataclass(frozen=True)
class ProposeSeal:
    end_offset: int


@dataclass(frozen=True)
class AwaitSeal:
    """Take part in the recovery, and wait for what it seals."""


@dataclass(frozen=True)
class OpenNext:
    """Metadata has applied the seal at `index`: open the next segment and release what is held (H3)."""

    index: int


Event = Close | Drained | StorageBroke | Lost | ProposalFailed | SealApplied
Effect = Drain | ProposeSeal | AwaitSeal | OpenNext


class Handoff:
    """One segment's way out: starts with the segment, ends with `SEALED`."""

    def __init__(self) -> None:
        self.phase = Phase.OPEN
        self.why = Why.FULL
        self.end_offset: int | None = None
        self.admits = True
        """May an append be given an offset now? Checked with no await before the enqueue (A4)."""

    def step(self, event: Event) -> list[Effect]:
        effects = self._step(event)
        self.admits = self.phase is Phase.OPEN
        return effects

    def _step(self, event: Event) -> list[Effect]:
        match event, self.phase:
            case Close(why), Phase.OPEN:
                self.phase, self.why = Phase.DRAINING, why
                return [Drain()]
            case Drained(end), Phase.DRAINING:
                self.phase, self.end_offset = Phase.SEALING, end
                return [ProposeSeal(end)]
            case StorageBroke(end), Phase.OPEN | Phase.DRAINING:
                self.phase, self.end_offset = Phase.SEALING, end
                return [ProposeSeal(end)]
            case Lost(), Phase.OPEN | Phase.DRAINING | Phase.SEALING:
                self.phase = Phase.FENCED
                return [AwaitSeal()]
            case ProposalFailed(), Phase.SEALING:
                assert self.end_offset is not None
                return [ProposeSeal(self.end_offset)]
            case SealApplied(end, index), phase if phase is not Phase.SEALED:
                self.phase, self.end_offset = Phase.SEALED, end
                return [OpenNext(index)]
            case _:
                return []  # late or repeated news about something settled
