"""Where a test may let a node die: the steps of a handoff, of an export and of a release, by name.

In simulation a test sets `Broker.failpoint`. A real process stops itself (SIGSTOP) where `_ISTER_HALT` names
a directory with a file `node-<id>` that has a step's name in it: it removes the file, and stands still there,
with all of its threads, until it is killed or told to go on. Nobody but tests sets that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

VARIABLE: Final = "_ISTER_HALT"


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
    EXPORTING = "exporting"
    """Who exports a segment is about to upload it."""
    UPLOADED = "uploaded"
    """The object is there, was read back, and nobody knows."""
    PUBLISHED = "published"
    """The metadata has its descriptor."""
    RELEASING = "releasing"
    """Who leads the topic has read an object once more, and is about to release the copies."""
    RELEASED = "released"
    """The metadata lists no node for it; the files are there."""
    EMPTIED = "emptied"
    """The old leader of a topic that was moved has no files of it any more, and is about to say so."""


def nowhere(step: Step) -> None:
    """Nobody tests anything."""


def halt_of(environ: Mapping[str, str], node_id: int) -> Callable[[Step], None]:
    directory = environ.get(VARIABLE)
    if not directory:
        return nowhere
    wanted = Path(directory) / f"node-{node_id}"

    def halt(step: Step) -> None:
        try:
            if wanted.read_text() != step:
                return
            wanted.unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGSTOP)

    return halt
