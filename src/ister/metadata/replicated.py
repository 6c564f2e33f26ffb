"""Metadata of a cluster: the commands of `ister.metadata` carried by Raft.

Any node may propose: on the metadata leader the command enters the log, elsewhere it travels to the leader
and its outcome comes back, and the call returns once this node has applied it too. Nobody waits for ever:
past a deadline the error says that no majority could be found. Every command is idempotent or a
compare-and-set, so that one whose answer was lost is simply proposed again.

The membership follows from the metadata: nodes announce themselves through Raft (`UpsertNode`), the leader
brings the group in line with them, one change at a time: a node that is new, or new on its disk, comes as a
learner (I2) and is promoted once it has caught up (R2); one that is gone leaves.

Where the others are is kept in a small file beside the log, as a hint for the next start: after a restart of
all at once, the log alone cannot say how to reach those who would elect a leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import msgspec

from ister.errors import (
    BadRequest,
    ConnectionFailed,
    DataDirectoryError,
    IsterError,
    NotLeader,
    Overloaded,
    RequestTimeout,
)
from ister.io.disk import Disk, read_whole, write_whole
from ister.io.network import Network
from ister.metadata.commands import (
    AnyCommand,
    FoundCluster,
    Outcome,
    Result,
    UpsertNode,
    decode_command,
    encode_command,
)
from ister.metadata.state import ClusterState, NodeState
from ister.metadata.store import Watcher
from ister.peers import Peers
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.peer import Join, JoinAnswer, NodeAddress, PeerHello, PeerKind, member_of, node_of
from ister.raft import ChangeKind, MembershipChange, RaftConfig, RaftStatus, bootstrap_state
from ister.raft.driver import RaftNode

log = logging.getLogger("ister.metadata")

ADDRESSES = "raft/addresses"
PROPOSE_SECONDS = 10.0
ATTEMPT_SECONDS = 2.0
RECONCILE_SECONDS = 0.5
MAX_VOTERS = 7

_RETRIED = (NotLeader, ConnectionFailed, RequestTimeout, Overloaded)


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
        on_restored: Callable[[], None] | None = None,
        snapshot_every: int = 10_000,
    ) -> None:
        self.state = ClusterState()
        self.myself = myself
        self.cluster_id = cluster_id
        self._disk = disk
        self._starts = starts
        self._random = random
        self._on_fatal = on_fatal
        self._on_restored = on_restored
        self._watchers: list[Watcher] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._known: list[NodeAddress] = []
        self.peers = Peers(
            network,
            lambda: PeerHello(self.cluster_id, self.myself, self._starts),
            on_raft=self._on_raft,
            serve=self._serve,
            accepts=self._accepts,
        )
        self.raft = RaftNode(
            RaftConfig(node_id=myself.member),
            disk,
            _Machine(self),
            random=random,
            send=self.peers.send_raft,
            on_fatal=on_fatal,
            snapshot_every=snapshot_every,
        )

    # Starting and stopping.

    async def open(self, *, found: bool = False, known: list[NodeAddress] | None = None) -> None:
        """Take part. `found` makes a new cluster of this node alone; `known` are others to begin with."""
        founding = bootstrap_state([self.myself.member]) if found else None
        await self.raft.start(founding)
        await self.peers.listen(self.myself.peer_host, self.myself.peer_port)
        self._know(known if known is not None else await self._disk.run(self._load_addresses))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._announce(found)), loop.create_task(self._reconcile())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.peers.stop()
        await self.raft.stop()

    async def _announce(self, found: bool) -> None:
        """Tell the cluster of this start (I2); a directory that was copied is found out here."""
        try:
            if found:
                await self.propose(FoundCluster(self.cluster_id), timeout=3600)
            me = self.myself
            outcome = await self.propose(
                UpsertNode(
                    me.node_id,
                    me.disk_id,
                    self._starts,
                    me.peer_host,
                    me.peer_port,
                    me.client_host,
                    me.client_port,
                ),
                timeout=3600,
            )
            if outcome.result is Result.REFUSED:
                self._on_fatal(DataDirectoryError(outcome.detail))
        except IsterError as error:
            log.warning("this start was not announced: %s", error)

    def _load_addresses(self) -> list[NodeAddress]:
        if not self._disk.exists(ADDRESSES):
            return []
        try:
            return msgspec.msgpack.decode(read_whole(self._disk, ADDRESSES), type=list[NodeAddress])
        except msgspec.DecodeError as error:
            log.warning("the addresses of the other nodes cannot be read: %s", error)
            return []

    def _know(self, nodes: list[NodeAddress]) -> None:
        if nodes and nodes != self._known:
            self._known = nodes
            self.peers.know(nodes, self.myself.member)
            self._tasks.append(asyncio.get_running_loop().create_task(self._save_addresses(nodes)))

    async def _save_addresses(self, nodes: list[NodeAddress]) -> None:
        data = msgspec.msgpack.encode(nodes)
        try:
            await self._disk.run(lambda: write_whole(self._disk, ADDRESSES, data))
        except OSError as error:
            log.warning("the addresses of the other nodes were not saved: %s", error)

    # The store.

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    async def propose(self, command: AnyCommand, timeout: float = PROPOSE_SECONDS) -> Outcome:
        data = encode_command(command)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            try:
                outcome = await self._propose_once(data, min(ATTEMPT_SECONDS, deadline - loop.time()))
                await self.raft.wait_applied(outcome.index, max(0.0, deadline - loop.time()))
                return outcome
            except _RETRIED as error:
                if loop.time() >= deadline:
                    raise RequestTimeout(
                        f"metadata could not be changed within {timeout:.0f} s: {error.message}",
                        hint="The cluster may have no majority; ask `ister cluster status` on several nodes.",
                    ) from error
                await asyncio.sleep(0.02 + 0.08 * self._random.random())

    async def _propose_once(self, data: bytes, timeout: float) -> Outcome:
        if self.raft.is_leader:
            outcome = await self.raft.propose(data, timeout)
            assert isinstance(outcome, Outcome)
            return outcome
        leader = self.raft.leader
        if not leader or leader == self.myself.member:
            raise NotLeader("no metadata leader is known")
        answer = await self.peers.request(leader, PeerKind.PROPOSE, b"", data, timeout=timeout)
        return msgspec.msgpack.decode(answer.header, type=Outcome)

    async def read_index(self, timeout: float = PROPOSE_SECONDS) -> None:
        """Returns once this node's state has everything that was committed anywhere when it was called."""
        if self.raft.is_leader:
            await self.raft.read_index(timeout)
            return
        leader = self.raft.leader
        if not leader:
            raise NotLeader("no metadata leader is known")
        answer = await self.peers.request(leader, PeerKind.READ_INDEX, b"", timeout=timeout)
        await self.raft.wait_applied(int.from_bytes(answer.header, "little"), timeout)

    def status(self) -> RaftStatus:
        return self.raft.status()

    # What comes from other nodes.

    def _accepts(self, hello: PeerHello) -> IsterError | None:
        if hello.cluster_id not in ("", self.cluster_id):
            return BadRequest(
                f"a peer of cluster {hello.cluster_id} called, this is cluster {self.cluster_id}",
                hint="Check the peer addresses: they lead to another cluster.",
            )
        return None

    def _on_raft(self, sender: int, data: bytes) -> None:
        try:
            self.raft.receive(data)
        except BadRequest as error:
            log.warning("node %d sent no Raft message: %s", node_of(sender), error)

    async def _serve(self, node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
        match kind:
            case PeerKind.PROPOSE:
                outcome = await self.raft.propose(payload, ATTEMPT_SECONDS)
                return msgspec.msgpack.encode(outcome)
            case PeerKind.READ_INDEX:
                await self.raft.read_index(ATTEMPT_SECONDS)
                return self.state.applied_index.to_bytes(8, "little")
            case PeerKind.JOIN:
                return encode_header(await self._let_in(decode_header(Join, header)))
        raise BadRequest(f"there is no peer request of kind {kind}")

    async def _let_in(self, join: Join) -> JoinAnswer:
        node = join.node
        known = self.state.nodes.get(node.node_id)
        if known is not None and known.disk_id != node.disk_id and self._is_alive(known):
            raise BadRequest(
                f"node {node.node_id} is in the cluster already, on another disk, and is alive",
                hint="Give the new node an id of its own with --node-id.",
            )
        outcome = await self.propose(
            UpsertNode(
                node.node_id,
                node.disk_id,
                join.starts,
                node.peer_host,
                node.peer_port,
                node.client_host,
                node.client_port,
            )
        )
        if not outcome.ok:
            raise BadRequest(f"node {node.node_id} may not join: {outcome.detail}")
        others = [known for known in self._addresses() if known.node_id != self.myself.node_id]
        return JoinAnswer(self.cluster_id, [self.myself, *others])

    def _is_alive(self, node: NodeState) -> bool:
        member = member_of(node.node_id, node.disk_id)
        if member == self.myself.member:
            return True
        return any(peer.node == member and peer.recently_active for peer in self.status().peers)

    def _addresses(self) -> list[NodeAddress]:
        return [
            NodeAddress(
                node.node_id,
                node.disk_id,
                node.peer_host,
                node.peer_port,
                node.client_host,
                node.client_port,
            )
            for node in self.state.nodes.values()
        ]

    # Applying.

    def applied(self, index: int, data: bytes) -> Outcome:
        command = decode_command(data)
        outcome = self.state.apply(index, command)
        if isinstance(command, UpsertNode) and outcome.ok:
            self._know(self._addresses())
        for watcher in self._watchers:
            watcher(command, outcome)
        return outcome

    def restored(self, data: bytes) -> None:
        self.state = ClusterState.from_bytes(data)
        if self._tasks:  # not while starting: `open` tells the rest
            self._know(self._addresses())
        if self._on_restored is not None:
            self._on_restored()

    # The membership.

    async def _reconcile(self) -> None:
        """On the leader: make the group what the metadata says, a step at a time (R1, R2)."""
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            change = self._next_change() if self.raft.is_leader else None
            if change is not None:
                try:
                    await self.raft.change_membership(change, ATTEMPT_SECONDS)
                    log.info("%s of node %d", change.kind.value, node_of(change.node))
                except IsterError as error:
                    log.debug("membership: %s", error)

    def _next_change(self) -> MembershipChange | None:
        membership = self.status().membership
        wanted = [member_of(node.node_id, node.disk_id) for node in self.state.nodes.values()]
        if not wanted:
            return None
        for member in wanted:
            if member not in membership:
                return MembershipChange(ChangeKind.ADD_LEARNER, member)
        for member in (*membership.learners, *membership.voters):
            if member not in wanted:
                return MembershipChange(ChangeKind.REMOVE, member)
        if len(membership.voters) < MAX_VOTERS:
            for peer in self.status().peers:
                # One that does not answer would only make the quorum larger.
                if peer.node in membership.learners and peer.recently_active and peer.match:
                    return MembershipChange(ChangeKind.PROMOTE, peer.node)
        return None


class _Machine:
    """The state machine as Raft's driver sees it."""

    def __init__(self, store: ReplicatedMetadata) -> None:
        self._store = store

    def apply(self, index: int, data: bytes) -> Outcome:
        return self._store.applied(index, data)

    def skip(self, index: int) -> None:
        self._store.state.skip(index)

    def to_bytes(self) -> bytes:
        return self._store.state.to_bytes()

    def restore(self, data: bytes) -> None:
        self._store.restored(data)


async def ask_to_join(
    peers: Peers, host: str, port: int, myself: NodeAddress, starts: int, timeout: float
) -> JoinAnswer:
    """Ask a member to let this node in; raises a clear error if nobody there can."""
    header = encode_header(Join(myself, starts))
    _, answer = await peers.ask(host, port, PeerKind.JOIN, header, timeout=timeout)
    return decode_header(JoinAnswer, answer.header)
