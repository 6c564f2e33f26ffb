"""The core's rules one by one, each with the section of the paper or thesis, or the rule, that it keeps."""

from __future__ import annotations

from random import Random

import pytest

from ister.errors import BadRequest, ConfigError, InvariantBroken, MetadataContradicts, UnsupportedVersion
from ister.raft import (
    Accepted,
    AppendAnswer,
    AppendRequest,
    ChangeKind,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Membership,
    MembershipChange,
    PreVoteRequest,
    ProgressState,
    RaftConfig,
    RaftCore,
    Refusal,
    Refused,
    Role,
    SnapshotChunk,
    SnapshotMetadata,
    StoredState,
    VoteAnswer,
    VoteRequest,
    bootstrap_state,
    decode_message,
    encode_membership,
    encode_message,
)
from tests.raft.cluster import Cluster
from tests.raft.memory_storage import MemorySnapshot


def cluster_with_leader(*voters: int, **settings: int) -> Cluster:
    """Node 1 leads, and its first entry is committed everywhere."""
    cluster = Cluster(voters or (1, 2, 3), Random(3), settings=settings)
    cluster.nodes[1].core.campaign()
    cluster.nodes[1].work()
    cluster.drain()
    assert cluster.nodes[1].core.role is Role.LEADER
    return cluster


def reason(answer: object) -> Refusal:
    assert isinstance(answer, Refused)
    return answer.reason


# Directories that forgot what they had promised.


def test_a_leader_whose_follower_has_committed_more_says_that_they_contradict() -> None:
    leader = cluster_with_leader().nodes[1].core
    with pytest.raises(MetadataContradicts, match="a follower has 99 committed entries"):
        leader.step(AppendAnswer(2, 1, leader.term, 99))


def test_a_follower_that_had_more_once_says_that_it_contradicts_its_leader() -> None:
    cluster = cluster_with_leader()
    follower = cluster.nodes[2].core
    with pytest.raises(MetadataContradicts, match="99 entries were durable here once"):
        follower.step(Heartbeat(1, 2, follower.term, 99, 7))


# Durability (R1).


def test_a_vote_waits_for_the_disk() -> None:
    core = RaftCore(RaftConfig(node_id=3), bootstrap_state([1, 2, 3]), Random(1))
    core.step(VoteRequest(1, 3, 2, 1, 1))
    ready = core.ready()
    assert ready is not None and ready.must_sync
    assert ready.hard_state == HardState(2, 1, 1)
    assert ready.messages == ()
    assert ready.messages_after == (VoteAnswer(3, 1, 2, True),)


def test_a_candidate_counts_its_own_vote_when_it_is_durable() -> None:
    core = RaftCore(RaftConfig(node_id=1), bootstrap_state([1]), Random(1))
    core.campaign()
    ready = core.ready()
    assert ready is not None
    before = core.role
    core.persisted(ready.number)
    assert (before, core.role) == (Role.CANDIDATE, Role.LEADER)


def test_an_acknowledgement_of_entries_waits_for_the_disk_a_refusal_does_not() -> None:
    core = RaftCore(RaftConfig(node_id=3), bootstrap_state([1, 2, 3]), Random(1))
    core.step(AppendRequest(1, 3, 1, 1, 1, (Entry(1, 2),), 1))
    core.step(AppendRequest(1, 3, 1, 9, 1, (), 1))
    ready = core.ready()
    assert ready is not None
    assert ready.messages == (AppendAnswer(3, 1, 1, 9, True, 0, 3),)
    assert ready.messages_after == (AppendAnswer(3, 1, 1, 2),)


def test_an_answer_in_a_term_that_is_not_durable_yet_waits() -> None:
    core = RaftCore(RaftConfig(node_id=3), bootstrap_state([1, 2, 3]), Random(1))
    core.step(Heartbeat(1, 3, 5, 0, 1))
    ready = core.ready()
    assert ready is not None and ready.messages == ()
    assert ready.messages_after == (HeartbeatAnswer(3, 1, 5, 1),)


def test_writes_are_acknowledged_in_order() -> None:
    core = RaftCore(RaftConfig(node_id=1), bootstrap_state([1]), Random(1))
    core.campaign()
    ready = core.ready()
    assert ready is not None
    core.persisted(ready.number)
    with pytest.raises(InvariantBroken):
        core.persisted(ready.number)
    with pytest.raises(InvariantBroken):
        core.persisted(ready.number + 5)


