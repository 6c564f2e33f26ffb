"""State x input: any message in any state is taken, ignored, or stops the node with a typed error.

Peers are checked before their messages get here (I1, I2), so nonsense should not; if it does, it must not
leave through any other door than an `IsterError`, and what was committed must still be there.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from ister.errors import IsterError
from ister.raft import (
    AnyMessage,
    AppendAnswer,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Membership,
    PreVoteAnswer,
    PreVoteRequest,
    RaftCore,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMetadata,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
    encode_membership,
)
from tests.raft.random_run import RandomRun

MESSAGES_PER_STATE = 200


def any_message(random: Random, core: RaftCore) -> AnyMessage:
    """A message that could come from a confused peer: values around those that matter."""

    def near(value: int) -> int:
        return max(0, value + random.randint(-2, 2))

    head = (random.randint(1, 4), core.id, near(core.term))
    index, term = near(core.log.last_index), near(core.log.last_term)
    members = Membership(tuple(sorted(random.sample(range(1, 6), 3))))
    kinds = [
        Entry(head[2], index + 1),
        Entry(head[2], index + 1, EntryKind.MEMBERSHIP, random.choice((b"?", encode_membership(members)))),
    ]
    makers: list[Callable[[], AnyMessage]] = [
        lambda: PreVoteRequest(*head, index, term),
        lambda: PreVoteAnswer(*head, random.random() < 0.5),
        lambda: VoteRequest(*head, index, term, random.random() < 0.5),
        lambda: VoteAnswer(*head, random.random() < 0.5),
        lambda: AppendRequest(*head, index, term, (random.choice(kinds),), near(core.log.commit)),
        lambda: AppendAnswer(*head, index, random.random() < 0.5, term, near(index)),
        lambda: Heartbeat(*head, near(core.log.commit), 1),
        lambda: HeartbeatAnswer(*head, near(core.round)),
        lambda: SnapshotChunk(*head, SnapshotMetadata(near(index), term, members), near(0), b"x", True),
        lambda: SnapshotAnswer(*head, index, random.randint(-5, 500)),
        lambda: TimeoutNow(*head),
    ]
    return random.choice(makers)()


@pytest.mark.parametrize("seed", range(12))
def test_any_message_is_taken_ignored_or_stops_the_node(seed: int) -> None:
    run = RandomRun(seed)
    for action in run.random.choices(run.actions, run.weights, k=300 + 100 * seed):
        action()
    taken = 0
    for node in run.cluster.running:
        core, random = node.core, Random(seed)
        for _ in range(MESSAGES_PER_STATE):
            commit = core.log.commit
            try:
                core.step(any_message(random, core))
                core.ready()
            except IsterError:
                break
            assert core.log.commit >= commit
            taken += 1
    assert taken >= 20
