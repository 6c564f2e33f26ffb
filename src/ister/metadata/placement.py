"""Where segments go: which node leads a topic's first one, which the next, and who else has them.

Chosen by whoever proposes, among the nodes as it sees them; applying checks only that they are active (H1),
so nothing here need be the same on every node. Every handoff asks here, whatever it is for: `place`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ister.frame import crc32c
from ister.quorum import acknowledging


class Why(StrEnum):
    """Why a segment ends. For people, and for who comes next: what is safe is the same for all (D14)."""

    FULL = "full"
    OLD = "old"
    SETTINGS = "settings"
    MOVE = "move"
    """Somebody wants another leader; one that was cancelled meanwhile leaves it where it is (E7)."""
    CLOCK = "clock"
    REPLICAS = "replicas"
    """Too few of its replicas answer, or the topic wants more than it has."""
    DAMAGE = "damage"
    STORAGE = "storage"
    """This node cannot go on with it."""
    STOPPING = "stopping"
    LOST = "lost"
    """Its leader was lost: others end it."""


@dataclass(frozen=True)
class Seen:
    """The nodes as whoever chooses sees them. Members; each is in the cluster and has said where it is."""

    active: Sequence[int]
    """In the order of their numbers."""
    alive: Collection[int]
    """Those that answer."""
    wrong_clocks: Collection[int] = ()
    """Those whose clocks are far from most others' (A6)."""
    refusing: Collection[int] = ()
    """Those whose disks do not take what they are sent."""
    unwanted: Collection[int] = ()
    """Those that are to have nothing new: about to stop, or drained."""

    @property
    def serving(self) -> list[int]:
        """Those that answer and are wanted; those that answer, if nobody else does."""
        alive = [member for member in self.active if member in self.alive]
        return [member for member in alive if member not in self.unwanted] or alive

    @property
    def able(self) -> list[int]:
        """Those of them that may lead: with the right time, if anybody has it."""
        return self.right_of(self.serving) or self.serving

    def right_of(self, members: Sequence[int]) -> list[int]:
        return [member for member in members if member not in self.wrong_clocks]


@dataclass(frozen=True)
class Wish:
    """What a handoff is for."""

    topic: str
    replicas: int
    """On how many nodes the topic wants a segment."""
    leader: int
    """Of the segment that ends."""
    by: int
    """Who chooses: who leads if there is nobody else."""
    why: Why = Why.FULL
    target: int = 0
    """Who is to lead: a move's target, or where the topic was moved to. 0: whose turn it is."""


class Place(NamedTuple):
    leader: int
    replicas: list[int]


def place(wish: Wish, seen: Seen) -> Place:
    """Where the next segment goes."""
    leader = choose_leader(wish, seen)
    return Place(leader, replicas_of(leader, wish.replicas, wish.topic, seen))


def choose_leader(wish: Wish, seen: Seen) -> int:
    """The target, if it can; else round-robin over those that can. What its node cannot go on with goes to a
    node with a wrong clock rather than stay."""
    must_leave = wish.why in (Why.STORAGE, Why.LOST)
    if wish.why is Why.LOST:
        # Away from a leader that was lost, whatever this node thinks of it: it may come and go.
        others = [member for member in seen.able if member != wish.leader]
        if wish.target in others:
            return wish.target
        return next_leader(wish.leader, others or [wish.by])
    if wish.target and not (must_leave and wish.target == wish.leader) and can_be_led_by(wish.target, seen):
        return wish.target
    able = [member for member in seen.serving if not must_leave or member != wish.leader]
    able = [member for member in able if member not in seen.refusing] or able
    return next_leader(wish.leader, seen.right_of(able) or able or [wish.by])


def can_be_led_by(member: int, seen: Seen) -> bool:
    return member in seen.able and member not in seen.refusing


def replicas_of(leader: int, count: int, topic: str, seen: Seen) -> list[int]:
    """Of the nodes that answer, and rather of those whose disks take what they are sent; but at least most of
    those that there should be. Who seems silent for a moment would else leave a segment on one disk, and that
    disk's loss would cost acknowledged records."""
    able = sorted({leader, *seen.able})
    willing = [member for member in able if member not in seen.refusing]
    chosen = choose_replicas(leader, willing if len(willing) >= count else able, count, topic)
    others = [member for member in seen.active if member not in chosen]
    least = acknowledging(min(count, len(chosen) + len(others)))
    others.sort(key=lambda member: (member in seen.unwanted, member not in seen.alive))
    return chosen + others[: max(0, least - len(chosen))]


def first_leader(topic: str, members: Sequence[int]) -> int:
    """Consistent hashing: each topic has its own order of the nodes, and a node that comes or goes moves only
    what it gains or leaves behind."""
    return max(members, key=lambda member: (_weight(topic, member), member))


def _weight(topic: str, member: int) -> int:
    # A CRC is linear: names that differ little have weights that differ little, so it is scrambled.
    mixed = crc32c(f"{topic}\0{member}".encode()) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF


def next_leader(current: int, members: Sequence[int]) -> int:
    """Round-robin in the order of the nodes' numbers; `members` are sorted."""
    return next((member for member in members if member > current), members[0])


def choose_replicas(leader: int, members: Sequence[int], count: int, topic: str) -> list[int]:
    """The leader, then others of `members`, which are those that can serve; `count` in all, or fewer.

    In the order of their numbers from the leader on, beginning at a place that is the topic's own. So a topic
    whose leader goes round burdens all nodes alike, and so do the topics that one node leads: when it is
    lost, what it had is copied from all of them to all of them.
    """
    others = sorted({member for member in members if member != leader})
    if not others or count <= 1:
        return [leader]
    after_leader = sum(member < leader for member in others)
    first = after_leader + _weight(topic, 0) % len(others)
    return [leader, *(others[(first + step) % len(others)] for step in range(min(count - 1, len(others))))]
