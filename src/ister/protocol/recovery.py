"""The answers to `RecoverTopic`: how it stands with a topic's open segment, and what would be given up."""

from __future__ import annotations

import msgspec

from ister.protocol.messages import Message


class KnownOfTopic(Message, frozen=True):
    """What one node knows of a topic's open segment, whoever leads it."""

    node_id: int
    segment_uid: int
    """The one that is open as far as it knows."""
    end_offset: int
    """Records up to here were acknowledged or committed, as far as this node has seen."""
    hears_leader: bool
    recovery: str = ""
    """What its recovery of the segment waits for, if it coordinates one."""


class ReplicaReach(Message, frozen=True):
    """What can be had of one replica of an open segment."""

    node_id: int
    is_leader: bool
    state: str
    """`alive`; `silent`: it does not answer; `gone`: its disk left the cluster; `failed`: it answers,
    without its log."""
    end_offset: int = -1
    """Where its log ends, and can grow no more; -1 if that is not known."""
    detail: str = ""


class LostRecords(Message, frozen=True):
    """Offsets that were given up (F6)."""

    from_offset: int
    end_offset: int
    segment: int
    at_us: int


class TopicRecovery(Message, frozen=True):
    """How it stands with a topic's open segment, and what would be lost if it were given up now."""

    topic: str
    uid: int
    segment: int
    segment_uid: int
    base_offset: int
    leader: int
    leader_starts: int
    silent_ms: int
    """For how long the leader does not answer, at least; 0 if it does."""
    state: str
    """`open`: nothing is wrong. `recovering`: the cluster is about to go on by itself. `waits`: it cannot.
    `incomplete`: it can be written, and some sealed records are gone."""
    why: str
    """What is wrong; empty if nothing is."""
    recovery: str
    """What the segment's recovery waits for; empty if there is none."""
    replicas: list[ReplicaReach]
    known_end: int
    """Records up to here were acknowledged, as far as anybody who answers has seen: there may be more."""
    lost_from: int
    lost_end: int
    """The offsets that are, or would be, recorded as lost: from the first to before the second."""
    silent: list[int]
    """The nodes of which an operator has to state that they are stopped."""
    refusal: str
    """Why nothing can be given up now; empty if it can."""
    choices: list[str]
    lost: list[LostRecords]
    """What was given up of this topic before."""
    notes: list[str]
    """What nodes that came back have set aside."""
    accepted: bool = False
    """The loss is recorded: by this very request, or by an earlier one that was the same."""
    gone: list[LostRecords] = msgspec.field(default_factory=list)
    """Of sealed segments: offsets whose every copy was on a disk that left the cluster, and that nobody has
    given up yet."""
    gone_segments: list[int] = msgspec.field(default_factory=list)
    """Their uids."""
    gone_from: list[int] = msgspec.field(default_factory=list)
    """From which offset on each of them is gone: its base, or where the longest copy ends that is left."""

    @property
    def gives_up_open(self) -> bool:
        """Whether the open segment can be given up now."""
        return self.state == "waits" and not self.refusal
