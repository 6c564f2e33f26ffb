"""What an operator gives up (F6)."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import TopicCommand
from ister.wal.producers import ProducerRow


class AcceptLoss(TopicCommand, frozen=True):
    """An operator gives up what nobody can reach of an open segment, so that the topic goes on (F6)."""

    segment: int
    end_offset: int
    """Where the next segment begins: past every offset that may have been acknowledged."""
    next_leader: int
    next_replicas: list[int]
    lost_from: int
    """The offsets from here to `end_offset` are lost; what lies before them can still be read."""
    at_us: int
    by: int
    """The member that was asked to."""
    node_stopped: bool
    """The operator states that the leader's node is stopped, and stays so until it has learnt of this."""
    leader_starts: int = 0
    """The leader's start that the operator was told of: a leader that came back since has what was to be
    given up, and a command that was long on its way must not take it. 0: not looked at."""
    end_position: int = 0
    """How many bytes lie before `lost_from`."""
    last_append_time_us: int = 0
    """Of the last record before `lost_from`; 0 if there is none."""
    producers: list[ProducerRow] = msgspec.field(default_factory=list)
    """What the log before `lost_from` says of them: what is repeated from there is still recognised (A5)."""
    records_limit: int = 0
    """The segment's, by which `end_offset` was chosen: one that was raised since would let its leader go on
    past that. 0: not looked at."""
    recovery: int = 0
    """The segment's last one: to it the replicas have said what can be reached. One that began since may have
    heard more."""
    whole: int = 0
    """As in a seal, of what lies before `lost_from`."""
    forgets: bool = False
    """As in a seal."""
    holders: list[int] | None = None
    """The same by name."""


class KeptPart(msgspec.Struct, array_like=True, frozen=True):
    """What disks that are in the cluster have of a sealed segment whose whole copies left with others."""

    segment: int
    """Its uid."""
    end_offset: int
    """Of the longest copy, which is durable up to here; the rest is given up."""
    end_position: int
    last_append_time_us: int
    """Of the last record before `end_offset`."""
    asked: list[int]
    """Who has said how far its copy goes: the members of the segment's list that are in the cluster, all of
    them, in the list's order. One that is not among them may have more."""
    holders: list[int] | None = None
    """Those of them whose copies go that far. None of commands from before there were names."""


class AcceptGone(TopicCommand, frozen=True):
    """An operator gives up what no disk that is in the cluster has of sealed segments (F6)."""

    segments: list[int]
    """Their uids."""
    at_us: int
    by: int
    """The member that was asked to."""
    kept: list[KeptPart] = msgspec.field(default_factory=list)
    """Of those that disks in the cluster have a part of; of the others everything is given up."""
    whole: int = 0
    """As in a seal, of each kept part."""
