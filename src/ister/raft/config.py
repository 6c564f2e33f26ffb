"""The settings of one Raft node: time in ticks, everything that could grow with a bound."""

from __future__ import annotations

from dataclasses import dataclass

from ister.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Validated when made. The defaults are R4's, for a driver that ticks every 50 ms."""

    node_id: int
    """This node, from 1. Stands for a node id and a disk id: a wiped node gets another one (I2)."""
    heartbeat_ticks: int = 2
    """100 ms."""
    election_ticks_min: int = 10
    """500 ms. Also how long a follower counts its leader as alive, how long a leader may go without hearing
    from a quorum, and how long a leadership transfer may take."""
    election_ticks_max: int = 20
    """1,000 ms. Each wait is drawn anew between the two, so that two candidates seldom collide twice."""
    max_append_bytes: int = 256 * 1024
    """In one append message, and handed out for applying at once; at least one entry, however large."""
    max_inflight_messages: int = 64
    """Appends on their way to one peer before the leader waits for its answers."""
    max_inflight_bytes: int = 4 * 1024 * 1024
    max_uncommitted_bytes: int = 16 * 1024 * 1024
    """Proposals are refused past this: a leader without a quorum must not grow for ever."""
    max_pending_reads: int = 10_000
    snapshot_chunk_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"raft: {name} is {getattr(self, name)}, and must be at least 1")
        if not self.heartbeat_ticks < self.election_ticks_min < self.election_ticks_max:
            raise ConfigError(
                f"raft: heartbeat_ticks < election_ticks_min < election_ticks_max does not hold for "
                f"{self.heartbeat_ticks}, {self.election_ticks_min}, {self.election_ticks_max}"
            )
