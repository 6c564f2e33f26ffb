"""Commands about readers: the cursors of GET, and pins."""

from __future__ import annotations

import msgspec

from ister.metadata.commands.base import Command, TopicCommand


class ClaimCursor(TopicCommand, frozen=True):
    """A member takes over a topic's shared GET cursor: a compare-and-set on its epoch (S1, S5)."""

    owner: int
    epoch: int
    """One more than the epoch that it is taken from."""


class FlushCursors(Command, frozen=True):
    """How far GET has come in the topics that one member owns; one command for all of them (S2).

    Each row stands for itself: it applies if the owner and its epoch are the current ones, and never takes a
    cursor back.
    """

    owner: int
    rows: list[tuple[int, int, int]]
    """Topic uid, epoch, the next offset (S4)."""


class PinRow(msgspec.Struct, array_like=True, frozen=True):
    topic_uid: int
    name: str
    offset: int
    """The next one that the reader needs."""
    ttl_us: int
    """How long it holds from `SetPins.at_us` on; 0 lets go of it."""
    about: str = ""


class SetPins(Command, frozen=True):
    """Readers renew their pins, or let go of them: those that one node heard of, in one command."""

    at_us: int
    """The proposer's time. What is older than what a pin has changes nothing of it."""
    rows: list[PinRow]