def test_a_restart_goes_on_from_the_snapshot_and_drops_what_it_contradicts() -> None:
    """A crash between installing a snapshot and cutting the log (storage contract)."""
    snapshot = MemorySnapshot(SnapshotMetadata(3, 2, Membership((1, 2, 3), (4,))), b"state")
    log = [*bootstrap_state([1, 2, 3]).entries, Entry(2, 2), Entry(2, 3), Entry(2, 4)]
    core = RaftCore(RaftConfig(node_id=1), StoredState(HardState(2, 0, 4), log, snapshot), Random(1))
    assert (core.log.base_index, core.log.last_index, core.log.commit) == (3, 4, 4)
    assert core.membership == Membership((1, 2, 3), (4,))
    other = [*log[:2], Entry(3, 3), Entry(3, 4)]
    core = RaftCore(RaftConfig(node_id=1), StoredState(HardState(3, 0, 1), other, snapshot), Random(1))
    assert (core.log.base_index, core.log.last_index, core.log.commit) == (3, 3, 3)


# Terms and messages (5.1).


def test_a_message_of_an_older_term_changes_nothing_and_its_sender_is_told() -> None:
    cluster = cluster_with_leader()
    follower = cluster.nodes[2].core
    before = follower.status()
    follower.step(AppendRequest(3, 2, 1, 0, 0, (Entry(1, 1),), 9))
    ready = follower.ready()
    assert ready is not None and ready.messages == (HeartbeatAnswer(2, 3, 2, 0),)
    assert follower.status() == before


def test_messages_for_others_and_answers_from_strangers_are_ignored() -> None:
    leader = cluster_with_leader().nodes[1].core
    before = leader.status()
    leader.step(AppendAnswer(9, 1, 2, 2))
    leader.step(HeartbeatAnswer(9, 1, 2, 1))
    leader.step(AppendAnswer(2, 3, 9, 2))
    assert leader.status() == before and leader.ready() is None


def test_a_stranger_gets_a_vote_since_the_voter_may_not_know_its_membership_yet() -> None:
    """Thesis 4.2: a node answers requests whatever its own membership says."""
    core = RaftCore(RaftConfig(node_id=3), bootstrap_state([1, 2, 3]), Random(1))
    core.step(VoteRequest(7, 3, 2, 1, 1))
    ready = core.ready()
    assert ready is not None and ready.messages_after == (VoteAnswer(3, 7, 2, True),)


def test_two_leaders_in_one_term_stop_the_node() -> None:
    leader = cluster_with_leader().nodes[1].core
    with pytest.raises(InvariantBroken, match="both lead term 2"):
        leader.step(Heartbeat(2, 1, 2, 0, 1))


def test_a_follower_that_hears_its_leader_ignores_questions_and_candidates() -> None:
    """Thesis 4.2.3."""
    follower = cluster_with_leader().nodes[2].core
    follower.step(PreVoteRequest(3, 2, 3, 9, 2))
    follower.step(VoteRequest(3, 2, 9, 9, 8))
    assert follower.term == 2 and follower.ready() is None


# Elections (5.2, 5.4.1, 9.6).


def test_a_node_without_a_membership_never_campaigns() -> None:
    """I1: nobody bootstraps by itself."""
    core = RaftCore(RaftConfig(node_id=4), StoredState(HardState()), Random(1))
    for _ in range(200):
        core.tick()
    core.campaign()
    assert core.role is Role.FOLLOWER and core.ready() is None


def test_election_timeouts_are_drawn_anew_within_their_bounds() -> None:
    core = RaftCore(RaftConfig(node_id=1), bootstrap_state([1, 2, 3]), Random(1))
    drawn = set()
    for _ in range(300):
        core.campaign()
        drawn.add(core.election_timeout)
    assert drawn == set(range(10, 21))


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"), [(3, 2, True), (2, 3, True), (2, 2, False), (9, 1, False)]
)
def test_only_a_candidate_with_as_complete_a_log_gets_a_vote(
    last_index: int, last_term: int, granted: bool
) -> None:
    """5.4.1."""
    log = [*bootstrap_state([1, 2, 3]).entries, Entry(2, 2), Entry(2, 3)]
    core = RaftCore(RaftConfig(node_id=3), StoredState(HardState(2, 0, 1), log), Random(1))
    core.step(VoteRequest(1, 3, 4, last_index, last_term))
    ready = core.ready()
    assert ready is not None
    assert (*ready.messages, *ready.messages_after) == (VoteAnswer(3, 1, 4, granted),)


# Proposals and flow control.


def test_proposals_are_refused_with_a_reason_and_the_leader() -> None:
    cluster = cluster_with_leader(1, 2, 3, max_uncommitted_bytes=200)
    assert cluster.nodes[2].core.propose(b"x") == Refused(Refusal.NOT_LEADER, 1)
    leader = cluster.nodes[1].core
    assert isinstance(leader.propose(bytes(300)), Accepted)  # a large one alone is taken
    assert reason(leader.propose(b"x")) is Refusal.TOO_MUCH_UNCOMMITTED
    cluster.nodes[1].work()
    cluster.drain()
    assert leader.uncommitted_bytes == 0
    assert isinstance(leader.propose(b"x"), Accepted)
    assert leader.transfer_leadership(2) is None
    assert reason(leader.propose(b"x")) is Refusal.TRANSFERRING


