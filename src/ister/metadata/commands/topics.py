"""Commands about a topic as a whole."""

from __future__ import annotations

from ister.metadata.commands.base import Command, TopicCommand
from ister.protocol.messages import TopicSettings


class CreateTopic(Command, frozen=True):
    """Create if absent; the existing topic is the answer otherwise (I3)."""

    name: str
    settings: TopicSettings
    leader: int
    """A member: a node with its disk (I2)."""
    replicas: list[int]
    created_at_us: int


class AlterTopic(TopicCommand, frozen=True):
    """Only what changes: the proposer may not have heard of the last change of the others."""

    changes: dict[str, int | str]


class DeleteTopic(TopicCommand, frozen=True):
    """With all that it has."""


class TrimTopic(TopicCommand, frozen=True):
    """Records below `start_offset` are no longer there for anybody; it is a segment's base (E4)."""

    start_offset: int
