"""Who takes part in the metadata: joining, promotion, removal, and handing over its leadership.

The membership follows from the metadata: nodes announce themselves through Raft (`UpsertNode`), the leader
brings the group in line with them, one change at a time: a node that is new, or new on its disk, comes as a
learner (I2) and is promoted once it has caught up (R2); one that is gone leaves, and is told.

A node that has no cluster asks a member to let it in, or waits for an invitation. Nothing is made of its
directory before somebody has said yes, so that a join that fails leaves no half of a node behind.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from ister.errors import (
    BadRequest,
    BuildTooOld,
    ConnectionFailed,
    IsterError,
    JoinFailed,
    NodeIdInUse,
    NodeUnreachable,
    NotLeader,
    Overloaded,
    RequestTimeout,
)
from ister.io.clock import monotonic
from ister.metadata.announcing import why_too_old
from ister.metadata.commands import RemoveNode, Result
from ister.metadata.nodes import upsert_of
from ister.metadata.proposing import ATTEMPT_SECONDS
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.messages import Kind, NodeAnswer
from ister.protocol.peer import (
    AdminRequest,
    Invite,
    Join,
    JoinAnswer,
    NodeAddress,
    PeerKind,
    Removed,
    node_of,
)
from ister.raft import PROMOTION_LAG_ENTRIES, ChangeKind, MembershipChange

if TYPE_CHECKING:
    from ister.metadata.replicated import ReplicatedMetadata

log = logging.getLogger("ister.metadata")

MAX_VOTERS = 7
RECONCILE_SECONDS = 0.25
TRANSFER_SECONDS = 5.0
REPORT_SECONDS = 3.0
"""A disk may not take another's place while too few are known to have what that had. Of what was sealed a
moment ago they say so about now: a refusal is believed when it lasts."""
REPLACE_HINT = (
    "Start it with the data directory that it had. If that is gone for good, --replace-disk lets it in "
    "without; `ister cluster health` then names the topics that have lost records."
)

_MAY_PASS = (NodeIdInUse, NotLeader, ConnectionFailed, RequestTimeout, Overloaded)


class Members:
    """The part of the metadata that is about the nodes."""

    def __init__(self, store: ReplicatedMetadata) -> None:
        self._store = store
        self._invitation: asyncio.Future[JoinAnswer] | None = None

    # On a node that has no cluster yet.

    async def join(
        self, addresses: list[tuple[str, int]], timeout: float, *, replaces: bool = False
    ) -> JoinAnswer:
        """Ask the members at these addresses to let this node in, until one does or the time is over."""
        started = monotonic()
        deadline = started + timeout
        store = self._store
        # Registered as a start that is over: what it says of itself when it is there is news again.
        header = encode_header(Join(store.myself, store.starts - 1, replaces, dict(store.commands.known)))
        asked = ", ".join(f"{host}:{port}" for host, port in addresses)
        while True:
            for host, port in addresses:
                last: IsterError
                try:
                    left = max(0.1, min(ATTEMPT_SECONDS * 2, deadline - monotonic()))
                    _, answer = await store.peers.ask(host, port, PeerKind.JOIN, header, timeout=left)
                    return decode_header(JoinAnswer, answer.header)
                except _MAY_PASS as error:
                    last = error
                except IsterError as error:
                    if monotonic() < min(deadline, started + REPORT_SECONDS):
                        last = error
                        continue
                    raise JoinFailed(
                        f"{host}:{port} does not let node {store.myself.node_id} in: {error.message}",
                        hint=error.hint,
                    ) from error
            if monotonic() >= deadline:
                raise JoinFailed(
                    f"node {store.myself.node_id} could not join through {asked} within {timeout:g} s: "
                    f"{last.message}",
                    hint=last.hint if isinstance(last, NodeIdInUse | NotLeader) else None,
                ) from last
            await asyncio.sleep(0.2)

    async def wait_for_invitation(self) -> JoinAnswer:
        self._invitation = asyncio.get_running_loop().create_future()
        try:
            return await self._invitation
        finally:
            self._invitation = None

    def invited(self, invite: Invite) -> bytes:
        waiting = self._invitation
        store = self._store
        if waiting is None or waiting.done():
            raise BadRequest(
                f"node {store.myself.node_id} does not wait to be added"
                + (f": it is in cluster {store.cluster_id}" if store.cluster_id else ""),
                hint="Start a new node with --peer-port and an empty directory, and without --join.",
            )
        waiting.set_result(JoinAnswer(invite.cluster_id, invite.nodes))
        return encode_header(NodeAnswer(store.myself.node_id))

    # On a member.

    async def invite(self, host: str, port: int) -> NodeAnswer:
        """Tell the node that waits at this peer address to join."""
        store = self._store
        header = encode_header(Invite(store.cluster_id, [store.myself, *self._others()]))
        hint = (
            f"Give the peer address of a node that was started with --peer-port on an empty directory, and "
            f"without --join; node {store.myself.node_id} must reach it there."
        )
        try:
            _, answer = await store.peers.ask(
                host, port, PeerKind.INVITE, header, timeout=ATTEMPT_SECONDS * 2
            )
        except (ConnectionFailed, NodeUnreachable, RequestTimeout) as error:
            # Not one of those that are tried again for a minute: somebody waits, and can start the node.
            raise JoinFailed(f"no node waits at {host}:{port}: {error.message}", hint=hint) from error
        return decode_header(NodeAnswer, answer.header)

    async def let_in(self, join: Join) -> JoinAnswer:
        """The metadata leader decides: it hears from its members and knows which of them are alive."""
        store = self._store
        node = join.node
        if not store.raft.is_leader:
            header = encode_header(join)
            answer = await store.proposals.ask_leader(PeerKind.JOIN, header, timeout=ATTEMPT_SECONDS)
            return decode_header(JoinAnswer, answer)
        too_old = why_too_old(store.state, node.node_id, join.knows)
        if too_old:
            raise BuildTooOld(too_old)
        known = store.state.nodes.get(node.node_id)
        if known is not None and known.disk_id != node.disk_id and self._is_alive(known.member):
            raise NodeIdInUse(f"node {node.node_id} is in the cluster already, on another disk, and is alive")
        # Where clients find it, it says itself, when it is there: until then nothing is given to it.
        node = msgspec.structs.replace(node, client_host="", client_port=0)
        replaced = known if known is not None and known.disk_id != node.disk_id else None
        command = upsert_of(node, join.starts, join.knows, replaces=join.replaces, replaced=replaced)
        outcome = await store.propose(command, ATTEMPT_SECONDS)
        if not outcome.ok:
            raise BadRequest(f"node {node.node_id} may not join: {outcome.detail}", hint=REPLACE_HINT)
        return JoinAnswer(store.cluster_id, [store.myself, *self._others()])

    def _others(self) -> list[NodeAddress]:
        return [node for node in self._store.addresses() if node.node_id != self._store.myself.node_id]

    def _is_alive(self, member: int) -> bool:
        # Raft forgets who was active with every look at its quorum, the link when it breaks: either will do.
        if self._store.is_alive(member):
            return True
        return any(peer.node == member and peer.recently_active for peer in self._store.status().peers)

    def removed(self, reason: str) -> None:
        self._store.on_fatal(
            JoinFailed(
                reason,
                hint="This directory has no place in the cluster any more. To start the node anew, give it "
                "an empty one and --join; if another node has its id, a --node-id of its own.",
            )
        )

    # What people ask for.

    async def administer(self, request: AdminRequest) -> NodeAnswer:
        """Done by the metadata leader, whoever was asked."""
        store = self._store
        if not store.raft.is_leader:
            answer = await store.proposals.ask_leader(
                PeerKind.ADMIN, encode_header(request), timeout=TRANSFER_SECONDS + ATTEMPT_SECONDS
            )
            return decode_header(NodeAnswer, answer)
        match request.kind:
            case Kind.TRANSFER_LEADER:
                return await self._transfer(request.node_id)
            case Kind.REMOVE_NODE:
                return await self._remove(request.node_id, request.disk_gone)
            case Kind.PROMOTE_NODE:
                return await self._promote(request.node_id)
        raise BadRequest(f"kind {request.kind} is not for the metadata leader")

    async def _transfer(self, node_id: int) -> NodeAnswer:
        store, status = self._store, self._store.status()
        voters = [
            peer
            for peer in status.peers
            if peer.node in status.membership.voters and self._is_alive(peer.node)
        ]
        if node_id == store.myself.node_id:
            return NodeAnswer(node_id, "it leads the metadata already")
        chosen = [peer for peer in voters if not node_id or node_of(peer.node) == node_id]
        if not chosen:
            raise BadRequest(
                f"node {node_id} is no voter that answers" if node_id else "no other voter answers",
                hint="`ister node list` shows the roles and who is alive.",
            )
        target = max(chosen, key=lambda peer: peer.match).node
        store.raft.transfer_leadership(target)
        deadline = monotonic() + TRANSFER_SECONDS
        while store.raft.leader != target:
            if monotonic() >= deadline:
                raise RequestTimeout(f"node {node_of(target)} did not take over in {TRANSFER_SECONDS:.0f} s")
            await asyncio.sleep(0.02)
        return NodeAnswer(node_of(target), "leads the metadata now")

    async def _remove(self, node_id: int, disk_gone: bool) -> NodeAnswer:
        node = self._store.state.nodes.get(node_id)
        if node is None:
            raise BadRequest(f"there is no node {node_id}", hint="`ister node list` shows them.")
        if disk_gone and self._is_alive(node.member):
            raise BadRequest(
                f"node {node_id} was not removed: it answers, so its disk is not gone",
                hint="Leave --disk-gone away, or stop the node first.",
            )
        outcome = await self._store.propose(
            RemoveNode(node_id, disk_gone, node.starts if disk_gone else 0, node.member, by_name=True)
        )
        # One that is stale was done before: by another, or by an attempt of this call whose answer was lost.
        is_another = node_id in self._store.state.nodes and outcome.result is Result.STALE
        if outcome.result is Result.REFUSED or is_another:
            raise BadRequest(
                f"node {node_id} was not removed: {outcome.detail}",
                hint=self._why_not_removed(node_id, disk_gone),
            )
        return NodeAnswer(node_id, "removed")

    def _why_not_removed(self, node_id: int, disk_gone: bool) -> str:
        if node_id not in self._store.state.nodes:
            return "`ister node list` shows the nodes."
        if len(self._store.state.nodes) == 1:
            return "A cluster has at least one node; stop this one instead, and its data stays."
        if disk_gone:
            return (
                "`ister cluster health` names the topics that it leads, and what they wait for. Of one that "
                "no other node can recover, `ister topic recover TOPIC` says what would be lost."
            )
        return (
            f"`ister node drain {node_id}` lets all that it has go to other nodes, and says when it holds "
            f"nothing. If it is down, what has other copies goes on without it within `replica_lost_ms`; if "
            f"its disk is gone for good, --disk-gone removes it all the same."
        )

    async def _promote(self, node_id: int) -> NodeAnswer:
        store = self._store
        node = store.state.nodes.get(node_id)
        membership = store.status().membership
        if node is None:
            raise BadRequest(f"there is no node {node_id}", hint="`ister node list` shows them.")
        if node.member in membership.voters:
            return NodeAnswer(node_id, "it is a voter already")
        await store.raft.change_membership(MembershipChange(ChangeKind.PROMOTE, node.member), ATTEMPT_SECONDS)
        return NodeAnswer(node_id, "is a voter now")

    # The group follows the metadata.

    async def keep(self) -> None:
        """On the leader: make the group what the metadata says, a step at a time (R1, R2)."""
        store = self._store
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            store.refresh_links()
            change = self._next_change() if store.raft.is_leader else None
            if change is not None:
                try:
                    await store.raft.change_membership(change, ATTEMPT_SECONDS)
                    log.info("%s of node %d", change.kind.value, node_of(change.node))
                    if change == MembershipChange(ChangeKind.REMOVE, store.member):
                        self.removed(self._why_not_here(store.myself))
                except IsterError as error:
                    log.debug("membership: %s", error)

    async def tell_those_who_left(self) -> None:
        """On the leader: a node that is no member and calls all the same is told. It was removed, just now or
        while it was down, or another disk has its place."""
        store = self._store
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            if store.raft.is_leader and self._strangers():
                try:
                    # Another leader may have let it in: what this one knows must be all that there is.
                    await store.read_index(ATTEMPT_SECONDS)
                    for node in self._strangers():
                        await self._tell(node)
                except IsterError as error:
                    log.debug("a node that left was not told yet: %s", error)

    def _strangers(self) -> list[NodeAddress]:
        """Who calls and is not in the group, nor about to be."""
        membership = self._store.status().membership
        wanted = [node.member for node in self._store.state.nodes.values()]
        callers = self._store.peers.callers()
        return [node for node in callers if node.member not in membership and node.member not in wanted]

    async def _tell(self, node: NodeAddress) -> None:
        header = encode_header(Removed(self._why_not_here(node), node.member))
        try:
            await self._store.peers.ask(
                node.peer_host, node.peer_port, PeerKind.REMOVED, header, timeout=ATTEMPT_SECONDS
            )
        except IsterError as error:
            log.debug("node %d left and was not told yet: %s", node.node_id, error)

    def _why_not_here(self, node: NodeAddress) -> str:
        if node.node_id in self._store.state.nodes:
            return f"node {node.node_id} is in the cluster on another disk"
        return f"node {node.node_id} was removed from the cluster"

    def _next_change(self) -> MembershipChange | None:
        store = self._store
        status = store.status()
        membership = status.membership
        wanted = [node.member for node in store.state.nodes.values()]
        if not wanted:
            return None
        for member in wanted:
            if member not in membership:
                return MembershipChange(ChangeKind.ADD_LEARNER, member)
        for member in (*membership.learners, *membership.voters):
            if member not in wanted:
                return MembershipChange(ChangeKind.REMOVE, member)
        if len(membership.voters) < MAX_VOTERS:
            for peer in status.peers:
                # One that does not answer would only make the quorum larger.
                caught_up = peer.match and status.last_index - peer.match <= PROMOTION_LAG_ENTRIES
                if peer.node in membership.learners and peer.recently_active and caught_up:
                    return MembershipChange(ChangeKind.PROMOTE, peer.node)
        return None
