"""10,000 topics with 100,000 segments: how long a snapshot, a restart and a status take, and the memory."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.metadata.cluster import NODES, Cluster
from bench.metadata.node import CLUSTER_ID, address_of, disk_id_of
from ister.bench.figures import Fields, rounded
from ister.bench.raw import now
from ister.io.disk import LocalDisk, write_whole
from ister.metadata.codec import decode_command, encode_command
from ister.metadata.commands import Command, CreateTopic, FoundCluster, SealSegment, UpsertNode
from ister.metadata.known import ADDRESSES
from ister.metadata.state import ClusterState
from ister.protocol.messages import TopicSettings
from ister.protocol.peer import member_of
from ister.raft.durable import DurableStorage
from ister.raft.messages import Membership, SnapshotMetadata
from ister.raft.storage import HardState

SNAPSHOT_EVERY: Final = 1000
REPEATS: Final = 5


def commands(ports: dict[int, int], topics: int, segments: int) -> list[Command]:
    """What makes such a state: every topic created, then sealed in turn until there are enough segments."""
    members = [member_of(number, disk_id_of(number)) for number in NODES]
    made: list[Command] = [FoundCluster(CLUSTER_ID)]
    for number in NODES:
        at = address_of(number, ports[number])
        made.append(
            UpsertNode(
                number,
                at.disk_id,
                1,
                at.peer_host,
                at.peer_port,
                at.client_host,
                at.client_port,
            )
        )
    first_uid = len(made) + 1
    for number in range(topics):
        leader = members[number % 3]
        made.append(CreateTopic(f"default/topic-{number:06d}", TopicSettings(), leader, members, 1))
    for number in range(segments - topics):
        place, segment = number % topics, number // topics + 1
        old, new = members[(place + segment - 1) % 3], members[(place + segment) % 3]
        made.append(
            SealSegment(
                topic_uid=first_uid + place,
                segment=segment,
                end_offset=segment * 1_000_000,
                end_position=segment * 100_000_000,
                next_leader=new,
                next_replicas=members,
                producers=[],
                last_append_time_us=1_800_000_000_000_000,
                sealed_by=old,
                starts=1,
                sealed_at_us=1_800_000_000_000_000,
            )
        )
    return made


def build(made: list[Command]) -> ClusterState:
    """Through the same bytes that a log would have."""
    state = ClusterState()
    for index, command in enumerate(made, 1):
        outcome = state.apply(index, decode_command(encode_command(command)))
        if not outcome.ok:
            raise RuntimeError(f"command {index} of the bench was {outcome.result}: {outcome.detail}")
    return state


def put(directory: Path, ports: dict[int, int], metadata: SnapshotMetadata, data: bytes) -> float:
    """A node's directory, as if it had come to this state by itself. Seconds of writing the snapshot."""
    disk = LocalDisk(directory, threads=1)
    storage = DurableStorage(disk)
    storage.load()
    storage.append(HardState(metadata.term, 0, metadata.index), [])
    storage.sync()
    began = now()
    storage.save_snapshot(metadata, data)
    seconds = now() - began
    storage.compact(metadata.index)
    storage.close()
    addresses = [address_of(number, port) for number, port in ports.items()]
    write_whole(disk, ADDRESSES, msgspec.msgpack.encode(addresses))
    disk.close()
    return seconds


def measure_scale(cluster: Cluster, topics: int, segments: int) -> Fields:
    ports = {member.node_id: member.port for member in cluster.members.values()}
    made = commands(ports, topics, segments)
    began = now()
    state = build(made)
    apply_seconds = now() - began
    began = now()
    data = state.to_bytes()
    encode_seconds = now() - began
    members = Membership(tuple(sorted(member_of(number, disk_id_of(number)) for number in NODES)))
    metadata = SnapshotMetadata(len(made), 1, members)
    written = [put(member.directory, ports, metadata, data) for member in cluster.members.values()]
    del state, made
    options = ("--snapshot-every", str(SNAPSHOT_EVERY), "--applied", str(metadata.index))
    for member in cluster.members.values():
        member.starts = 1
        member.start(*options)
    cluster.wait_whole()
    restarts = [restart(cluster, options) for _ in range(REPEATS)]
    statuses = [member.ask("status")["seconds"] for member in cluster.running for _ in range(REPEATS)]
    return {
        "topics": topics,
        "segments": segments,
        "commands_applied_per_s": rounded(metadata.index / apply_seconds),
        "snapshot_bytes": len(data),
        "encode_s": rounded(encode_seconds),
        "write_s": rounded(median(written)),
        "restart_s": rounded(median(restarts)),
        "restart_max_s": rounded(max(restarts)),
        "status_s": rounded(median(statuses)),
        **running_snapshots(cluster),
    }


def restart(cluster: Cluster, options: tuple[str, ...]) -> float:
    """Of one node, from the start of its process until it has applied what it had before."""
    member = cluster.followers()[0]
    member.kill()
    seconds = float(member.start(*options)["seconds"])
    cluster.wait_whole()
    return seconds


def running_snapshots(cluster: Cluster) -> Fields:
    """Snapshots that come by themselves, while proposals go on."""
    for member in cluster.running:
        member.ask("look", forget=True)
    count = REPEATS * SNAPSHOT_EVERY
    leader = cluster.leader()
    done = leader.ask("pipelined", count=count, outstanding=64, name="scale")
    cluster.wait_whole()
    views = [member.ask("look") for member in cluster.running]
    snapshots = [one for view in views for one in view["snapshots"]]
    return {
        "snapshots": len(snapshots),
        "snapshot_s": rounded(median(snapshots)),
        "snapshot_max_s": rounded(max(snapshots)),
        "longest_pause_s": rounded(max(view["longest_pause"] for view in views)),
        "proposals_per_s": rounded(count / done["total"]),
        "longest_proposal_s": rounded(max(done["seconds"])),
        "rss_mb": rounded(max(view["rss_bytes"] for view in views) / 1e6),
        "peak_rss_mb": rounded(max(view["peak_rss_bytes"] for view in views) / 1e6),
    }
