"""Raft at work: real driver, real journal, real peer connections, on simulated seams."""

from __future__ import annotations

import asyncio
import random

import pytest
from raft_words import Words

from ister.errors import BadRequest, IsterError, NotLeader, RequestTimeout
from ister.peers import Peers
from ister.protocol.peer import NodeAddress, PeerHello
from ister.raft import (
    AnyMessage,
    AppendRequest,
    ChangeKind,
    Heartbeat,
    MembershipChange,
    RaftConfig,
    bootstrap_state,
    decode_message,
    encode_message,
)
from ister.raft.driver import RaftNode
from ister.testing import SimDisk, SimNetwork, VirtualLoop, simulate
from ister.testing.machine import SimMachine


def address(number: int) -> NodeAddress:
    return NodeAddress(number, f"{number:016x}", f"node-{number}", 6001, f"node-{number}", 9091)


class Member(SimMachine):
    def __init__(self, number: int, loop: VirtualLoop, network: SimNetwork, disk: SimDisk) -> None:
        super().__init__(loop, network, f"node-{number}", disk)
        self.number = number
        self.words = Words()
        self.fatal: list[IsterError] = []
        self.raft: RaftNode | None = None

    async def start(self, members: list[int], *, bootstrap: bool = False) -> None:
        await self.begin(self._run(members, bootstrap))

    async def _run(self, members: list[int], bootstrap: bool) -> None:
        host = self.network.host(f"node-{self.number}")
        me = address(self.number)
        self.words = Words()

        async def serve(node: NodeAddress, kind: int, header: bytes, payload: bytes) -> bytes:
            raise BadRequest("nothing is served here")

        peers = Peers(
            host,
            lambda: PeerHello("c1", me),
            on_raft=lambda sender, data: raft.receive(data),
            serve=serve,
            accepts=lambda hello: None if hello.cluster_id == "c1" else BadRequest("another cluster"),
        )
        raft = RaftNode(
            RaftConfig(node_id=me.member),
            self.disk.mount(),
            self.words,
            random=self.loop.fork(f"raft-{self.number}"),
            send=peers.send_raft,
            on_fatal=self.fatal.append,
            snapshot_every=20,
        )
        founders = [address(number).member for number in members]
        await raft.start(bootstrap_state(founders) if bootstrap else None)
        await peers.listen(f"node-{self.number}", 6001)
        peers.know([address(number) for number in range(1, 6)], me.member)
        self.raft = raft

    def died(self) -> None:
        self.raft = None


class Group:
    def __init__(self, loop: VirtualLoop, count: int) -> None:
        self.network = SimNetwork(loop.fork("network"))
        self.members = {
            number: Member(number, loop, self.network, SimDisk(loop.fork(f"disk-{number}")))
            for number in range(1, count + 1)
        }

    async def found(self) -> None:
        for member in self.members.values():
            await member.start(list(self.members), bootstrap=True)

    async def leader(self) -> Member:
        async with asyncio.timeout(20):
            while True:
                leading = [m for m in self.members.values() if m.raft is not None and m.raft.is_leader]
                if leading:
                    return max(leading, key=lambda m: m.raft.status().term)  # type: ignore[union-attr]
                await asyncio.sleep(0.05)

    async def say(self, word: bytes, seconds: float = 30) -> None:
        """Propose until somebody has committed it."""
        async with asyncio.timeout(seconds):
            while True:
                member = await self.leader()
                assert member.raft is not None
                try:
                    await member.raft.propose(word, timeout=1)
                    return
                except (NotLeader, RequestTimeout):
                    await asyncio.sleep(0.05)

    async def settle(self) -> list[list[bytes]]:
        """Everybody alive has applied all that is in any log, known as committed or not yet."""
        async with asyncio.timeout(30):
            while True:
                alive = [(m.words, m.raft.status()) for m in self.members.values() if m.raft is not None]
                if len({index for words, raft in alive for index in (words.index, raft.last_index)}) == 1:
                    return [words.applied for words, _ in alive]
                await asyncio.sleep(0.1)


def test_three_members_elect_a_leader_and_apply_the_same() -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        for number in range(50):
            await group.say(b"w%d" % number)
        said = await group.settle()
        assert said == [[b"w%d" % n for n in range(50)]] * 3

    simulate(main, seed=1, limit_seconds=120)


