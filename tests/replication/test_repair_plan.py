"""C3, C5: what is to become of a sealed segment's list of replicas: the plan by itself."""

from __future__ import annotations

from collections.abc import Collection

from ister.metadata.commands import Reported
from ister.metadata.state import SegmentState
from ister.metadata.topics import ToldCopy
from ister.replication.copies.plan import Change, Members, change_for


def members(
    alive: list[int],
    *,
    lost: Collection[int] = (),
    silent: Collection[int] = (),
    drained: Collection[int] = (),
) -> Members:
    return Members({*alive, *lost, *silent}, alive, lost, frozenset(drained))


def on(replicas: list[int], whole: Collection[int] | None = None, end: int = 10) -> SegmentState:
    segment = SegmentState(1, 5, 0, replicas[0], replicas, 0, [], 0, end_offset=end)
    segment.whole = [member for member in replicas if whole is None or member in whole]
    return segment


def test_nothing_is_changed_while_all_replicas_are_there() -> None:
    assert change_for(on([1, 2, 3]), 3, members([1, 2, 3, 4]), {}) is None


def test_a_replica_that_is_silent_for_a_moment_is_waited_for() -> None:
    assert change_for(on([1, 2, 3]), 3, members([1, 2, 4], silent={3}), {}) is None


def test_a_lost_replica_makes_way_for_the_node_that_has_least() -> None:
    change = change_for(on([1, 2, 3]), 3, members([1, 2, 4, 5], lost={3}), {4: 7, 5: 2})
    assert change == Change([1, 2, 3], [1, 2, 5], target=5)


def test_c3_who_is_lost_stays_in_the_list_until_those_who_stay_are_enough() -> None:
    """1 and 3 acknowledged it, 2 is short. What comes has nothing until it says so."""
    change = change_for(on([1, 2, 3], whole=[1, 3]), 3, members([1, 2, 4], lost={3}), {})
    assert change == Change([1, 2, 3], [1, 2, 3, 4], target=4)
    assert change_for(on([1, 2, 3, 4], whole=[1, 3]), 3, members([1, 2, 4], lost={3}), {}) is None
    change = change_for(on([1, 2, 3, 4], whole=[1, 3, 4]), 3, members([1, 2, 4], lost={3}), {})
    assert change == Change([1, 2, 3, 4], [1, 2, 4])


def test_c3_one_that_is_short_for_good_keeps_none_of_the_others_from_being_counted() -> None:
    """As with a full disk: 2 never gets it done, and says so or not."""
    segment = on([1, 2, 3, 4], whole=[1, 3, 4])
    assert change_for(segment, 3, members([1, 2, 3, 4]), {}) == Change([1, 2, 3, 4], [1, 3, 4])
    segment.told = [ToldCopy(2, Reported.SHORT, 4)]
    assert change_for(segment, 3, members([1, 2, 3, 4]), {}) == Change([1, 2, 3, 4], [1, 3, 4])


def test_a_node_that_did_not_manage_is_chosen_last() -> None:
    change = change_for(on([1, 2, 3]), 3, members([1, 2, 4, 5], lost={3}), {4: 7, 5: 2}, avoided={5})
    assert change is not None and change.target == 4


def test_nobody_is_dropped_where_nobody_can_come() -> None:
    assert change_for(on([1, 2, 3]), 3, members([1, 2], lost={3}), {}) is None


def test_those_whose_disk_is_gone_go_first() -> None:
    change = change_for(on([1, 2, 3]), 3, Members({1, 2, 4}, [1, 4], {2}), {})
    assert change == Change([1, 2, 3], [1, 2, 4], target=4)


def test_a_list_that_is_too_short_grows() -> None:
    assert change_for(on([1]), 3, members([1, 2, 3]), {}) == Change([1], [1, 2], target=2)


def test_a_disk_that_never_comes_back_leaves_the_list_when_the_others_are_all_there_can_be() -> None:
    there = Members({1, 2}, [1, 2], ())
    assert change_for(on([1, 2, 3]), 3, there, {}) == Change([1, 2, 3], [1, 2])
    assert change_for(on([1, 2, 3], whole=[1, 3]), 3, there, {}) is None, "2 may end short"


def test_of_a_long_list_all_who_are_lost_go_once_enough_of_the_others_have_it() -> None:
    """A seal with substitutes has a longer one, and those who are silent may be the ones that are whole."""
    there = members([4, 5, 6, 7, 8], lost={1, 2, 3})
    change = change_for(on([1, 2, 3, 4, 5, 6, 7], whole=[4, 5, 6]), 5, there, {})
    assert change == Change([1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 8], target=8)
    change = change_for(on([1, 2, 3, 4, 5, 6, 7], whole=[1, 2, 3, 4]), 5, there, {})
    assert change is not None and change.replicas[-1] == 8 and {1, 2, 3} & {*change.replicas}


def test_a_list_that_is_too_long_is_cut_whoever_answers_if_those_that_stay_have_it() -> None:
    change = change_for(on([1, 2, 3, 4]), 3, members([1, 3, 4], silent={2}), {})
    assert change == Change([1, 2, 3, 4], [1, 3, 4])
    assert change_for(on([1, 2, 3, 4], whole=[2, 3]), 3, members([1, 3, 4], silent={2}), {}) == Change(
        [1, 2, 3, 4], [1, 2, 3]
    )


def test_nobody_leaves_while_no_other_can_be_read() -> None:
    """2 has it too, and is lost. Without 1 what comes would have nobody to copy from."""
    change = change_for(on([1, 2]), 2, members([1, 3], lost={2}, drained={1}), {})
    assert change == Change([1, 2], [1, 3], target=3)


def test_what_a_drained_node_has_goes_when_another_has_it() -> None:
    change = change_for(on([1]), 1, members([1, 2, 3], drained={1}), {3: 1})
    assert change == Change([1], [1, 2], target=2)
    assert change_for(on([1, 2], whole=[1]), 1, members([1, 2, 3], drained={1}), {}) is None
    assert change_for(on([1, 2]), 1, members([1, 2, 3], drained={1}), {}) == Change([1, 2], [2])


def test_d1_a_drain_waits_for_a_node_that_is_down_rather_than_leave_fewer_copies() -> None:
    there = members([1, 2, 4], silent={3}, drained={1})
    assert change_for(on([1, 2, 3]), 3, there, {}) == Change([1, 2, 3], [1, 2, 3, 4], target=4)
    assert change_for(on([1, 2]), 2, members([1, 2], silent={3}, drained={1}), {}) is None
    assert change_for(on([1, 2]), 2, members([1, 2], drained={1}), {}) == Change([1, 2], [2])


def test_of_nothing_nothing_is_copied() -> None:
    change = change_for(on([1], whole=[], end=0), 1, members([1, 2], drained={1}), {})
    assert change == Change([1], [2])
