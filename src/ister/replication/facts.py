"""What is below its replica count, as one node sees it: plain data, for whoever shows it to people.

A copy counts if its member is in the cluster and answers now. What another node has that is not whole is not
known here; each says it of itself.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field

from ister.metadata.state import TopicState
from ister.metadata.store import MetadataStore
from ister.replication.completing import Completions


@dataclass(frozen=True)
class TopicCopies:
    """The replicas of a topic's segments, the open one too."""

    topic: str
    wanted: int
    """Copies of each segment: what the topic wants, or as many as there are nodes."""
    below: int
    """Segments that have fewer."""
    copies_missing: int
    """By how many, together."""
    missing: dict[int, int] = field(default_factory=dict)
    """Members that are to have copies, and are out of the cluster or do not answer: of how many segments."""
    incomplete_here: list[int] = field(default_factory=list)
    """Numbers of segments whose copy on this node is not whole."""
    damaged_here: dict[int, str] = field(default_factory=dict)
    """Those of them in which damage was found, and what."""

    @property
    def is_well(self) -> bool:
        return not (self.below or self.incomplete_here)


def copies_of(topic: TopicState, metadata: MetadataStore, completions: Completions) -> TopicCopies:
    """O(segments of the topic)."""
    state = metadata.state
    wanted = min(topic.settings.replicas, max(1, len(state.active_members)))
    below = copies_missing = 0
    missing: Tally[int] = Tally()
    incomplete: list[int] = []
    damaged: dict[int, str] = {}
    for segment in topic.segments:
        absent = [m for m in segment.replicas if not (state.is_active(m) and metadata.is_alive(m))]
        missing.update(absent)
        lacks = wanted - (len(segment.replicas) - len(absent))
        below += lacks > 0
        copies_missing += max(0, lacks)
        damage = completions.damage_of(segment.uid)
        if damage or completions.is_incomplete(segment.uid):
            incomplete.append(segment.segment)
        if damage:
            damaged[segment.segment] = damage
    return TopicCopies(topic.name, wanted, below, copies_missing, dict(missing), incomplete, damaged)
