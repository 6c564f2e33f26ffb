"""Metadata of a cluster, be it of one node: the commands of `ister.metadata` carried by Raft.

A start has steps, in this order: `listen`, `join` (only a node that has no cluster yet), `open`, and
`announce`, which tells the cluster of this start and of where clients find it (I2). Until the announcement
was applied here, what this node knows may be older than its own last life: it must not lead anything.

Who takes part is `ister.metadata.membership`'s business, where the others are `ister.metadata.known`'s, how a
command gets to the leader `ister.metadata.proposing`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import NoReturn

import msgspec

from ister.background import Background
from ister.errors import (
    BadRequest,
    BuildTooOld,
    DataDirectoryError,
    IsterError,
    NotLeader,
)
from ister.io.clock import monotonic
from ister.io.disk import Disk
from ister.io.network import Network
from ister.metadata.announcing import why_too_old
from ister.metadata.changes import Change, Changes
from ister.metadata.codec import COMMANDS, CommandSet, encode_command
from ister.metadata.commands import Command, FoundCluster, Outcome, RemoveNode, Result, UpsertNode
from ister.metadata.known import KnownNodes
from ister.metadata.membership import Members
from ister.metadata.nodes import address_of, node_state_of, upsert_of
from ister.metadata.proposing import ATTEMPT_SECONDS, Proposals
from ister.metadata.shapes import Shapes, what_lacks
from ister.metadata.state import ClusterState
from ister.metadata.store import Watcher
from ister.peers import Peers
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind
from ister.protocol.peer import AdminRequest, Invite, Join, NodeAddress, PeerHello, PeerKind, Removed, node_of
from ister.raft import RaftConfig, RaftStatus, SoftState, bootstrap_state
from ister.raft.driver import SNAPSHOT_EVERY, TICK_SECONDS, RaftNode

log = logging.getLogger("ister.metadata")

PROPOSE_SECONDS = 10.0
HAND_OVER_SECONDS = 1.0
REFUSED_SECONDS = 5.0
NOTHING_FOUND = 1 << 62
"""Nobody has looked at the metadata's log yet: no index lies above."""

ServeOther = Callable[[int, bytes, bytes], Awaitable[bytes]]
"""Answers what another part of the node is asked by its peers: kind, header, payload -> the answer."""


ServeReplicas = Callable[[int, bytes], Awaitable[bytes]]
"""Answers what is asked about a segment's copy here: kind, header -> the answer."""

Check = Callable[[RaftStatus], Awaitable[None]]


async def _serve_nothing(kind: int, header: bytes, payload: bytes) -> bytes:
    raise BadRequest(f"there is no peer request of kind {kind}")


async def _serve_no_replicas(kind: int, header: bytes) -> bytes:
    raise NotLeader("this node is only starting")


