"""Pins: named places in a topic, of readers that come back to it, held for a while and renewed.

A pin tells people how far a reader is, and holds back what retention would drop under it: for no longer than
its time, and by no more than `broker.node.retention` says. A reader that crashed renews nothing, so that its
pin runs out by itself. No reader gets its offset from here: a pin is a notice, never a cursor.

Fault model: a command may be applied twice or late, and another node may have proposed a newer one since.
Each carries its proposer's time, and one that is older than what is there changes nothing. Whether a pin has
run out is a matter of whoever looks, by its own clock; applying reads none (R3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ister.metadata.commands import Outcome, PinRow, Result, SetPins
from ister.metadata.topics import PinState, TopicState

MAX_PINS: Final = 64
"""Of one topic. The first that ran out make room."""
MAX_NAME: Final = 200
"""Characters of a name, and of what it says about itself."""
FORGOTTEN_US: Final = 24 * 3600 * 1_000_000
"""So long a pin that ran out is still shown; then it goes."""


def set_pins(index: int, topics: Mapping[int, TopicState], command: SetPins) -> Outcome:
    """Each row stands for itself; the detail names those that were not applied."""
    refused = [why for row in command.rows if (why := _set(topics.get(row.topic_uid), row, command.at_us))]
    result = Result.REFUSED if refused and len(refused) == len(command.rows) else Result.APPLIED
    return Outcome(result, index, "; ".join(refused))


def _set(topic: TopicState | None, row: PinRow, at_us: int) -> str:
    """Why a row does not hold; empty if it does."""
    if topic is None:
        return f"there is no topic with uid {row.topic_uid}"
    known = next((pin for pin in topic.pins if pin.name == row.name), None)
    if known is not None and known.renewed_at_us > at_us:
        return f"the pin {row.name} of {topic.name} was renewed later"
    others = [pin for pin in topic.pins if pin is not known and at_us - pin.expires_at_us < FORGOTTEN_US]
    if row.ttl_us <= 0:
        topic.pins = others
        return ""
    if known is None and len(others) >= MAX_PINS:
        oldest = min(others, key=lambda pin: (pin.expires_at_us, pin.name))
        if oldest.is_live(at_us):
            return f"{topic.name} has {MAX_PINS} pins, all of them live"
        others.remove(oldest)
    renewed = PinState(row.name, row.offset, at_us, at_us + row.ttl_us, row.about)
    if known is not None:
        renewed.before_offset, renewed.before_us = known.offset, known.renewed_at_us
        if known.renewed_at_us == at_us:  # applied again
            renewed.before_offset, renewed.before_us = known.before_offset, known.before_us
    topic.pins = [*others, renewed]
    return ""


def is_valid(name: str, about: str) -> bool:
    """Whether the two may be kept."""
    return 0 < len(name) <= MAX_NAME and len(about) <= MAX_NAME and name.isprintable() and about.isprintable()
