"""The words of a recovery: what its coordinator is told, and what it asks for. `failover` has the machine.

A member is a node with its disk (I2). Offsets count records, positions count bytes. Every `Fence` and every
`Copy` is answered by one event in the end, if only by one that says that no answer came: how long to wait is
the driver's to know. So is what a pause is: `PausePassed` comes again and again until the recovery is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True)
class Members:
    """The cluster as the metadata has it now."""

    active: frozenset[int]
    """All active members. A replica whose disk left the cluster is not among them, and counts for nothing."""
    substitutes: tuple[int, ...]
    """Those of them that are no replicas and may be asked to copy, the best first."""


class ProposalFault(Enum):
    FAILED = auto()
    """Nobody applied it, or nobody can say. Proposing again is safe."""
    STALE = auto()
    """The segment is sealed or gone, or, of a seal, a later recovery has begun."""
    REFUSED = auto()
    """A member named in it is not active; of a seal, the next leader may be one: the driver chooses again."""


class FenceFault(Enum):
    UNREACHABLE = auto()
    """No answer. It is asked again after a pause."""
    UNKNOWN = auto()
    """The disk is new, or there is no log of the segment on it: no answer, and no empty log (I2)."""
    STORAGE = auto()
    """Its disk failed, or its log is damaged before its tail (P3): no answer in this attempt."""
    SUPERSEDED = auto()
    """It has promised a recovery with a higher number (F1)."""


class CopyFault(Enum):
    TARGET = auto()
    """No answer, or its disk failed. It is asked again after a pause, if it is still needed."""
    SOURCE_UNREACHABLE = auto()
    """The target could not read from the source."""
    SOURCE_DAMAGED = auto()
    """What the source sends is not what it said it has: it counts for nothing in this attempt."""
    SUPERSEDED = auto()
    """Target or source has promised a recovery with a higher number (F1)."""


class Reason(Enum):
    """Why a recovery was given up."""

    SUPERSEDED = auto()
    """A later one has begun, or the segment is sealed: somebody else goes on."""
    NOT_OPEN = auto()
    """There is nothing to recover: the segment is sealed, or its topic is gone."""
    CANNOT_COORDINATE = auto()
    """This member has no whole log of its own, or left the cluster: another replica has to do it."""
    TOO_FEW = auto()
    """Too many replicas are gone or in doubt: nobody can say any more what was acknowledged, or hold it."""
    COMMITTED_MISSING = auto()
    """Records are known to be committed that none who answered has: a disk lost what it had synced."""
    DIVERGED = auto()
    """Two logs have the same records in a different number of bytes: they are not prefixes of one log."""


# Events.


@dataclass(frozen=True)
class Begin:
    """The leader is lost, or was restarted, or has no quorum: find out what is acknowledged, and seal."""


@dataclass(frozen=True)
class Begun:
    """`BeginRecovery` committed. Its index is the recovery's number."""

    recovery: int


@dataclass(frozen=True)
class BeginMissed:
    why: ProposalFault


@dataclass(frozen=True)
class Fenced:
    """A replica takes no more appends, durably, and says what it has."""

    member: int
    end_offset: int
    end_position: int
    in_doubt: bool
    """It cut a tail that may have been acknowledged (P3)."""
    commit_end: int
    """What it knows to be committed, which may be more than it has."""


@dataclass(frozen=True)
class FenceMissed:
    member: int
    why: FenceFault


@dataclass(frozen=True)
class PausePassed:
    """Try again what could not be had, with the members as they are now."""

    members: Members


@dataclass(frozen=True)
class Copied:
    """A member has the log up to `end_offset`, durably."""

    member: int
    end_offset: int
    end_position: int


@dataclass(frozen=True)
class CopyMissed:
    member: int
    source: int
    why: CopyFault


@dataclass(frozen=True)
class SealMissed:
    why: ProposalFault


@dataclass(frozen=True)
class SegmentSealed:
    """The metadata applied a seal of this segment: this recovery's, or somebody else's."""

    end_offset: int


@dataclass(frozen=True)
class Superseded:
    """The metadata applied a `BeginRecovery` of this segment with this number, proposed by this member."""

    recovery: int
    by: int


Event = (
    Begin
    | Begun
    | BeginMissed
    | Fenced
    | FenceMissed
    | PausePassed
    | Copied
    | CopyMissed
    | SealMissed
    | SegmentSealed
    | Superseded
)

# Effects.


@dataclass(frozen=True)
class ProposeBegin: ...


@dataclass(frozen=True)
class Fence:
    member: int
    recovery: int


@dataclass(frozen=True)
class Copy:
    """Let `target` bring its log up to `end_offset` from `source`. One at a time for each target."""

    target: int
    source: int
    end_offset: int
    recovery: int


@dataclass(frozen=True)
class ProposeSeal:
    recovery: int
    end_offset: int
    end_position: int
    holders: tuple[int, ...]
    """Who has all of it, durably: Q or more, the coordinator first."""
    replicas: tuple[int, ...]
    """The holders, then those of the old replicas that are still in the cluster and are completed later."""


@dataclass(frozen=True)
class Done:
    end_offset: int


@dataclass(frozen=True)
class GiveUp:
    """This attempt is over without a seal by it."""

    why: Reason
    message: str
    hint: str
    retry: bool
    """Whether another attempt of this member, after a pause, may find more."""


Effect = ProposeBegin | Fence | Copy | ProposeSeal | Done | GiveUp
