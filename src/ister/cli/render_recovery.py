"""How `ister topic recover` looks: what a topic waits for, and what would be, or was, given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ister.cli.common import counted
from ister.cli.render import grouped, pairs
from ister.cli.terminal import Paint
from ister.protocol.recovery import LostRecords, ReplicaReach, TopicRecovery


class RecoveryView(NamedTuple):
    found: TopicRecovery

    @property
    def is_fine(self) -> bool:
        return self.found.state == "open"

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [recovery_object(self.found)]

    def to_text(self, paint: Paint) -> str:
        found = self.found
        colour = {"open": "green", "recovering": "yellow"}.get(found.state, "red")
        lines = [f"{paint('bold', found.topic)}: {paint(colour, found.state)}", *pairs(_facts(found), paint)]
        lines += _section("Gone with their disks", _shown(found.gone), paint)
        lines += _section("Recorded as lost before", _shown(found.lost), paint)
        lines += _section("Notes", found.notes, paint)
        lines += _section("What to do", found.choices, paint)
        return "\n".join(lines)


class LossView(NamedTuple):
    """A loss that was accepted, or would be."""

    found: TopicRecovery
    asked: TopicRecovery
    """What the operator was shown, and agreed to."""
    is_dry_run: bool = False

    def to_objects(self) -> Sequence[dict[str, Any]]:
        return [recovery_object(self.found)]

    def to_text(self, paint: Paint) -> str:
        found = self.found
        if self.is_dry_run:
            return f"would record as lost in {found.topic}: {loss_shown(found)}"
        goes_on = (
            f"The topic goes on from offset {grouped(found.lost_end)}; " if self.asked.gives_up_open else ""
        )
        return (
            f"recorded as lost in {found.topic}: {loss_shown(self.asked)}\n"
            f"{goes_on}readers of a lost offset are told so."
        )


def recovery_object(found: TopicRecovery) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "uid": found.uid,
        "state": found.state,
        "why": found.why,
        "segment": found.segment,
        "base_offset": found.base_offset,
        "leader": found.leader,
        "silent_ms": found.silent_ms,
        "recovery": found.recovery,
        "replicas": [
            {
                "node": one.node_id,
                "leader": one.is_leader,
                "state": one.state,
                "end_offset": one.end_offset if one.end_offset >= 0 else None,
                "detail": one.detail,
            }
            for one in found.replicas
        ],
        "known_end": found.known_end,
        "lost_from": found.lost_from,
        "lost_end": found.lost_end,
        "silent": found.silent,
        "refusal": found.refusal,
        "choices": found.choices,
        "lost": [
            {
                "from_offset": one.from_offset,
                "end_offset": one.end_offset,
                "segment": one.segment,
                "at_us": one.at_us,
            }
            for one in found.lost
        ],
        "gone": [{"from_offset": one.from_offset, "end_offset": one.end_offset} for one in found.gone],
        "notes": found.notes,
        "accepted": found.accepted,
    }


def loss_shown(found: TopicRecovery) -> str:
    """All that is given up: what is gone with its disks, and the open segment's rest if it is one of them."""
    shown = _shown(found.gone)
    if found.gives_up_open or not shown:
        shown.append(range_shown(found))
    return "; ".join(shown)


def _shown(ranges: Sequence[LostRecords]) -> list[str]:
    return [_lost(one.from_offset, one.end_offset) for one in sorted(ranges, key=lambda one: one.from_offset)]


def range_shown(found: TopicRecovery) -> str:
    """The range, which is longer than what is known of it: no offset that was given out comes again."""
    known = max(0, found.known_end - found.lost_from)
    had = f"{counted(known, 'record')} known to be in it" if known else "no record known to be in it"
    return f"{_lost(found.lost_from, found.lost_end)} ({had}; there may be more)"


def _lost(start: int, end: int) -> str:
    return f"offsets {grouped(start)} to {grouped(end - 1)}"


def _facts(found: TopicRecovery) -> list[tuple[str, str]]:
    silent = f", for {found.silent_ms / 1000:.0f} s at least" if found.silent_ms else ""
    facts = [("what", f"{found.why}{silent}")] if found.why else []
    facts.append(
        ("segment", f"{found.segment}, from offset {grouped(found.base_offset)}, led by node {found.leader}")
    )
    if found.state in ("open", "incomplete"):
        return facts
    facts += [("replica", _replica(one)) for one in found.replicas]
    if found.recovery:
        facts.append(("recovery", found.recovery))
    elif len(found.replicas) == 1:
        facts.append(("recovery", f"none: only node {found.leader} can say where the segment ends"))
    facts.append(("known end", f"{grouped(found.known_end)}, as far as the nodes that answer have seen"))
    if len(found.replicas) == 1 or any(one.end_offset >= 0 for one in found.replicas):
        facts.append(("reachable", f"up to offset {grouped(found.lost_from)}"))
    if found.refusal:
        facts.append(("would be lost", f"nothing can be given up: {found.refusal}"))
    else:
        facts.append(("would be lost", range_shown(found)))
    return facts


def _replica(one: ReplicaReach) -> str:
    said = {"silent": "does not answer", "gone": "gone", "failed": "answers, but has no log that it can read"}
    state = said.get(one.state, "answers")
    if one.end_offset >= 0:
        state = f"answers, its log ends at {grouped(one.end_offset)}"
    detail = f" ({one.detail})" if one.detail else ""
    return f"node {one.node_id}{' (leader)' if one.is_leader else ''}: {state}{detail}"


def _section(title: str, rows: Sequence[str], paint: Paint) -> list[str]:
    return ["", paint("bold", title), *(f"  {row}" for row in rows)] if rows else []
