"""The life of open segments at the node that leads them: a machine without I/O, from opening to sealed.

One after the other comes by: its log is opened, it takes appends, it is ended, the chain has it as sealed,
the next one is opened if that is this node's too. How it ends is for the handoff machine to say (`handoff`),
for as long as the stage is `ENDING`; whoever is asked about the open segment looks here first.
"""

from __future__ import annotations

from enum import Enum, auto

from ister.errors import InvariantBroken


class Stage(Enum):
    CLOSED = auto()
    """Nothing is open here: another node leads, nobody has asked yet, or its log could not be opened."""
    OPENING = auto()
    """Its log is being made or read."""
    OPEN = auto()
    """It takes appends, until its disk fails."""
    REOPENING = auto()
    """Its disk was full, or its lease went: the log is cut back to its good end, and opened again."""
    BROKEN = auto()
    """That was tried and failed; it is tried again when somebody asks."""
    ENDING = auto()
    """It takes nothing more, and goes on to be sealed: drained, proposed, or left to a recovery."""
    HALTED = auto()
    """The chain contradicts what this node knows: nothing goes on before somebody has looked."""
    OVER = auto()
    """The topic was deleted, or the broker stops."""


class Event(Enum):
    WANTED = auto()
    """Somebody needs it open, and it is this node's."""
    OPENED = auto()
    NOT_OPENED = auto()
    """It failed, or the segment is not this node's to open any more."""
    END = auto()
    """There is something to do for its end: the handoff machine said what."""
    SEALED = auto()
    """The chain has it as sealed, and this node has let go of it."""
    CONTRADICTED = auto()
    """The chain says of it what cannot be: that it ends below what was acknowledged (F3)."""
    STOP = auto()


_NEXT: dict[tuple[Stage, Event], Stage] = {
    (Stage.CLOSED, Event.WANTED): Stage.OPENING,
    (Stage.OPENING, Event.OPENED): Stage.OPEN,
    (Stage.OPENING, Event.NOT_OPENED): Stage.CLOSED,
    (Stage.OPEN, Event.WANTED): Stage.REOPENING,
    (Stage.REOPENING, Event.OPENED): Stage.OPEN,
    (Stage.REOPENING, Event.NOT_OPENED): Stage.BROKEN,
    (Stage.BROKEN, Event.WANTED): Stage.REOPENING,
    (Stage.OPEN, Event.END): Stage.ENDING,
    (Stage.REOPENING, Event.END): Stage.ENDING,
    (Stage.BROKEN, Event.END): Stage.ENDING,
    (Stage.ENDING, Event.END): Stage.ENDING,  # a recovery began while it drained
    (Stage.ENDING, Event.NOT_OPENED): Stage.ENDING,  # the opening that was under way comes to nothing
    (Stage.ENDING, Event.SEALED): Stage.CLOSED,
    (Stage.ENDING, Event.CONTRADICTED): Stage.HALTED,
    (Stage.HALTED, Event.NOT_OPENED): Stage.HALTED,
    **{(stage, Event.STOP): Stage.OVER for stage in Stage},
    **{(Stage.OVER, event): Stage.OVER for event in Event},
}
HAS_SEGMENT = frozenset({Stage.OPEN, Stage.REOPENING, Stage.BROKEN, Stage.ENDING, Stage.HALTED})


class Life:
    def __init__(self) -> None:
        self.stage = Stage.CLOSED

    def step(self, event: Event) -> None:
        after = _NEXT.get((self.stage, event))
        if after is None:
            raise InvariantBroken(f"an open segment was told {event.name} while it was {self.stage.name}")
        self.stage = after
