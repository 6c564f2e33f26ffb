"""What a broker can be told of its part in a cluster: peers, the metadata's consensus, replicas and repair.

Part of the broker's configuration (`ister.config`), which reads and checks it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ister.addresses import parse_addresses
from ister.errors import ConfigError
from ister.settings import KIB, MIB, TIB, Kind, Spec, count, duration, size, text

HOUR_MS: Final = 3_600_000
MAX_PORT: Final = 65_535


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Not made by itself: `BrokerConfig` has these fields, and calls the check."""

    peer_host: Annotated[str, text("The address to listen on for other brokers.")] = "127.0.0.1"
    peer_port: Annotated[
        int,
        count(
            "The port to listen on for other brokers; 0 takes any free one, -1 is none: a broker alone.",
            -1,
            MAX_PORT,
        ),
    ] = -1
    peer_advertise_host: Annotated[
        str,
        text("The host that other brokers are told to connect to; empty is peer_host.", may_be_empty=True),
    ] = ""
    peer_advertise_port: Annotated[
        int,
        count("The port that other brokers are told to connect to; 0 is the one listened on.", 0, MAX_PORT),
    ] = 0
    bootstrap_cluster: Annotated[
        bool, Spec(Kind.SWITCH, "Make a new cluster of this broker, if its directory is empty.")
    ] = False
    join: Annotated[
        str,
        text(
            "Peer addresses (host:port, with commas) of a cluster to join, if the directory is empty.",
            may_be_empty=True,
        ),
    ] = ""
    replace_disk: Annotated[
        bool,
        Spec(Kind.SWITCH, "Join even if only this node's old disk has some records: it is gone for good."),
    ] = False
    join_timeout_ms: Annotated[int, duration("How long to try to join before giving up.", 10, HOUR_MS)] = (
        10_000
    )
    heartbeat_ms: Annotated[
        int, duration("How often the metadata leader is heard by the others.", 10, 60_000)
    ] = 100
    election_min_ms: Annotated[
        int, duration("The shortest silence of the metadata leader that leads to an election.", 50, 600_000)
    ] = 500
    election_max_ms: Annotated[
        int, duration("The longest silence; each node draws its own between the two.", 50, 600_000)
    ] = 1000
    snapshot_entries: Annotated[
        int, count("Metadata is written as a snapshot after this many commands.", 10, 10_000_000)
    ] = 10_000
    max_clock_skew_ms: Annotated[
        int,
        duration(
            "How far this broker's clock may be from most others'; beyond it, it neither leads nor drops.",
            100,
            24 * HOUR_MS,
        ),
    ] = 60_000
    failover_after_ms: Annotated[
        int,
        duration(
            "How long a segment's leader may be silent before another replica takes the topic on. Of one "
            "that hangs, and whose connections do not break, the silence is noticed 1.5 to 2 s late.",
            50,
            HOUR_MS,
        ),
    ] = 1000
    quorum_timeout_ms: Annotated[
        int,
        duration(
            "How long a leader waits for most of a segment's replicas before it gives the segment up.",
            50,
            HOUR_MS,
        ),
    ] = 10_000
    replica_lost_ms: Annotated[
        int,
        duration(
            "How long one of an open segment's replicas may be away before the topic goes on without it.",
            50,
            HOUR_MS,
        ),
    ] = 10_000
    repair_after_ms: Annotated[
        int,
        duration(
            "How long a node may be away before its copies of sealed segments are made anew on others.",
            50,
            24 * HOUR_MS,
        ),
    ] = 60_000
    repair_bytes_per_second: Annotated[
        int,
        size("How fast this broker copies sealed segments that have too few replicas.", 64 * KIB, TIB),
    ] = 32 * MIB
    scrub_bytes_per_second: Annotated[
        int,
        size("How fast this broker reads what it has, to find rotten records; 0 does not look.", 0, TIB),
    ] = 8 * MIB

    balance: Annotated[
        str,
        Spec(
            Kind.CHOICE,
            "Whether topics move by themselves so that nodes carry alike: `fair` counts topics, `weighted` "
            "bytes in and out, `balanced` topics, CPU and memory.",
            choices=("off", "fair", "balanced", "weighted"),
        ),
    ] = "off"
    balance_threshold_percent: Annotated[
        int,
        count(
            "Topics are moved while the nodes' burdens vary by more than this, in percent of their mean.",
            1,
            1000,
        ),
    ] = 30
    balance_cooldown_ms: Annotated[
        int, duration("The pause between two rounds of such moves.", 0, 24 * HOUR_MS)
    ] = 60_000
    balance_moves_per_hour: Annotated[
        int, count("So many topics are moved in an hour at most.", 1, 10_000)
    ] = 10
    balance_min_topic_age_ms: Annotated[
        int,
        duration("A topic that is younger, or was moved so lately, stays where it is.", 0, 24 * HOUR_MS),
    ] = 300_000
    balance_exclude: Annotated[
        str,
        text(
            "Topics that are not moved by themselves: full names, with commas, `*` for any part.",
            may_be_empty=True,
        ),
    ] = ""

    def check_cluster(self) -> None:
        """What no single field shows: values that contradict each other."""
        try:
            parse_addresses(self.join)
        except ConfigError as error:
            raise ConfigError(f"join = {self.join!r}: {error.message}", hint=error.hint) from error
        if self.bootstrap_cluster and self.join:
            raise ConfigError(
                f"bootstrap_cluster and join = {self.join!r} are both given: a broker makes a new cluster "
                "or joins one",
                hint="Give --bootstrap-cluster to the first broker only, and --join to the others.",
            )
        if (self.bootstrap_cluster or self.join) and self.peer_port < 0:
            given = "bootstrap_cluster" if self.bootstrap_cluster else f"join = {self.join!r}"
            raise ConfigError(
                f"{given} needs a port for other brokers, and peer_port is {self.peer_port}",
                hint="Give --peer-port, for example --peer-port 6001.",
            )
        if self.election_min_ms >= self.election_max_ms:
            raise ConfigError(
                f"election_min_ms = {self.election_min_ms} is not below "
                f"election_max_ms = {self.election_max_ms}",
                hint="Leave room between the two, so that nodes do not all stand for election at one moment.",
            )
        if 2 * self.heartbeat_ms > self.election_min_ms:
            raise ConfigError(
                f"heartbeat_ms = {self.heartbeat_ms} is more than half of "
                f"election_min_ms = {self.election_min_ms}",
                hint="A lost heartbeat must not lead to an election: lower heartbeat_ms or raise "
                "election_min_ms.",
            )
