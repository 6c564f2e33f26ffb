"""A cluster under random faults, from a seed: `python -m tests.raft.random_run --seeds 2000 --first-seed 0`.

Messages get lost, doubled, delayed and overtaken; nodes are cut off, crash with what was not synced, and come
back; leaders hand over, members come and go, logs are compacted. `Properties` watches after each step. At the
end the weather clears, and the cluster has to elect a leader and bring every member to the same state.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from random import Random

from ister.raft import Accepted, ChangeKind, MembershipChange, RaftCore, Role
from tests.raft.cluster import Cluster, Faults, Node
from tests.raft.properties import require

STEPS = 5_000
CALM_ROUNDS = 400
NODES_MAX = 9
SMALL = {
    "heartbeat_ticks": 1,
    "election_ticks_min": 4,
    "election_ticks_max": 9,
    "max_append_bytes": 150,
    "max_inflight_messages": 4,
    "max_inflight_bytes": 600,
    "max_uncommitted_bytes": 2_000,
    "max_pending_reads": 20,
    "snapshot_chunk_bytes": 40,
}
"""Bounds so tight that all of them are met, and patience so short that elections are common."""


@dataclass
class Outcome:
    """What a run did, so that one that did nothing is noticed."""

    seed: int
    committed: int
    leaders: int
    reads: int
    installs: int
    memberships: int
    counts: dict[str, int] = field(default_factory=dict)


class RandomRun:
    """One seed's life."""

    def __init__(
        self, seed: int, core_class: type[RaftCore] = RaftCore, faults: Faults | None = None
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        voters = (1, 2, 3) if seed % 2 else (1, 2, 3, 4, 5)
        self.cluster = Cluster(voters, self.random, core_class, SMALL, faults or Faults())
        self.proposals = 0
        self.memberships = 0
        self.counts: dict[str, int] = {}
        self.loss = self.random.choice((0.0, 0.02, 0.1, 0.3))
        self.doubling = self.random.choice((0.0, 0.05, 0.2))
        weights: dict[Callable[[], None], float] = {
            self.deliver: 60,
            self.tick: 30,
            self.sync: 40,
            self.propose: 12,
            self.read: 3,
            self.crash: self.random.choice((0.3, 1.5)),
            self.restart: 2,
            self.part: self.random.choice((0.0, 0.4, 1.5)),
            self.heal: 0.7,
            self.snapshot: 0.8,
            self.change_membership: self.random.choice((0.0, 0.5, 2.0)),
            self.transfer: 0.3,
            self.campaign: self.random.choice((0.0, 0.3)),
        }
        self.actions = list(weights)
        self.weights = list(weights.values())

    def run(self, steps: int = STEPS) -> Outcome:
        for action in self.random.choices(self.actions, self.weights, k=steps):
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            action()
        self.clear_up()
        properties = self.cluster.properties
        return Outcome(
            self.seed,
            properties.committed_to,
            len(properties.leaders),
            self.cluster.reads_count,
            self.cluster.installs_count,
            self.memberships,
            self.counts,
        )

    def any_node(self) -> Node | None:
        running = self.cluster.running
        return self.random.choice(running) if running else None

    def any_leader(self) -> Node | None:
        """Sometimes an old one, that does not know it yet."""
        leaders = [node for node in self.cluster.running if node.core.role is Role.LEADER]
        return self.random.choice(leaders) if leaders else None

    # What can happen.

    def deliver(self) -> None:
        bag = self.cluster.bag
        if not bag:
            return
        # Mostly the oldest few: wholly random order would leave no connection alive for long.
        reach = len(bag) if self.random.random() < 0.1 else min(len(bag), 6)
        place = self.random.randrange(reach)
        if self.random.random() < self.loss:
            bag.pop(place)
            return
        self.cluster.deliver(place, keep=self.random.random() < self.doubling)

    def tick(self) -> None:
        if node := self.any_node():
            node.core.tick()
            node.work()

    def sync(self) -> None:
        node = self.any_node()
        if node and node.pending:
            node.sync(self.random.randint(1, len(node.pending)))
            node.work()

    def propose(self) -> None:
        if leader := self.any_leader():
            for _ in range(self.random.choice((1, 1, 1, 4))):
                self.proposals += 1
                leader.core.propose(b"%d" % self.proposals)
            if self.random.random() < 0.8:
                leader.work()

    def read(self) -> None:
        if leader := self.any_leader():
            leader.core.read_index(self.cluster.properties.committed_to)
            leader.work()

    def crash(self) -> None:
        if node := self.any_node():
            node.crash(self.random.randint(0, 3), self.random.randint(0, 3))
            if self.random.random() < 0.5:
                node.start()

    def restart(self) -> None:
        down = [node for node in self.cluster.nodes.values() if not node.running]
        if down:
            self.random.choice(down).start()

    def part(self) -> None:
        nodes = list(self.cluster.nodes)
        self.random.shuffle(nodes)
        cut = self.random.randint(1, max(1, len(nodes) - 1))
        self.cluster.part(set(nodes[:cut]), set(nodes[cut:]))

    def heal(self) -> None:
        self.cluster.heal()

    def snapshot(self) -> None:
        if node := self.any_node():
            node.take_snapshot(self.random.choice((0, 2, 10)))

    def change_membership(self) -> None:
        leader = self.any_leader()
        if leader is None:
            return
        kind = self.random.choice(list(ChangeKind))
        membership = leader.core.membership
        match kind:
            case ChangeKind.ADD_LEARNER:
                if (
                    len(membership.voters) + len(membership.learners) >= 6
                    or len(self.cluster.nodes) >= NODES_MAX
                ):
                    return
                node = len(self.cluster.nodes) + 1
                self.cluster.add(node)
            case ChangeKind.PROMOTE:
                node = self.random.choice(membership.learners or membership.voters)
            case ChangeKind.REMOVE:
                if len(membership.voters) < 3:
                    return
                node = self.random.choice(membership.voters + membership.learners)
        if isinstance(leader.core.propose_membership(MembershipChange(kind, node)), Accepted):
            self.memberships += 1
        leader.work()

    def transfer(self) -> None:
        if leader := self.any_leader():
            leader.core.transfer_leadership(self.random.choice(leader.core.membership.voters))
            leader.work()

    def campaign(self) -> None:
        if node := self.any_node():
            node.core.campaign()
            node.work()

    # The end.

    def clear_up(self) -> None:
        """Everybody comes back, and the cluster has to come to rest in one state."""
        cluster = self.cluster
        cluster.heal()
        for node in cluster.nodes.values():
            if not node.running:
                node.start()
        for _ in range(CALM_ROUNDS):
            cluster.settle()
            leader = cluster.leader
            if leader is not None and isinstance(leader.core.propose(b"the last"), Accepted):
                cluster.settle(8)
                if self._is_at_rest(leader):
                    return
        require(False, f"liveness: no rest after {CALM_ROUNDS} rounds of calm")

    def _is_at_rest(self, leader: Node) -> bool:
        core = leader.core
        members = [self.cluster.nodes[node] for node in (*core.membership.voters, *core.membership.learners)]
        return leader.core.role is Role.LEADER and all(
            node.core.applied_index == core.log.last_index and node.digest == leader.digest
            for node in members
        )


def try_seed(seed: int) -> tuple[int, Outcome | str]:
    try:
        return seed, RandomRun(seed).run()
    except Exception as error:
        return seed, "".join(traceback.format_exception(error))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.raft.random_run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    failed = []
    totals = dict.fromkeys(("committed", "leaders", "reads", "installs", "memberships"), 0)
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, outcome in pool.map(try_seed, seeds, chunksize=10):
            if isinstance(outcome, str):
                failed.append(seed)
                print(f"seed {seed} FAILED\n{outcome}", flush=True)
            else:
                for name in totals:
                    totals[name] += getattr(outcome, name)
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds clean; {totals}; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
