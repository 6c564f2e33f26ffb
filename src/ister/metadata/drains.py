"""Nodes that are being drained: what the metadata keeps of that, and what such a node still has.

A drained node gets no new lead and no new replica (`placement.Seen.unwanted`); what it has goes elsewhere by
moves, rollovers and repairs. Here is only that it is drained, and the count of what is left. The paper on it
is docs/internals/moves.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ister.metadata.commands import ActivateNode, DrainNode, Outcome, Result
from ister.metadata.nodes import Nodes, is_active
from ister.metadata.topics import TopicState
from ister.protocol.peer import node_of


class DrainState(msgspec.Struct, array_like=True, frozen=True):
    """On disk, in snapshots. Grows at the end."""

    member: int
    since_us: int
    max_parallel: int
    """So many of its topics move at a time."""


class Held(NamedTuple):
    """What the metadata lists a member for."""

    leads: int
    follows: int
    """Open segments of other leaders."""
    copies: int
    """Of sealed segments."""
    copies_bytes: int

    @property
    def is_nothing(self) -> bool:
        return not (self.leads or self.follows or self.copies)


class Drains:
    def __init__(self, rows: Iterable[DrainState] = ()) -> None:
        self.rows = {row.member: row for row in rows}

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self.rows)

    def drain(self, index: int, topics: Iterable[TopicState], nodes: Nodes, command: DrainNode) -> Outcome:
        member = command.member
        if not is_active(nodes, member):
            return Outcome(
                Result.REFUSED, index, f"node {node_of(member)} is not in the cluster on that disk"
            )
        others = [node.member for node in nodes.values() if node.member != member and node.client_port > 0]
        if not any(other not in self.rows for other in others):
            return Outcome(Result.REFUSED, index, "no other node is left that what it has could go to")
        since_us = self.rows[member].since_us if member in self.rows else command.at_us
        self.rows[member] = DrainState(member, since_us, command.max_parallel)
        for topic in topics:
            if topic.home == member:
                topic.home = 0
        return Outcome(Result.APPLIED, index)

    def activate(self, index: int, command: ActivateNode) -> Outcome:
        if self.rows.pop(command.member, None) is None:
            return Outcome(Result.STALE, index, f"node {node_of(command.member)} is not drained")
        return Outcome(Result.APPLIED, index)

    def left(self, member: int) -> None:
        """That disk is not in the cluster any more."""
        self.rows.pop(member, None)


def held_by(member: int, topics: Iterable[TopicState]) -> Held:
    leads = follows = copies = copies_bytes = 0
    for topic in topics:
        for segment in topic.segments:
            if member not in segment.replicas:
                continue
            if segment.is_sealed:
                copies, copies_bytes = copies + 1, copies_bytes + segment.end_position
            elif segment.leader == member:
                leads += 1
            else:
                follows += 1
    return Held(leads, follows, copies, copies_bytes)
