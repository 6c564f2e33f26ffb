"""Where segments go: which node leads a topic's first one, which the next, and who else has them.

Chosen by whoever proposes, among the nodes that are active and answer; applying checks only that they are
active (H1), so nothing here need be the same on every node.
"""

from __future__ import annotations

from collections.abc import Sequence

from ister.frame import crc32c


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
