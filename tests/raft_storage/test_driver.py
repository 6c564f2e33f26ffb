"""Raft at work: real driver, real journal, real peer connections, on simulated seams."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from ister.errors import BadRequest, IsterError, NotLeader, RequestTimeout
from ister.peers import Peers
from ister.protocol.peer import NodeAddress, PeerHello
from ister.raft import ChangeKind, MembershipChange, RaftConfig, bootstrap_state
from ister.raft.driver import RaftNode
from ister.testing import SimDisk, SimNetwork, SimProcess, VirtualLoop, simulate


class Words:
    """A state machine that remembers what it was told."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []
        self.index = 0

    def apply(self, index: int, data: bytes) -> int:
        self.skip(index)
        self.applied.append(data)
        return len(self.applied)

    def skip(self, index: int) -> None:
        assert index == self.index + 1
        self.index = index

    def to_bytes(self) -> bytes:
        return b"%d\n" % self.index + b"\n".join(self.applied)

    def restore(self, data: bytes) -> None:
        index, _, rest = data.partition(b"\n")
        self.index = int(index)
        self.applied = rest.split(b"\n") if rest else []


def address(number: int) -> NodeAddress:
    return NodeAddress(number, f"{number:016x}", f"node-{number}", 6001, f"node-{number}", 9091)


@dataclass
class Member:
    number: int
    loop: VirtualLoop
    network: SimNetwork
    disk: SimDisk
    process: SimProcess | None = None
    words: Words = field(default_factory=Words)
    fatal: list[IsterError] = field(default_factory=list)
    raft: RaftNode | None = None

    async def start(self, members: list[int], *, bootstrap: bool = False) -> None:
        self.process = SimProcess(self.loop, f"node-{self.number}")
        await self.process.start(self._run(members, bootstrap), name="start")

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

    def kill(self, *, power: bool = False) -> None:
        assert self.process is not None
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        self.network.kill(f"node-{self.number}")
        self.process.kill()
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
        """Everybody alive has applied what the leader has."""
        async with asyncio.timeout(30):
            while True:
                alive = [m for m in self.members.values() if m.raft is not None]
                if len({m.words.index for m in alive}) == 1:
                    return [m.words.applied for m in alive]
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
                victim.kill(power=rng.random() < 0.5)
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
                member.kill(power=True)
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
