"""A checker that finds nothing proves nothing: each planted bug is found, within a stated number of seeds or
by a directed schedule, which is one of the transcripts."""

from __future__ import annotations

import pytest

from ister.errors import InvariantBroken
from ister.raft import RaftCore
from tests.raft import planted
from tests.raft.cluster import Faults
from tests.raft.properties import PropertyBroken
from tests.raft.random_run import RandomRun
from tests.raft.transcript import FOLDER, Transcript

BY_SEEDS: list[tuple[str, type[RaftCore], Faults, int]] = [
    ("always truncate", planted.AlwaysTruncates, Faults(), 10),
    ("commit with half", planted.CommitsWithHalf, Faults(), 5),
    ("elect with half", planted.ElectsWithHalf, Faults(), 10),
    ("votes kept from an earlier campaign", planted.KeepsOldVotes, Faults(), 20),
    ("learner counted in the quorum", planted.CountsLearners, Faults(), 25),
    ("two changes at once", planted.ChangesTwoAtOnce, Faults(), 20),
    ("own write counted before its sync", planted.CountsItsOwnUnsyncedWrite, Faults(), 15),
    ("no election restriction", planted.VotesForAnybody, Faults(), 10),
    ("read without a round", planted.ReadsWithoutAsking, Faults(), 20),
    ("read before the term's first commit", planted.ReadsTooEarly, Faults(), 20),
    ("answers before the sync", RaftCore, Faults(answers_before_sync=True), 10),
    ("snapshot without membership", RaftCore, Faults(snapshot_without_membership=True), 15),
]

DIRECTED: list[tuple[str, type[RaftCore], Faults, str]] = [
    ("commit of an old term", planted.CommitsAnOldTerm, Faults(), "figure_8"),
    ("stale ack counted", planted.CountsStaleAcks, Faults(), "stale_acknowledgement"),
    ("vote not persisted", RaftCore, Faults(forgets_vote=True), "restart_and_vote_again"),
    ("two changes at once", planted.ChangesTwoAtOnce, Faults(), "one_change_at_a_time"),
    ("learner counted in the quorum", planted.CountsLearners, Faults(), "learner"),
]


@pytest.mark.parametrize(
    ("name", "core_class", "faults", "seeds_max"), BY_SEEDS, ids=[row[0] for row in BY_SEEDS]
)
def test_random_clusters_find_the_bug(
    name: str, core_class: type[RaftCore], faults: Faults, seeds_max: int
) -> None:
    for seed in range(seeds_max):
        try:
            RandomRun(seed, core_class, faults).run()
        except (PropertyBroken, InvariantBroken):
            return
    pytest.fail(f"{name}: not found in {seeds_max} seeds")


@pytest.mark.parametrize(
    ("name", "core_class", "faults", "schedule"), DIRECTED, ids=[row[0] for row in DIRECTED]
)
def test_a_directed_schedule_breaks_a_property_with_the_bug(
    name: str, core_class: type[RaftCore], faults: Faults, schedule: str
) -> None:
    text = (FOLDER / f"{schedule}.txt").read_text(encoding="utf-8")
    with pytest.raises((PropertyBroken, InvariantBroken)):
        Transcript(core_class, faults).replay(text)


def test_a_membership_that_is_not_rolled_back_shows_in_the_transcript() -> None:
    """Thesis 4.1: no property breaks at once, but the node believes in a cluster that never was."""
    text = (FOLDER / "membership_rolled_back.txt").read_text(encoding="utf-8")
    assert Transcript(planted.KeepsACutMembership).replay(text) != text
