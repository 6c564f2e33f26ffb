"""How many replicas it takes. Safety rests on these two numbers meeting in one replica at least.

Of R replicas a majority Q has synced whatever was acknowledged. Whoever hears R - Q + 1 of them hears one
that has it, whichever Q they were (F2).
"""

from __future__ import annotations


def acknowledging(replicas: int) -> int:
    """Q: so many have to have a record before it is acknowledged."""
    return replicas // 2 + 1


def revealing(replicas: int) -> int:
    """R - Q + 1: among any so many is one that has every acknowledged record."""
    return replicas - acknowledging(replicas) + 1
