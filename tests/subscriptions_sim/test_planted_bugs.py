"""Bugs put into the subscriptions, which the world of consumers, or a schedule, has to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from ister.broker.subscriptions import owned
from ister.broker.subscriptions.dispatch import Dispatcher
from ister.broker.subscriptions.key_order import KeyOrder
from ister.metadata import subscriptions as metadata
from ister.metadata.commands import FlushRow
from ister.metadata.topics import TopicState
from ister.offset_ranges import Acknowledged
from tests.planting import is_found, shows
from tests.subscriptions import test_key_shared, test_moving
from tests.subscriptions_sim.scenario import SubscriptionRun

SEEDS_TO_FIND = 12

Plant = Callable[[], AbstractContextManager[None]]


@contextmanager
def _flush_if(holds: Callable[[Any, int, FlushRow], bool]) -> Iterator[None]:
    def flush(topic: TopicState | None, owner: int, row: FlushRow) -> str:
        found = topic.subscription_by_uid(row.uid) if topic is not None else None
        if found is None or not holds(found, owner, row):
            return "it does not hold"
        found.cursor, found.beyond, found.attempts = row.cursor, row.beyond, row.attempts
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_flush", flush)
        yield


def an_old_owners_late_flush_is_applied() -> AbstractContextManager[None]:
    return _flush_if(lambda found, owner, row: row.cursor >= found.cursor)


def a_seek_is_undone_by_a_flush() -> AbstractContextManager[None]:
    """Of the same owner, and of the epoch before."""
    return _flush_if(lambda found, owner, row: found.owner == owner and row.cursor >= found.cursor)


@contextmanager
def attempts_are_forgotten_at_a_change_of_owner() -> Iterator[None]:
    class Forgetful(Dispatcher):
        def __init__(self, cursor: int, beyond: Any, attempts: Any, judge: Any, *, by_key: bool) -> None:
            forgotten = [(start, end, 0) for start, end, _ in attempts]
            super().__init__(cursor, beyond, forgotten, judge, by_key=by_key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owned, "Dispatcher", Forgetful)
        yield


@contextmanager
def a_cursor_skips_what_is_not_acknowledged() -> Iterator[None]:
    add = Acknowledged.add

    def skip(self: Acknowledged, start: int, end: int) -> int:
        found = add(self, start, end)
        first = self.beyond.first
        if first is not None and first[0] == self.low + 1:
            self.low = self.beyond.take_first()[1]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Acknowledged, "add", skip)
        yield


@contextmanager
def a_key_goes_to_its_new_consumer_while_the_old_one_has_some_of_it() -> Iterator[None]:
    def is_fit(self: KeyOrder, offset: int, key: int, consumer: int) -> bool:
        return self._returned.at(offset) is not None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyOrder, "_is_fit", is_fit)
        yield


@contextmanager
def a_new_owner_does_not_hold_a_key_back_for_what_its_predecessor_left() -> Iterator[None]:
    begin, learn = KeyOrder.__init__, KeyOrder.learn
    left: dict[KeyOrder, int] = {}

    def begin_late(self: KeyOrder, start: int, returned: Any) -> None:
        begin(self, start, returned)
        left[self] = max([start, *(end for _, end, _ in returned)])

    def forget(self: KeyOrder, start: int, keys: Any, open_ranges: Any) -> None:
        learn(
            self, start, [key if start + i >= left[self] else None for i, key in enumerate(keys)], open_ranges
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyOrder, "__init__", begin_late)
        patch.setattr(KeyOrder, "learn", forget)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        attempts_are_forgotten_at_a_change_of_owner,
        a_cursor_skips_what_is_not_acknowledged,
        a_key_goes_to_its_new_consumer_while_the_old_one_has_some_of_it,
    ],
)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    assert is_found(plant, SubscriptionRun, SEEDS_TO_FIND)


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (an_old_owners_late_flush_is_applied, test_moving.test_an_old_owners_late_flush_changes_nothing),
        (a_seek_is_undone_by_a_flush, test_moving.test_a_flush_from_before_a_seek_does_not_undo_it),
        (
            a_new_owner_does_not_hold_a_key_back_for_what_its_predecessor_left,
            test_key_shared.test_a_new_owner_of_the_subscription_goes_on_with_what_is_earliest_of_each_key,
        ),
    ],
)
def test_a_rare_bug_is_found_by_its_schedule(plant: Plant, schedule: Callable[[], None]) -> None:
    """Random faults make a flush late enough in about one seed of twenty, and a key wait at a change of owner
    in about one of six."""
    with plant():
        assert shows(schedule)
