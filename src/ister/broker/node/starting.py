"""How a broker comes to its cluster: it founds one, is let into one, or comes back to its own.

What an empty directory means is said by whoever starts the broker, never guessed (I1): a broker without a
peer port is a cluster of its own; `bootstrap_cluster` founds one that others may join; `join` asks to be let
in; with none of these a broker waits until somebody adds it. A directory that has a cluster goes back to it,
whatever else is said.

Fault model: the process may stop at any line. Nothing of a cluster is written before a member has said yes,
and a directory that says "founder" or "member" without having its Raft state yet goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from random import Random

import msgspec

from ister.addresses import parse_addresses
from ister.broker.node.data_directory import DirectoryIdentity, save_identity
from ister.config import BrokerConfig
from ister.errors import DataDirectoryError, IsterError, JoinFailed
from ister.io.clock import Clock
from ister.io.disk import Disk
from ister.io.network import Network
from ister.metadata.codec import CommandSet
from ister.metadata.replicated import Check, ReplicatedMetadata
from ister.protocol.peer import JoinAnswer, NodeAddress, node_of
from ister.raft import RaftConfig

log = logging.getLogger("ister.broker")

_TICKS_PER_HEARTBEAT = 2
ALONE_SECONDS = 5.0
"""After so long a node that was started, and that no majority has heard of, says so."""


def make_metadata(
    config: BrokerConfig,
    identity: DirectoryIdentity,
    disk: Disk,
    clock: Clock,
    network: Network,
    *,
    on_fatal: Callable[[IsterError], None],
    on_restored: Callable[[], None],
    commands: CommandSet,
) -> ReplicatedMetadata:
    myself = NodeAddress(config.node_id, identity.disk_id, "", 0, "", 0)
    tick_seconds = config.heartbeat_ms / 1000 / _TICKS_PER_HEARTBEAT
    least = math.ceil(config.election_min_ms / 1000 / tick_seconds)
    raft = RaftConfig(
        node_id=myself.member,
        heartbeat_ticks=_TICKS_PER_HEARTBEAT,
        election_ticks_min=max(least, _TICKS_PER_HEARTBEAT + 1),
        election_ticks_max=max(math.ceil(config.election_max_ms / 1000 / tick_seconds), least + 1),
    )
    return ReplicatedMetadata(
        disk,
        network,
        Random(clock.token()),
        myself=myself,
        starts=identity.starts,
        cluster_id=identity.cluster_id,
        on_fatal=on_fatal,
        on_restored=on_restored,
        now_us=clock.now_us,
        raft_config=raft,
        tick_seconds=tick_seconds,
        snapshot_every=config.snapshot_entries,
        commands=commands,
    )


async def enter_cluster(
    config: BrokerConfig,
    identity: DirectoryIdentity,
    disk: Disk,
    clock: Clock,
    metadata: ReplicatedMetadata,
    check: Check,
) -> DirectoryIdentity:
    """Take part in the cluster that the directory is of; find one first if it is of none.

    `check` sees what the metadata's log was when this node stopped."""

    async def save(changed: DirectoryIdentity) -> DirectoryIdentity:
        await disk.run(lambda: save_identity(disk, changed))
        return changed

    if config.peer_port >= 0:
        await metadata.listen(
            config.peer_host,
            config.peer_port,
            advertise_host=config.peer_advertise_host,
            advertise_port=config.peer_advertise_port,
        )
    known: list[NodeAddress] | None = None
    if not identity.cluster_id and (config.peer_port < 0 or config.bootstrap_cluster):
        cluster_id = f"{clock.token():016x}"
        identity = await save(msgspec.structs.replace(identity, cluster_id=cluster_id, is_founder=True))
    elif not identity.cluster_id or (not identity.has_raft and not identity.is_founder):
        answer = await _be_let_in(config, metadata)
        if identity.cluster_id not in ("", answer.cluster_id):
            raise DataDirectoryError(
                f"{disk.location} is of cluster {identity.cluster_id}, {config.join} of {answer.cluster_id}"
            )
        known = answer.nodes
        identity = await save(msgspec.structs.replace(identity, cluster_id=answer.cluster_id))
    elif identity.is_founder and config.join:
        log.warning(
            "--join %s is not used: %s is of cluster %s, which this node has founded. To join another one, "
            "start it with an empty directory",
            config.join,
            disk.location,
            identity.cluster_id,
        )
    metadata.cluster_id = identity.cluster_id
    if identity.has_raft and not await disk.run(lambda: disk.exists("raft") and bool(disk.list("raft"))):
        raise DataDirectoryError(
            f"{disk.location}/raft is missing: this node has forgotten its part in the metadata",
            hint="Restore it; or remove the node from the cluster, empty its directory and let it join anew.",
        )
    await metadata.open(found=identity.is_founder and not identity.has_raft, known=known, check=check)
    if not identity.has_raft:
        identity = await save(msgspec.structs.replace(identity, has_raft=True))
    return identity


async def _be_let_in(config: BrokerConfig, metadata: ReplicatedMetadata) -> JoinAnswer:
    members = metadata.members
    if config.join:
        given = [(at.host, at.port) for at in parse_addresses(config.join)]
        return await members.join(given, config.join_timeout_ms / 1000, replaces=config.replace_disk)
    where = f"{metadata.myself.peer_host}:{metadata.myself.peer_port}"
    log.warning(
        "node %d is in no cluster and waits to be added: `ister node add %s`; or start it again with "
        "--join HOST:PORT, or with --bootstrap-cluster to make a new cluster",
        config.node_id,
        where,
    )
    while True:
        invitation = await members.wait_for_invitation()
        addresses = [(node.peer_host, node.peer_port) for node in invitation.nodes]
        try:
            return await members.join(addresses, config.join_timeout_ms / 1000, replaces=config.replace_disk)
        except JoinFailed as error:
            log.warning("the invitation came to nothing: %s", error)


async def tell_of_majority(metadata: ReplicatedMetadata) -> None:
    """Say whom a node misses that was started and cannot announce it, once; and when it could after all.

    It takes requests meanwhile, and leads nothing: that is nothing to be found out from errors alone."""
    try:
        async with asyncio.timeout(ALONE_SECONDS):
            await metadata.announced.wait()
    except TimeoutError:
        membership, node = metadata.status().membership, metadata.myself.node_id
        silent = sorted(node_of(voter) for voter in membership.voters if not metadata.is_alive(voter))
        who = f"node{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
        log.warning(
            "node %d was started and finds no majority of the cluster: %s",
            node,
            f"{who} {'do' if len(silent) > 1 else 'does'} not answer" if silent else "all voters answer",
            extra={
                "fields": {
                    "voters": len(membership.voters),
                    "needed": membership.quorum,
                    "hint": "Start the nodes that do not answer. Until then it leads nothing.",
                }
            },
        )
        await metadata.announced.wait()
        log.info("node %d has found a majority, and may lead", node)