def test_proposals_that_come_together_travel_together() -> None:
    leader = cluster_with_leader().nodes[1].core
    for number in range(50):
        leader.propose(b"%d" % number)
    ready = leader.ready()
    assert ready is not None and len(ready.entries) == 50
    assert [len(message.entries) for message in ready.messages if isinstance(message, AppendRequest)] == [
        50,
        50,
    ]


def test_appends_in_flight_are_bounded_and_go_on_with_the_answers() -> None:
    cluster = cluster_with_leader(1, 2, 3, max_inflight_messages=3, max_append_bytes=1)
    leader = cluster.nodes[1].core
    for _ in range(10):
        leader.propose(b"x")
    ready = leader.ready()
    assert ready is not None
    sent = [message for message in ready.messages if isinstance(message, AppendRequest) and message.to == 2]
    assert len(sent) == 3
    leader.step(AppendAnswer(2, 1, 2, sent[1].prev_index + 1))
    ready = leader.ready()
    assert ready is not None
    assert len([message for message in ready.messages if message.to == 2]) == 2


def test_appends_in_flight_are_bounded_in_bytes() -> None:
    cluster = cluster_with_leader(1, 2, 3, max_inflight_bytes=300, max_append_bytes=1)
    leader = cluster.nodes[1].core
    for _ in range(10):
        leader.propose(bytes(76))
    ready = leader.ready()
    assert ready is not None
    assert len([message for message in ready.messages if message.to == 2]) == 3


def test_a_lost_append_is_found_by_the_next_heartbeat() -> None:
    cluster = cluster_with_leader()
    leader = cluster.nodes[1]
    leader.core.propose(b"x")
    leader.work()
    cluster.bag.clear()
    cluster.settle(6)
    assert all(node.core.applied_index == 3 for node in cluster.nodes.values())
    assert {peer.state for peer in leader.core.status().peers} == {ProgressState.REPLICATE}


# Membership (thesis 4; R1, R2).


def change(kind: ChangeKind, node: int) -> MembershipChange:
    return MembershipChange(kind, node)


def test_a_change_waits_for_the_terms_first_commit() -> None:
    """R1: the bug of the single-server change, found in 2015, comes from not waiting."""
    cluster = Cluster((1, 2, 3), Random(1))
    core = cluster.nodes[1].core
    core.campaign()
    cluster.nodes[1].work()
    while core.role is not Role.LEADER:
        for node in cluster.nodes.values():
            node.sync()
            node.work()
        cluster.deliver(0)
    assert reason(core.propose_membership(change(ChangeKind.REMOVE, 3))) is Refusal.NOTHING_COMMITTED_YET
    assert reason(core.read_index("r")) is Refusal.NOTHING_COMMITTED_YET


