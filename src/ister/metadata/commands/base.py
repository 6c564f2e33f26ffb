"""What every command is, and what can come of one.

A command carries everything that its effect depends on: times, ids and choices are the proposer's, so that
applying is deterministic (R3). The index at which a command is applied is the uid of what it makes (I3).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Command(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Base. On disk and on the wire: a msgpack array that starts with the command's name."""


class TopicCommand(Command, frozen=True):
    """About a topic: stale if that is not there."""

    topic_uid: int


class Result(StrEnum):
    CREATED = "created"
    EXISTS = "exists"
    APPLIED = "applied"
    STALE = "stale"
    """The compare-and-set lost: somebody else's command came first."""
    REFUSED = "refused"
    """Well-formed and not allowed in this state; the detail says why."""


class Outcome(msgspec.Struct, frozen=True):
    """What applying a command came to."""

    result: Result
    index: int
    detail: str = ""
    topic_uid: int = 0

    @property
    def ok(self) -> bool:
        return self.result in (Result.CREATED, Result.EXISTS, Result.APPLIED)
