"""Commands about moves of topics (`metadata.moves`)."""

from __future__ import annotations

from ister.metadata.commands.base import Command, TopicCommand


class RequestMove(TopicCommand, frozen=True):
    """A topic is to be led by another node (`metadata.moves`). The index of this command is the move's id."""

    target: int
    reason: int
    """A `MoveReason`."""
    stays: bool
    """Whether the target becomes the topic's home: it stays there across rollovers."""
    at_us: int
    by: int
    """The member that was asked to, in which of its starts, and its how manieth: by these a repeat of the
    command is known."""
    starts: int
    number: int
    has_history: bool = False
    """Whether the cluster has a store: then the old node's copies are released to it before the move is
    over."""


class CancelMove(Command, frozen=True):
    """From here on its seal is refused (E7); after the seal the topic stays where it is by then."""

    move: int


class EndMove(Command, frozen=True):
    """The old node has removed its files of what was released, or will when it is back."""

    move: int
    detail: str = ""


class FailMove(Command, frozen=True):
    """The topic's leader cannot hand it to the target."""

    move: int
    why: str


class ReleaseTopic(TopicCommand, frozen=True):
    """The topic has no home any more: it goes round with its rollovers."""