class ReplicatedMetadata:
    """A `MetadataStore` that many nodes share."""

    def __init__(
        self,
        disk: Disk,
        network: Network,
        random: Random,
        *,
        myself: NodeAddress,
        starts: int,
        cluster_id: str,
        on_fatal: Callable[[IsterError], None],
        on_restored: Callable[[], None] = lambda: None,
        now_us: Callable[[], int] = lambda: 0,
        raft_config: RaftConfig | None = None,
        tick_seconds: float = TICK_SECONDS,
        snapshot_every: int = SNAPSHOT_EVERY,
        commands: CommandSet = COMMANDS,
    ) -> None:
        self.commands = commands
        """What this build knows."""
        self.state = ClusterState()
        self.changes = Changes()
        self.myself = myself
        self.cluster_id = cluster_id
        self.starts = starts
        self.announced = asyncio.Event()
        """Set once this node knows what the cluster knew when it was started, and the cluster of it."""
        self.last_index_found = NOTHING_FOUND
        """Where the metadata's log on this disk ended when this process began."""
        self.serve_other: ServeOther = _serve_nothing
        self.serve_replicas: ServeReplicas = _serve_no_replicas
        self.on_fatal = on_fatal
        self._now_us = now_us
        self._on_restored = on_restored
        self._watchers: list[Watcher] = []
        self._background = Background(on_fatal)
        self._known = KnownNodes(disk)
        self._is_open = False
        self._refused_since: float | None = None
        self._noted_leader = (0, 0)
        self.peers = Peers(
            network,
            lambda: PeerHello(self.cluster_id, self.myself, self.starts),
            on_raft=self._on_raft,
            serve=self._serve,
            accepts=self._accepts,
            on_refused=self._refused,
            now_us=now_us,
        )
        self.raft = RaftNode(
            raft_config or RaftConfig(node_id=myself.member),
            disk,
            _Machine(self),
            random=random,
            send=self.peers.send_raft,
            on_fatal=on_fatal,
            on_soft_state=self._note_leader,
            snapshot_every=snapshot_every,
            tick_seconds=tick_seconds,
        )
        self.proposals = Proposals(self.raft, self.peers, myself.member, random, lambda: self.has_majority)
        self.members = Members(self)

    @property
    def member(self) -> int:
        return self.myself.member

    # Starting and stopping.

    async def listen(
        self, host: str, port: int, *, advertise_host: str = "", advertise_port: int = 0
    ) -> None:
        """Take calls of other nodes, and tell them to call there. A node alone does not."""
        await self.peers.listen(host, port)
        assert self.peers.listener is not None
        self.myself = msgspec.structs.replace(
            self.myself,
            peer_host=advertise_host or host,
            peer_port=advertise_port or self.peers.listener.address[1],
        )

    async def open(
        self, *, found: bool = False, known: list[NodeAddress] | None = None, check: Check | None = None
    ) -> None:
        """Take part. `found` makes a new cluster of this node alone; `known` are others to begin with.

        With neither, this node was there before, and its Raft state must be too (I2). `check` may refuse what
        was loaded, before anything is added to it."""
        hints = known if known is not None else await self._known.load()
        is_new = found or known is not None
        founding = bootstrap_state([self.member]) if found else None

        async def look(status: RaftStatus) -> None:
            self.last_index_found = status.last_index
            if check is not None:
                await check(status)

        await self.raft.start(founding, may_be_new=is_new, check=look)
        self._is_open = True
        self._know(hints)
        self.refresh_links()
        self._background.spawn(self.members.keep(), vital=True)
        self._background.spawn(self.members.tell_those_who_left(), vital=True)

    async def stop(self) -> None:
        await self._background.stop()
        await self.peers.stop()
        if self._is_open:
            await self.raft.stop()

    def is_stopping(self) -> None:
        """From now on nothing waits for a majority that does not answer."""
        self.proposals.is_stopping = True
        if self._is_open:
            self._background.spawn(self.proposals.keep_looking())

    async def hand_over(self) -> None:
        """Before a stop: let another node lead the metadata, so that nobody has to wait for an election."""
        if self._is_open and self.raft.is_leader and not self.is_sole_voter:
            try:
                async with self.proposals.needs_majority(HAND_OVER_SECONDS):
                    await self.members.administer(AdminRequest(Kind.TRANSFER_LEADER, 0))
            except (IsterError, TimeoutError) as error:
                log.info("the metadata's leadership was not handed over: %s", error)

    def announce(self, client_host: str, client_port: int) -> None:
        """Begin to tell the cluster of this start (I2), for as long as it takes; see `announced`."""
        self.myself = msgspec.structs.replace(self.myself, client_host=client_host, client_port=client_port)
        self._background.spawn(self._announce(), vital=True)

    async def _announce(self) -> None:
        while not self.announced.is_set():
            try:
                if not self.state.cluster_id:
                    await self.propose(FoundCluster(self.cluster_id))
                outcome = await self.propose(upsert_of(self.myself, self.starts, self.commands.known))
            except IsterError as error:
                if self.raft.failure is not None:
                    return
                log.debug("this start could not be announced yet: %s", error)
                continue
            if outcome.result is Result.REFUSED:
                too_old = why_too_old(self.state, self.myself.node_id, self.commands.known)
                self.on_fatal(BuildTooOld(too_old) if too_old else DataDirectoryError(outcome.detail))
                return

    # Where the others are.

    def refresh_links(self) -> None:
        """Link to the nodes of the metadata; and to those that leave, for as long as they are members."""
        if not self._is_open:
            return
        nodes, known = self.addresses(), self._known.nodes
        listed = {node.member for node in nodes}
        if self.announced.is_set():
            membership = self.status().membership
            known = [node for node in known if node.member in membership]
        else:
            # What is committed as far as this node knows may be older than the hint of its last life.
            hints = {node.member: node for node in known}
            nodes = [hints.get(node.member, node) for node in nodes]
        self._know([*nodes, *(node for node in known if node.member not in listed)])

    def _know(self, nodes: list[NodeAddress]) -> None:
        if nodes and nodes != self._known.nodes:
            self._known.nodes = nodes
            self.peers.know(nodes, self.member)
            self._background.spawn(self._known.save())

    def addresses(self) -> list[NodeAddress]:
        return [address_of(node) for node in self.state.nodes.values()]

    # The store.

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    async def propose(self, command: Command, timeout: float = PROPOSE_SECONDS) -> Outcome:
        data = encode_command(command)
        needed = self.commands.read(data).needed
        self._check_all_know(needed)
        outcome = await self.proposals.propose(data, timeout)
        if outcome.result is Result.REFUSED:
            self._check_all_know(needed)  # one may have come meanwhile
        return outcome

    def _check_all_know(self, needed: Shapes) -> None:
        node_id, lacks = self.state.who_lacks(needed)
        if node_id:
            raise BuildTooOld(
                f"node {node_id} runs a build that does not know {lacks}",
                hint=f"Upgrade node {node_id} to the version of the others, or remove it for good.",
            )

    async def read_index(self, timeout: float = PROPOSE_SECONDS) -> None:
        """Returns once this node's state has everything that was committed anywhere when it was called."""
        await self.proposals.read_index(timeout)

    async def wait_applied(self, index: int, timeout: float) -> None:
        """Returns once this node has applied up to `index` (H3)."""
        await self.raft.wait_applied(index, timeout)

    def _note_leader(self, soft: SoftState) -> None:
        if soft.leader and (soft.leader, soft.term) != self._noted_leader:
            self._noted_leader = soft.leader, soft.term
            log.info("metadata leader", extra={"fields": {"node": node_of(soft.leader), "term": soft.term}})

    @property
    def is_leader(self) -> bool:
        return self.raft.is_leader

    def is_alive(self, member: int) -> bool:
        """Whether a node answers; this one always does."""
        return member == self.member or self.peers.is_alive(member)

    @property
    def others_alive(self) -> list[int]:
        """The other active members that answer."""
        return [m for m in self.state.active_members if m != self.member and self.is_alive(m)]

    @property
    def has_majority(self) -> bool:
        """Whether so many voters answer this node that the metadata can change."""
        membership = self.status().membership
        return sum(map(self.is_alive, membership.voters)) >= membership.quorum

    def is_to_announce(self, member: int) -> bool:
        node = self.state.nodes.get(node_of(member))
        return node is not None and node.member == member and self.peers.starts_of(member) > node.starts

    def clock_error_us(self, member: int) -> int:
        """How far a node's clock is from the middle of all that are heard, this one's among them; 0 if that
        cannot be said (A6). Of two that differ the one behind is taken for right: only one is wrong then."""
        heard = {other: self.peers.clock_of(other) for other in self.state.active_members}
        heard[self.member] = self._now_us()
        clock = heard.get(member)
        known = sorted(other for other in heard.values() if other is not None)
        return clock - known[(len(known) - 1) // 2] if clock is not None else 0

    @property
    def is_sole_voter(self) -> bool:
        return self.raft.core.membership.voters == (self.member,)

    @property
    def is_alone(self) -> bool:
        return self.raft.is_leader and self.is_sole_voter

    def status(self) -> RaftStatus:
        return self.raft.status()

    # What comes from other nodes.

    def _accepts(self, hello: PeerHello) -> IsterError | None:
        if self.cluster_id and hello.cluster_id not in ("", self.cluster_id):
            return BadRequest(
                f"a peer of cluster {hello.cluster_id} called, this is cluster {self.cluster_id}",
                hint="Check the peer addresses: they lead to another cluster.",
            )
        node = hello.node
        # Where it was reached, not where the metadata has it: what is known here may be older than its move.
        there = self.peers.where_alive(node.member)
        if there is not None and there != (node.peer_host, node.peer_port):
            return DataDirectoryError(
                f"node {node.node_id} with disk {node.disk_id} is alive at {there[0]}:{there[1]}: the "
                f"directory of the one at {node.peer_host}:{node.peer_port} is a copy",
                hint="Never start two nodes from copies of one directory; give the new one an empty one.",
            )
        return None

    def _refused(self, error: DataDirectoryError) -> None:
        """A node that moved is refused for as long as it is remembered where it was, a copy for good (I2);
        and so is the original, once a copy of it was started while nobody could hear it."""
        now = monotonic()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > REFUSED_SECONDS:
            self.on_fatal(error.again())

    def _on_raft(self, sender: int, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            self.raft.receive(data)
        except BadRequest as error:
            log.warning("node %d sent no Raft message: %s", node_of(sender), error)

    async def _serve(self, node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
        if kind == PeerKind.INVITE:
            return self.members.invited(decode_header(Invite, header))
        if not self._is_open:
            raise NotLeader(f"node {self.myself.node_id} is not in a cluster yet")
        match kind:
            case PeerKind.PROPOSE:
                return msgspec.msgpack.encode(await self.raft.propose(payload, ATTEMPT_SECONDS))
            case PeerKind.READ_INDEX:
                await self.raft.read_index(ATTEMPT_SECONDS)
                return self.state.applied_index.to_bytes(8, "little")
            case PeerKind.JOIN:
                return encode_header(await self.members.let_in(decode_header(Join, header)))
            case PeerKind.ADMIN:
                return encode_header(await self.members.administer(decode_header(AdminRequest, header)))
            case PeerKind.REMOVED:
                removed = decode_header(Removed, header)
                if removed.member == self.member:
                    self.members.removed(removed.reason)
                return b""
            case PeerKind.FENCE | PeerKind.COPY | PeerKind.READ_LOG | PeerKind.STANDING | PeerKind.REACH:
                return await self.serve_replicas(kind, header)
        return await self.serve_other(kind, header, payload)

    # Applying.

    def applied(self, index: int, data: bytes) -> Outcome:
        command, needed, lacks = self.commands.read(data)
        if lacks and self.state.all_know(needed):
            self._stop_for_want_of(lacks)
        command = None if lacks else command
        outcome = self.state.apply(index, command, needed)
        if isinstance(command, UpsertNode | RemoveNode) and outcome.ok:
            self._look_for_myself()
            self.refresh_links()
        if isinstance(command, UpsertNode) and outcome.ok:
            self.peers.drop_callers(command.node_id, command.starts)
        self.changes.note(Change(index, command, outcome), len(data))
        for watcher in self._watchers:
            watcher(command, outcome)
        return outcome

    def restored(self, data: bytes) -> None:
        state = ClusterState.from_bytes(data)
        lacks = what_lacks(self.commands.known, state.used)
        if lacks:
            self._stop_for_want_of(lacks)
        self.state = state
        self._look_for_myself()
        self.refresh_links()
        self.changes.restored(self.state.applied_index)
        self._on_restored()

    def _stop_for_want_of(self, lacks: str) -> NoReturn:
        raise BuildTooOld(
            f"the metadata of node {self.myself.node_id} has {lacks}, which this build does not know",
            hint="Start it with the version that it had before, or a newer one. Nothing was changed.",
        )

    def _look_for_myself(self) -> None:
        known = self.state.nodes.get(self.myself.node_id)
        if known is not None and known == node_state_of(
            upsert_of(self.myself, self.starts, self.commands.known)
        ):
            self.announced.set()


class _Machine:
    """The state machine as Raft's driver sees it."""

    def __init__(self, store: ReplicatedMetadata) -> None:
        self._store = store

    def apply(self, index: int, data: bytes) -> Outcome:
        return self._store.applied(index, data)

    def skip(self, index: int) -> None:
        self._store.state.skip(index)
        self._store.changes.passed(index)

    def to_bytes(self) -> bytes:
        return self._store.state.to_bytes()

    def restore(self, data: bytes) -> None:
        self._store.restored(data)
