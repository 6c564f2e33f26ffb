"""The life of an open segment, as a table: from opening to sealed."""

from __future__ import annotations

import pytest

from ister.broker.topic.life import HAS_SEGMENT, Event, Life, Stage
from ister.errors import InvariantBroken


def after(*events: Event) -> Stage:
    life = Life()
    for event in events:
        life.step(event)
    return life.stage


@pytest.mark.parametrize(
    ("events", "stage"),
    [
        ([Event.WANTED, Event.NOT_OPENED], Stage.CLOSED),
        ([Event.WANTED, Event.OPENED, Event.END, Event.END, Event.SEALED], Stage.CLOSED),
        ([Event.WANTED, Event.OPENED, Event.WANTED, Event.OPENED], Stage.OPEN),
        ([Event.WANTED, Event.OPENED, Event.WANTED, Event.NOT_OPENED, Event.END], Stage.ENDING),
        ([Event.WANTED, Event.OPENED, Event.WANTED, Event.END, Event.NOT_OPENED], Stage.ENDING),
        ([Event.WANTED, Event.OPENED, Event.END, Event.CONTRADICTED], Stage.HALTED),
    ],
)
def test_a_segment_is_opened_ended_and_sealed_and_a_failed_one_opened_again(
    events: list[Event], stage: Stage
) -> None:
    assert after(*events) is stage


@pytest.mark.parametrize(
    "events",
    [
        [Event.OPENED],
        [Event.SEALED],
        [Event.WANTED, Event.END],
        [Event.WANTED, Event.OPENED, Event.SEALED],
        [Event.WANTED, Event.OPENED, Event.END, Event.OPENED],
        [Event.WANTED, Event.OPENED, Event.END, Event.WANTED],
        [Event.WANTED, Event.OPENED, Event.END, Event.CONTRADICTED, Event.WANTED],
    ],
)
def test_what_cannot_happen_is_an_error_that_names_the_stage(events: list[Event]) -> None:
    with pytest.raises(InvariantBroken, match=f"{events[-1].name} while it was {after(*events[:-1]).name}"):
        after(*events)


def test_nothing_happens_to_a_segment_whose_topic_is_over() -> None:
    for event in Event:
        assert after(Event.STOP, event) is Stage.OVER
    assert Stage.OVER not in HAS_SEGMENT
