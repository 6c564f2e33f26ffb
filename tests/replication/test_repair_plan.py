"""What is to become of a sealed segment's list of replicas: the plan by itself."""

from __future__ import annotations

from collections.abc import Collection

from ister.replication.copies.repair import Change, Standing, change_for


def standing(alive: list[int], *, lost: Collection[int] = (), silent: Collection[int] = ()) -> Standing:
    return Standing({*alive, *lost, *silent}, alive, lost)


def test_nothing_is_changed_while_all_replicas_are_there() -> None:
    assert change_for([1, 2, 3], 3, standing([1, 2, 3, 4]), {}) is None


def test_a_replica_that_is_silent_for_a_moment_is_waited_for() -> None:
    assert change_for([1, 2, 3], 3, standing([1, 2, 4], silent={3}), {}) is None


def test_a_lost_replica_makes_way_for_the_node_that_has_least() -> None:
    change = change_for([1, 2, 3], 3, standing([1, 2, 4, 5], lost={3}), {4: 7, 5: 2})
    assert change == Change([1, 2, 3], [1, 2, 5], target=5)


def test_a_node_that_did_not_manage_is_chosen_last() -> None:
    change = change_for([1, 2, 3], 3, standing([1, 2, 4, 5], lost={3}), {4: 7, 5: 2}, avoided={5})
    assert change is not None and change.target == 4


def test_nobody_is_dropped_where_nobody_can_come() -> None:
    assert change_for([1, 2, 3], 3, standing([1, 2], lost={3}), {}) is None


def test_one_replica_is_dropped_for_one_that_comes_and_those_whose_disk_is_gone_first() -> None:
    change = change_for([1, 2, 3], 3, Standing({1, 2, 4}, [1, 4], {2}), {})
    assert change == Change([1, 2, 3], [1, 2, 4], target=4)


def test_a_list_that_is_too_short_grows() -> None:
    assert change_for([1], 3, standing([1, 2, 3]), {}) == Change([1], [1, 2], target=2)


def test_a_disk_that_never_comes_back_leaves_the_list_when_the_others_are_all_there_can_be() -> None:
    change = change_for([1, 2, 3], 3, Standing({1, 2}, [1, 2], ()), {})
    assert change == Change([1, 2, 3], [1, 2], confirmed_by=(1, 2)), "who stays may end short"
    assert change_for([1, 2, 3], 3, Standing({1, 2}, [1], ()), {}) is None


def test_one_is_dropped_for_one_that_comes_however_long_the_list() -> None:
    """A seal with substitutes has a longer one, and those who are silent may be the ones that are whole."""
    change = change_for([1, 2, 3, 4, 5, 6, 7], 5, standing([4, 5, 6, 7, 8], lost={1, 2, 3}), {})
    assert change == Change([1, 2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7, 8], target=8)


def test_where_too_few_are_known_to_be_whole_all_are_asked() -> None:
    change = change_for([1, 2, 3], 3, standing([1, 2, 3]), {}, is_doubtful=True)
    assert change == Change([1, 2, 3], [1, 2, 3], confirmed_by=(1, 2, 3))
    assert change_for([1, 2, 3], 3, standing([1], silent={2, 3}), {}, is_doubtful=True) is None


def test_one_that_does_not_answer_does_not_keep_the_others_in_doubt() -> None:
    """Its disk may be lost, and is not let go of before."""
    change = change_for([1, 2, 3], 3, standing([1, 2], silent={3}), {}, is_doubtful=True)
    assert change == Change([1, 2, 3], [1, 2, 3], confirmed_by=(1, 2))
    assert change_for([1, 2, 3], 3, standing([1, 2], lost={3}), {}, is_doubtful=True) == change
    assert change_for([1, 2], 2, standing([1], silent={2}), {}, is_doubtful=True) is None


def test_a_list_that_is_too_long_is_cut_once_those_that_stay_say_that_they_are_whole() -> None:
    change = change_for([1, 2, 3, 4], 3, standing([1, 3, 4], silent={2}), {})
    assert change == Change([1, 2, 3, 4], [1, 3, 4], confirmed_by=(1, 3, 4))
    assert change_for([1, 2, 3, 4], 3, standing([1, 3], silent={2, 4}), {}) is None
