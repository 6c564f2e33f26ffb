"""Seeds of the world of consumers, and bugs put into the product that it has to find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ister.broker.subscriptions import owned
from ister.broker.subscriptions.dispatch import Dispatcher
from ister.metadata import subscriptions as metadata
from ister.metadata.commands import FlushRow
from ister.metadata.topics import TopicState
from ister.offset_ranges import Acknowledged
from tests.planting import shows
from tests.subscriptions import test_moving
from tests.subscriptions.world import play

SEEDS_TO_FIND = 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_seed_is_clean(seed: int) -> None:
    play(seed)


def test_one_seed_is_clean_in_the_quick_tests_too() -> None:
    assert play(1_000_000).epochs > 1


@contextmanager
def an_old_owners_late_flush_is_applied() -> Iterator[None]:
    def flush(topic: TopicState | None, owner: int, row: FlushRow) -> str:
        found = topic.subscription_by_uid(row.uid) if topic is not None else None
        if found is not None:
            found.cursor, found.beyond, found.attempts = row.cursor, row.beyond, row.attempts
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_flush", flush)
        yield


@contextmanager
def attempts_are_forgotten_at_a_change_of_owner() -> Iterator[None]:
    class Forgetful(Dispatcher):
        def __init__(self, cursor: int, beyond: Any, attempts: Any, judge: Any) -> None:
            super().__init__(cursor, beyond, [(start, end, 0) for start, end, _ in attempts], judge)

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        attempts_are_forgotten_at_a_change_of_owner,
        a_cursor_skips_what_is_not_acknowledged,
    ],
)
def test_a_planted_bug_is_found(plant: Any) -> None:
    for seed in range(SEEDS_TO_FIND):
        with plant():
            if shows(lambda seed=seed: play(seed)):  # type: ignore[misc]
                return
    raise AssertionError("no seed has found it")


def test_an_old_owners_late_flush_is_found_by_its_schedule() -> None:
    """Random faults make a flush late enough in about one seed of twenty."""
    with an_old_owners_late_flush_is_applied():
        assert shows(test_moving.test_a_flush_from_before_a_seek_does_not_undo_it)
