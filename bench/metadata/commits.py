"""How long a proposal takes until it is committed and applied where it was made, alone and among many."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.metadata.cluster import Cluster, Member
from ister.bench.figures import Fields, milliseconds, rounded
from ister.bench.raw import raw_file, time_writes

RAW_BYTES: Final = 200
"""About what one lone proposal writes: a frame with one entry and a hard state."""
ROUNDS: Final = 10
OUTSTANDING: Final = 256


def measure_lone(cluster: Cluster, directory: Path, count: int) -> dict[str, Fields]:
    """At the leader, at a follower, and a bare write and sync, in turn: all share what the machine does."""
    leader, follower = cluster.leader(), cluster.followers()[0]
    at_leader: list[float] = []
    at_follower: list[float] = []
    raw: list[float] = []
    part = max(count // ROUNDS, 1)
    with raw_file(directory) as file:
        for turn in range(ROUNDS):
            at_leader += leader.ask("lone", count=part, name=f"lone-{turn}")["seconds"]
            at_follower += follower.ask("lone", count=part, name=f"lone-f-{turn}")["seconds"]
            raw += time_writes(file, part * RAW_BYTES, RAW_BYTES, position=turn * part * RAW_BYTES)
    return {
        "lone_at_leader": against(raw, at_leader),
        "lone_at_follower": against(raw, at_follower),
        "raw": {"count": len(raw), **milliseconds(raw)},
    }


def against(raw: list[float], seconds: list[float]) -> Fields:
    fields = milliseconds(seconds)
    ratio = float(fields["p50_ms"]) / float(milliseconds(raw)["p50_ms"])
    return {"count": len(seconds), **fields, "p50_ratio_to_raw": rounded(ratio)}


def measure_pipelined(cluster: Cluster, count: int, repeats: int) -> dict[str, Fields]:
    leader, follower = cluster.leader(), cluster.followers()[0]
    return {
        "pipelined_at_leader": pipelined(leader, count, repeats),
        "pipelined_at_follower": pipelined(follower, count, repeats),
    }


def pipelined(member: Member, count: int, repeats: int) -> Fields:
    """The median repetition's rate; latencies of all."""
    rates: list[float] = []
    latencies: list[float] = []
    for turn in range(repeats):
        name = f"many-{member.node_id}-{turn}"
        done = member.ask("pipelined", count=count, outstanding=OUTSTANDING, name=name)
        rates.append(count / done["total"])
        latencies += done["seconds"]
    return {
        "outstanding": OUTSTANDING,
        "count": count,
        "repeats": repeats,
        "proposals_per_s": rounded(sorted(rates)[len(rates) // 2]),
        "least_proposals_per_s": rounded(min(rates)),
        **milliseconds(latencies),
    }