@pytest.mark.parametrize(
    ("kind", "node", "expected"),
    [
        (ChangeKind.ADD_LEARNER, 2, Refusal.ALREADY_MEMBER),
        (ChangeKind.PROMOTE, 2, Refusal.NOT_A_LEARNER),
        (ChangeKind.PROMOTE, 9, Refusal.NOT_A_LEARNER),
        (ChangeKind.REMOVE, 9, Refusal.NOT_A_MEMBER),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(kind: ChangeKind, node: int, expected: Refusal) -> None:
    leader = cluster_with_leader().nodes[1].core
    assert reason(leader.propose_membership(change(kind, node))) is expected


def test_a_learner_is_promoted_only_within_a_thousand_entries() -> None:
    """R2."""
    cluster = cluster_with_leader(1)
    leader = cluster.nodes[1]
    leader.core.propose_membership(change(ChangeKind.ADD_LEARNER, 2))
    leader.work()
    for _ in range(1_200):
        leader.core.propose(b"x")
    leader.work()
    leader.sync()
    leader.work()
    leader.sync()
    assert reason(leader.core.propose_membership(change(ChangeKind.PROMOTE, 2))) is Refusal.LEARNER_BEHIND
    cluster.add(2)
    cluster.settle(6)
    assert isinstance(leader.core.propose_membership(change(ChangeKind.PROMOTE, 2)), Accepted)


def test_a_learner_that_fell_silent_is_no_longer_counted_as_active() -> None:
    """R2: it would be promoted, and a group of two with a dead member stands still."""
    cluster = cluster_with_leader(1)
    leader = cluster.nodes[1]
    leader.core.propose_membership(change(ChangeKind.ADD_LEARNER, 2))
    leader.work()
    leader.sync()
    for _ in range(3 * leader.core.config.election_ticks_max):
        leader.core.tick()
    (learner,) = leader.core.status().peers
    assert leader.core.role is Role.LEADER and not learner.recently_active


def test_a_snapshot_describes_the_membership_at_its_index_not_the_newest() -> None:
    """R1."""
    cluster = cluster_with_leader()
    leader = cluster.nodes[1]
    index = leader.core.applied_index
    cluster.part({1}, {2}, {3})
    leader.core.propose_membership(change(ChangeKind.REMOVE, 3))
    leader.work()
    assert leader.core.membership == Membership((1, 2))
    assert leader.core.describe_snapshot(index).membership == Membership((1, 2, 3))


# Snapshots.


def test_chunks_of_two_leaders_never_mix() -> None:
    core = RaftCore(RaftConfig(node_id=3), bootstrap_state([1, 2, 3]), Random(1))
    metadata = SnapshotMetadata(9, 2, Membership((1, 2, 3)))
    core.step(SnapshotChunk(1, 3, 2, metadata, 0, b"from 1", False))
    core.step(SnapshotChunk(2, 3, 3, metadata, 6, b"from 2", True))
    ready = core.ready()
    assert ready is not None and ready.snapshot is None
    assert [chunk.data for chunk in ready.chunks] == [b"from 1"]


def test_a_snapshot_of_what_the_log_has_already_is_not_installed() -> None:
    log = [*bootstrap_state([1, 2, 3]).entries, Entry(2, 2), Entry(2, 3)]
    core = RaftCore(RaftConfig(node_id=3), StoredState(HardState(2, 0, 1), log), Random(1))
    core.step(SnapshotChunk(1, 3, 2, SnapshotMetadata(2, 2, Membership((1, 2, 3))), 0, b"s", True))
    ready = core.ready()
    assert ready is not None and ready.snapshot is None and ready.chunks == ()
    assert core.log.commit == 2 and core.log.last_index == 3


def test_only_what_a_durable_snapshot_holds_is_compacted() -> None:
    leader = cluster_with_leader().nodes[1].core
    with pytest.raises(InvariantBroken, match="newest snapshot is at 0"):
        leader.compact(1)


# Transfer (3.10) and reads (6.4).


def test_a_transfer_is_refused_to_oneself_to_a_stranger_and_while_another_is_under_way() -> None:
    leader = cluster_with_leader().nodes[1].core
    assert reason(leader.transfer_leadership(1)) is Refusal.ALREADY_LEADER
    assert reason(leader.transfer_leadership(9)) is Refusal.NOT_A_VOTER
    assert leader.transfer_leadership(2) is None
    assert reason(leader.transfer_leadership(3)) is Refusal.TRANSFERRING


def test_pending_reads_are_bounded() -> None:
    leader = cluster_with_leader(1, 2, 3, max_pending_reads=2).nodes[1].core
    assert leader.read_index("a") is None
    assert leader.read_index("b") is None
    assert reason(leader.read_index("c")) is Refusal.TOO_MANY_READS


def test_a_single_voter_answers_a_read_at_once() -> None:
    leader = cluster_with_leader(1).nodes[1].core
    leader.read_index("r")
    ready = leader.ready()
    assert ready is not None and [(read.context, read.index) for read in ready.reads] == [("r", 2)]


# Messages as bytes.


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest(1, 2, 3, 4, 5, True),
        AppendRequest(1, 2, 3, 4, 5, (Entry(3, 5, EntryKind.NOOP), Entry(3, 6, data=b"\x00x")), 4),
        SnapshotChunk(1, 2, 3, SnapshotMetadata(9, 2, Membership((1, 2), (3,))), 10, b"bytes", True),
        AppendAnswer(1, 2, 3, 4, True, 5, 6),
    ],
)
def test_a_message_survives_the_wire(message: AppendRequest) -> None:
    assert decode_message(encode_message(message)) == message
    with pytest.raises(BadRequest):
        decode_message(encode_message(message)[:-1])


def test_a_message_of_another_version_or_of_nonsense_is_refused_with_a_typed_error() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_message(b"\x02" + encode_message(VoteAnswer(1, 2, 3, True))[1:])
    for nonsense in (b"", b"\x01", b"\x01\xff", b"\x01" + encode_membership(Membership((1,)))):
        with pytest.raises(BadRequest):
            decode_message(nonsense)


def test_settings_that_can_not_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="node_id is 0"):
        RaftConfig(node_id=0)
    with pytest.raises(ConfigError, match="does not hold for 10, 10, 20"):
        RaftConfig(node_id=1, heartbeat_ticks=10)
