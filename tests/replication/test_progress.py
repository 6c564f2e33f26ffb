"""What the leader knows of its followers: what it sends them, and what it may acknowledge."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ister.errors import InvariantBroken
from ister.protocol.replication import Refusal, Replicated
from ister.replication.stream.progress import Progress

OWN, B, C, D, E = 1, 2, 3, 4, 5
BASE = 100
WINDOW = 50
UID = 9


def said(end: int, refusal: Refusal = Refusal.NONE) -> Replicated:
    return Replicated(UID, end, refusal, 17 if refusal is Refusal.FENCED else 0)


def leading(*followers: int) -> Progress:
    """A leader whose followers are connected, and have nothing yet."""
    progress = Progress(OWN, (OWN, *followers), BASE)
    for member in followers:
        progress.connected(member)
        progress.answered(member, said(BASE))
    return progress


def test_an_append_is_committed_when_a_majority_has_synced_it() -> None:
    progress = leading(B, C)
    progress.sent(B, 110, 10, BASE)
    progress.sent(C, 110, 10, BASE)
    progress.own_synced(110)
    assert progress.quorum_end == BASE
    progress.answered(C, said(110))
    assert progress.quorum_end == 110


def test_the_leader_is_always_among_those_who_have_it() -> None:
    progress = leading(B, C)
    for member in (B, C):
        progress.sent(member, 110, 10, BASE)
        progress.answered(member, said(110))
    assert progress.quorum_end == BASE
    progress.own_synced(105)
    assert progress.quorum_end == 105


def test_a_lone_replica_commits_what_it_has_synced() -> None:
    progress = Progress(OWN, (OWN,), BASE)
    progress.own_synced(120)
    assert progress.quorum_end == 120


def test_the_commit_is_the_end_of_the_slowest_of_the_quorum() -> None:
    progress = leading(B, C, D, E)
    progress.own_synced(150)
    for member, end in ((B, 110), (C, 120), (D, 130)):
        progress.sent(member, 150, 50, BASE)
        progress.answered(member, said(end))
    assert progress.quorum_end == 120


def test_nothing_is_sent_before_a_follower_has_said_where_it_ends() -> None:
    progress = Progress(OWN, (OWN, B, C), BASE)
    assert progress.wants(B, 120, WINDOW) is None
    progress.connected(B)
    assert progress.wants(B, 120, WINDOW) is None
    assert not progress.is_following(B)
    assert progress.sent_end(B) == BASE
    progress.answered(B, said(BASE))
    assert progress.is_following(B)
    assert progress.wants(B, 120, WINDOW) == BASE
    assert progress.wants(B, BASE, WINDOW) is None


def test_no_more_than_a_window_is_under_way() -> None:
    progress = leading(B)
    progress.sent(B, 110, 30, BASE)
    assert progress.wants(B, 200, WINDOW) == 110
    progress.sent(B, 120, 30, BASE)
    assert progress.in_flight(B) == 60
    assert progress.wants(B, 200, WINDOW) is None
    progress.answered(B, said(110))
    assert progress.in_flight(B) == 30
    assert progress.wants(B, 200, WINDOW) == 120


def test_an_answer_in_the_middle_of_a_message_leaves_it_under_way() -> None:
    progress = leading(B)
    progress.sent(B, 110, 30, BASE)
    progress.answered(B, said(105))
    assert (progress.in_flight(B), progress.synced_end(B)) == (30, 105)


def test_after_a_broken_connection_it_goes_on_where_the_follower_says() -> None:
    progress = leading(B)
    progress.sent(B, 110, 10, BASE)
    progress.sent(B, 120, 10, BASE)
    progress.answered(B, said(110))
    progress.disconnected(B)
    assert (progress.is_connected(B), progress.in_flight(B)) == (False, 0)
    assert progress.sent_end(B) == progress.synced_end(B) == 110
    progress.answered(B, said(120))
    assert progress.synced_end(B) == 110, "an answer of a connection that is gone"
    progress.connected(B)
    progress.answered(B, said(120))
    assert progress.wants(B, 200, WINDOW) == 120
    assert progress.synced_end(B) == 120


def test_a_follower_counts_for_nothing_from_its_broken_connection_to_its_word_on_the_next() -> None:
    """P3: it may come back without what it had. What was committed with that was so before it was asked."""
    progress = leading(B, C)
    progress.sent(B, 110, 10, BASE)
    progress.answered(B, said(110))
    progress.disconnected(B)
    progress.connected(B)  # it is asked where it ends, and told of what is committed
    progress.own_synced(110)
    assert progress.quorum_end == BASE
    progress.answered(B, said(BASE))
    assert progress.quorum_end == BASE
    progress.disconnected(B)
    progress.connected(B)
    progress.answered(B, said(110))
    assert progress.quorum_end == 110


def test_a_gap_sets_it_back_to_the_followers_end() -> None:
    progress = leading(B)
    progress.sent(B, 110, 10, BASE)
    progress.sent(B, 120, 10, BASE)
    progress.answered(B, said(105, Refusal.GAP))
    assert (progress.wants(B, 120, WINDOW), progress.in_flight(B)) == (105, 0)
    assert progress.synced_end(B) == 105
    assert progress.refusal(B) is Refusal.NONE


def test_what_turns_out_to_be_synced_is_not_sent_again() -> None:
    progress = leading(B)
    progress.sent(B, 110, 10, BASE)
    progress.answered(B, said(BASE, Refusal.GAP))
    progress.answered(B, said(110))
    assert progress.wants(B, 120, WINDOW) == 110


def test_a_follower_that_lost_what_it_had_counts_for_less_but_nothing_is_uncommitted() -> None:
    progress = leading(B, C)
    progress.own_synced(110)
    progress.sent(B, 110, 10, BASE)
    progress.answered(B, said(110))
    progress.disconnected(B)
    progress.connected(B)
    progress.answered(B, said(103))
    assert (progress.synced_end(B), progress.wants(B, 110, WINDOW)) == (103, 103)
    assert progress.quorum_end == 110


@pytest.mark.parametrize("refusal", [Refusal.FENCED, Refusal.SEALED, Refusal.UNKNOWN, Refusal.STORAGE])
def test_a_follower_that_refuses_is_sent_nothing_and_counts_for_nothing_new(refusal: Refusal) -> None:
    """F2: a fenced replica's answer never counts as an acknowledgement."""
    progress = leading(B, C)
    progress.sent(B, 110, 10, BASE)
    progress.answered(B, said(110))
    progress.answered(B, said(110, refusal))
    progress.own_synced(110)
    assert progress.quorum_end == BASE
    assert progress.wants(B, 200, WINDOW) is None
    assert not progress.is_following(B)
    assert progress.refusal(B) is refusal
    assert progress.is_fenced == (refusal is Refusal.FENCED)
    with pytest.raises(InvariantBroken):
        progress.sent(B, 120, 10, BASE)