@pytest.mark.parametrize("seed", range(15))
def test_what_was_committed_survives_killed_leaders_and_power_cuts(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        rng = random.Random(seed)
        said: list[bytes] = []
        for number in range(40):
            await group.say(b"w%d" % number)
            said.append(b"w%d" % number)
            if rng.random() < 0.2:
                victim = rng.choice(list(group.members.values()))
                die = victim.lose_power if rng.random() < 0.5 else victim.kill
                die()
                await asyncio.sleep(rng.random() * 2)
                await victim.start([])
        for words in await group.settle():
            firsts = list(dict.fromkeys(words))
            assert firsts == said, "a word proposed again after a timeout may stand twice, none is missing"
        assert not any(member.fatal for member in group.members.values())

    simulate(main, seed=seed, limit_seconds=600)


def test_w9_a_member_that_was_away_for_long_gets_a_snapshot_over_the_wire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ister.raft.driver.KEPT_BEHIND_SNAPSHOT", 5)

    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        await group.say(b"first")
        group.members[3].kill()
        for number in range(100):
            await group.say(b"w%d" % number)
        await group.members[3].start([])
        said = await group.settle()
        assert len(said) == 3
        assert said[0] == said[1] == said[2] == [b"first", *(b"w%d" % n for n in range(100))]
        raft = group.members[3].raft
        assert raft is not None
        assert raft.status().snapshot_index > 0

    simulate(main, seed=3, limit_seconds=300)


def test_all_members_restarted_twice_in_a_row_have_everything() -> None:
    """W8: the second restart sees only later entries."""

    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        for number in range(30):
            await group.say(b"w%d" % number)
        for _ in range(2):
            for member in group.members.values():
                member.lose_power()
            for member in group.members.values():
                await member.start([])
        await group.say(b"after")
        for words in await group.settle():
            assert words == [*(b"w%d" % n for n in range(30)), b"after"]

    simulate(main, seed=4, limit_seconds=300)


def test_a_minority_refuses_with_a_reason_and_the_majority_goes_on() -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        await group.say(b"before")
        old = await group.leader()
        group.network.isolate(f"node-{old.number}")
        assert old.raft is not None
        with pytest.raises((NotLeader, RequestTimeout)):
            await old.raft.propose(b"lost", timeout=3)
        await asyncio.sleep(3)
        assert not old.raft.is_leader, "check-quorum"
        await group.say(b"majority")
        group.network.heal()
        for words in await group.settle():
            assert words == [b"before", b"majority"]

    simulate(main, seed=5, limit_seconds=300)


def test_a_learner_joins_catches_up_and_is_promoted() -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 4)
        for number in (1, 2, 3):
            await group.members[number].start([1, 2, 3], bootstrap=True)
        await group.say(b"one")
        await group.members[4].start([])
        leader = await group.leader()
        assert leader.raft is not None
        new = address(4).member
        await leader.raft.change_membership(MembershipChange(ChangeKind.ADD_LEARNER, new), timeout=5)
        await group.settle()
        await leader.raft.change_membership(MembershipChange(ChangeKind.PROMOTE, new), timeout=5)
        assert new in leader.raft.status().membership.voters
        leader.raft.transfer_leadership(new)
        await asyncio.sleep(2)
        assert (await group.leader()).number == 4

    simulate(main, seed=6, limit_seconds=300)


def test_proposals_that_come_together_travel_together() -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        await group.say(b"first")
        leader = await group.leader()
        raft = leader.raft
        assert raft is not None
        sent: list[AnyMessage] = []
        send = raft._send

        def listen(member: int, data: bytes) -> None:
            sent.append(decode_message(data))
            send(member, data)

        raft._send = listen
        await asyncio.gather(*(raft.propose(b"w%d" % number, timeout=5) for number in range(100)))
        carried = [len(message.entries) for message in sent if isinstance(message, AppendRequest)]
        assert [count for count in carried if count] == [100, 100], "one message to each of the others"

    simulate(main, seed=7, limit_seconds=60)


def test_a_broken_invariant_in_what_a_peer_sends_stops_the_node() -> None:
    """Two leaders of one term: going on would spread it."""

    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 3)
        await group.found()
        await group.say(b"word")
        await group.settle()
        leader = await group.leader()
        follower, other = (member for member in group.members.values() if member is not leader)
        raft = follower.raft
        assert raft is not None
        term = raft.status().term
        me, impostor = address(follower.number).member, address(other.number).member
        raft.receive(encode_message(Heartbeat(impostor, me, term, 0, 1)))
        assert ["both lead" in error.message for error in follower.fatal] == [True]
        applied = follower.words.index
        await group.say(b"the others go on")
        await asyncio.sleep(2)
        assert follower.words.index == applied

    simulate(main, seed=8, limit_seconds=60)


def test_what_the_state_machine_cannot_apply_stops_the_node() -> None:
    async def main(loop: VirtualLoop) -> None:
        group = Group(loop, 1)
        await group.found()
        await group.say(b"word")
        (member,) = group.members.values()
        raft = member.raft
        assert raft is not None

        def apply(index: int, data: bytes) -> int:
            raise KeyError("not there")

        member.words.apply = apply  # type: ignore[method-assign]
        with pytest.raises(NotLeader, match="not served here any more"):
            await raft.propose(b"another", timeout=5)
        assert ["KeyError" in error.message for error in member.fatal] == [True]

    simulate(main, seed=9, limit_seconds=60)
