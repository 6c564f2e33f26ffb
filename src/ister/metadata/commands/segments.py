"""Commands about a topic's segments: the handoff, a recovery, who has what was sealed."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import TopicCommand
from ister.wal.producers import ProducerRow


class OpenedSegment(TopicCommand, frozen=True):
    """The leader has made the segment's log. From now on a missing log is a loss, not a beginning (E6)."""

    segment: int
    member: int


class SealSegment(TopicCommand, frozen=True):
    """The handoff (H1): a compare-and-set on the topic's open segment."""

    segment: int
    end_offset: int
    end_position: int
    """How many bytes the sealed log has."""
    next_leader: int
    next_replicas: list[int]
    producers: list[ProducerRow]
    last_append_time_us: int
    sealed_by: int
    starts: int
    """Which start of `sealed_by` proposes this. A process that came back may append again to a segment that
    its predecessor was about to seal: what is left of that proposal on the wire must not apply then."""
    sealed_at_us: int
    move: int = 0
    """The id of the move that this seal is for; 0 if for none."""
    unopened: bool = False
    """Of a segment whose log could not be made, which ends where it begins: applies only while there is no
    log. The proposer may succeed in making it, and append, while this is still on its way."""
    recovery: int = 0
    """The number of the recovery that this ends; 0 of a leader's own seal. It must be the segment's last one,
    and `sealed_by` its coordinator: no leader that was declared lost may seal, and no older recovery."""
    replicas: list[int] = msgspec.field(default_factory=list)
    """Who has the sealed segment, substitutes among them (F2); empty leaves the list as it is. A leader's own
    seal changes nothing in it (F4)."""
    whole: int = 0
    """What seals said before there were names: so many of these, at least, have all of it."""
    forgets: bool = False
    """Producers that the log knew are not among `producers` (A5)."""
    holders: list[int] | None = None
    """Who has all of it, durably (C1). None of seals that did not say so."""


class BeginRecovery(TopicCommand, frozen=True):
    """A replica sets out to seal the open segment in its leader's place (F1). The index of this command is
    the recovery's number; a later one supersedes an earlier one."""

    segment: int
    by: int
    """The member that coordinates: one of the replicas, so that it has the log."""
    starts: int
    """Which start of `by` proposes this, as in a seal."""


class SetReplicas(TopicCommand, frozen=True):
    """Other replicas for a sealed segment, for repair and drain: a compare-and-set on the list (F4)."""

    segment: int
    expected: list[int]
    replicas: list[int]
    """Those that are new in it have said that they are whole."""
    confirmed: int = 0
    """What was said before there were names: so many in it have said so; 0 if only those that are new were
    asked. Together with new ones: these, and nothing is known of the others any more."""
    expected_whole: list[int] | None = None
    """Who is known to have all of it: the other half of what is compared (C3). Those that come have nothing,
    as far as this says. None of commands from before there were names."""