@pytest.mark.parametrize("refusal", [Refusal.UNKNOWN, Refusal.STORAGE])
def test_a_follower_that_was_restarted_is_asked_again(refusal: Refusal) -> None:
    progress = leading(B)
    progress.answered(B, said(BASE, refusal))
    progress.connected(B)
    progress.answered(B, said(BASE))
    assert progress.wants(B, 110, WINDOW) == BASE


@pytest.mark.parametrize("refusal", [Refusal.FENCED, Refusal.SEALED])
def test_a_fence_is_for_good(refusal: Refusal) -> None:
    progress = leading(B)
    progress.answered(B, said(BASE, refusal))
    progress.connected(B)
    progress.answered(B, said(BASE))
    assert progress.refusal(B) is refusal
    assert progress.wants(B, 110, WINDOW) is None


def test_a_follower_cannot_have_what_it_was_not_sent() -> None:
    """A3: one process writes all of a segment. What another has written is not to be counted."""
    progress = leading(B)
    progress.sent(B, 110, 10, BASE)
    with pytest.raises(InvariantBroken, match="synced up to 111, but was sent 100 to 110"):
        progress.answered(B, said(111))
    with pytest.raises(InvariantBroken):
        progress.answered(B, said(BASE - 1))


def test_what_was_sent_on_an_earlier_connection_may_be_there() -> None:
    progress = leading(B)
    progress.sent(B, 110, 10, BASE)
    progress.disconnected(B)
    progress.connected(B)
    progress.answered(B, said(110))
    assert progress.synced_end(B) == 110


def test_a_follower_is_told_the_commit_with_frames_or_without() -> None:
    progress = leading(B, C)
    assert progress.known_commit(B) == BASE
    progress.sent(B, 110, 10, 105)
    assert progress.known_commit(B) == 105
    progress.told(B, 107)
    assert progress.known_commit(B) == 107
    progress.connected(B)
    assert progress.known_commit(B) == BASE, "it may have been restarted"


def test_the_leaders_own_end_does_not_go_back() -> None:
    progress = leading(B)
    progress.own_synced(110)
    with pytest.raises(InvariantBroken):
        progress.own_synced(109)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("own", "connect", "cut", "send", "send", "answer", "answer", "gap", "refuse")),
        st.integers(0, 3),
        st.integers(1, 20),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5), ACTIONS)
def test_the_commit_is_an_end_that_a_quorum_has_reported(
    count: int, actions: list[tuple[str, int, int]]
) -> None:
    """Whatever happens: it never goes back, never past the leader, and always to an end that was reported."""
    replicas = tuple(range(1, count + 1))
    progress = Progress(OWN, replicas, BASE)
    reported: dict[int, set[int]] = {member: {BASE} for member in replicas}
    own_end, sent_max, commit = BASE, dict.fromkeys(replicas, BASE), BASE
    for action, which, number in actions:
        member = replicas[1 + which % (count - 1)] if count > 1 else OWN
        if action == "own" or member == OWN:
            own_end += number
            progress.own_synced(own_end)
            reported[OWN].add(own_end)
        elif action == "connect":
            progress.connected(member)
        elif action == "cut":
            progress.disconnected(member)
        elif action == "send":
            start = progress.wants(member, own_end + 10, WINDOW)
            if start is not None:
                progress.sent(member, start + number, number, progress.quorum_end)
                sent_max[member] = max(sent_max[member], start + number)
        elif action == "refuse":
            progress.answered(member, said(BASE, (Refusal.STORAGE, Refusal.UNKNOWN)[which % 2]))
        else:
            end = min(sent_max[member], max(BASE, sent_max[member] - number + 5))
            reported[member].add(end)
            progress.answered(member, said(end, Refusal.GAP if action == "gap" else Refusal.NONE))
        assert commit <= progress.quorum_end <= own_end
        commit = progress.quorum_end
        assert any(commit in ends for ends in reported.values())
        assert sum(max(ends) >= commit for ends in reported.values()) >= progress.quorum
        for follower in replicas[1:]:
            assert progress.synced_end(follower) <= progress.sent_end(follower) <= sent_max[follower]
            assert progress.in_flight(follower) >= 0
