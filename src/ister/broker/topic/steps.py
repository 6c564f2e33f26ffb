"""The steps of a handoff to another node, by name: where a test may let a node die (`Broker.failpoint`)."""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    BEGUN = "begun"
    """The old leader knows of a move, and is about to hand off for it."""
    DRAINED = "drained"
    """It has its true end, and is about to propose the seal."""
    SEALED = "sealed"
    """It knows that the seal was applied; what it held is not passed on yet."""
    ACCEPTED = "accepted"
    """The new leader has applied the seal, and has no log yet."""
    LOGGED = "logged"
    """It has made the log, and nobody knows."""
    OPENED = "opened"
    """The metadata knows; nothing was appended yet."""
