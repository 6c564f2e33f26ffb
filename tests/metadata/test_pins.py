"""Pins in the metadata: renewed by name, bounded in number, and of the same bytes everywhere (R3)."""

from __future__ import annotations

import msgspec
import pytest

from ister.broker.node.retention import HELD_TIMES, first_offset_to_keep
from ister.metadata.codec import decode_command, encode_command
from ister.metadata.commands import Command, DeleteTopic, PinRow, Result, SetPins
from ister.metadata.pins import FORGOTTEN_US, MAX_PINS
from ister.metadata.state import ClusterState, TopicState
from ister.protocol.messages import TopicSettings
from tests.metadata.chains import create, node, seal

TOPIC = 2
"""The uid of the topic that `founded` makes."""
SECOND = 1_000_000


def founded(*commands: Command) -> ClusterState:
    state = ClusterState()
    for index, command in enumerate([node(1), create(), *commands], 1):
        state.apply(index, command)
    return state


def pinned(
    at_us: int, name: str = "p", offset: int = 5, ttl_us: int = 10 * SECOND, uid: int = TOPIC
) -> SetPins:
    return SetPins(at_us, [PinRow(uid, name, offset, ttl_us)])


def apply(state: ClusterState, command: Command) -> tuple[Result, str]:
    outcome = state.apply(state.applied_index + 1, command)
    return outcome.result, outcome.detail


def topic_of(state: ClusterState) -> TopicState:
    topic = state.topic_by_uid(TOPIC)
    assert topic is not None
    return topic


def pins_of(state: ClusterState) -> list[tuple[str, int, int, int]]:
    return [(pin.name, pin.offset, pin.renewed_at_us, pin.expires_at_us) for pin in topic_of(state).pins]


def test_a_pin_is_set_renewed_and_let_go_of_by_its_name() -> None:
    state = founded(pinned(1 * SECOND), pinned(2 * SECOND, "q", 7))
    assert pins_of(state) == [("p", 5, SECOND, 11 * SECOND), ("q", 7, 2 * SECOND, 12 * SECOND)]
    assert apply(state, pinned(3 * SECOND, "p", 9))[0] is Result.APPLIED
    assert pins_of(state)[-1] == ("p", 9, 3 * SECOND, 13 * SECOND)
    assert apply(state, pinned(4 * SECOND, "p", ttl_us=0))[0] is Result.APPLIED
    assert [name for name, *_ in pins_of(state)] == ["q"]


def test_a_reader_may_go_back() -> None:
    assert pins_of(founded(pinned(1, offset=9), pinned(2, offset=4)))[0][:2] == ("p", 4)


def test_what_was_proposed_earlier_and_comes_later_changes_nothing() -> None:
    state = founded(pinned(5 * SECOND, offset=9))
    before = state.topic_by_uid(TOPIC)
    assert before is not None
    kept = msgspec.msgpack.encode(before)
    for late in (pinned(4 * SECOND, offset=3), pinned(4 * SECOND, ttl_us=0)):
        result, detail = apply(state, late)
        assert (result, "was renewed later" in detail) == (Result.REFUSED, True)
    assert msgspec.msgpack.encode(before) == kept


def test_a_command_that_is_applied_twice_is_applied_once() -> None:
    once, twice = founded(pinned(1, offset=1), pinned(9, offset=3)), founded(pinned(1, offset=1))
    for _ in range(2):
        apply(twice, pinned(9, offset=3))
    assert msgspec.msgpack.encode(topic_of(once)) == msgspec.msgpack.encode(topic_of(twice))
    (pin,) = topic_of(twice).pins
    assert (pin.before_offset, pin.before_us) == (1, 1)


def test_the_rows_of_one_command_stand_each_for_itself() -> None:
    rows = [PinRow(TOPIC, "p", 5, SECOND), PinRow(99, "p", 5, SECOND)]
    result, detail = apply(state := founded(), SetPins(1, rows))
    assert (result, detail) == (Result.APPLIED, "there is no topic with uid 99")
    assert len(pins_of(state)) == 1


def test_a_topic_has_so_many_live_pins_at_most_and_those_that_ran_out_make_room() -> None:
    state = founded(*(pinned(number, f"p{number:02d}", ttl_us=100 + number) for number in range(MAX_PINS)))
    result, detail = apply(state, pinned(50, "one-more"))
    assert (result, f"has {MAX_PINS} pins" in detail) == (Result.REFUSED, True)
    assert apply(state, pinned(50, "p00", offset=6))[0] is Result.APPLIED, "a renewal needs no room"
    assert apply(state, pinned(103, "one-more"))[0] is Result.APPLIED
    names = [name for name, *_ in pins_of(state)]
    assert (len(names), "p01" in names, "one-more" in names) == (MAX_PINS, False, True)


def test_a_pin_that_ran_out_is_shown_for_a_day_and_then_removed() -> None:
    state = founded(pinned(0, "old", ttl_us=SECOND))
    apply(state, pinned(FORGOTTEN_US, "p"))
    assert [name for name, *_ in pins_of(state)] == ["old", "p"]
    apply(state, pinned(FORGOTTEN_US + SECOND, "p"))
    assert [name for name, *_ in pins_of(state)] == ["p"]


def test_pins_are_in_the_snapshot_and_leave_with_their_topic() -> None:
    state = founded(pinned(1), pinned(2, "q"))
    restored = ClusterState.from_bytes(state.to_bytes())
    assert (pins_of(restored), restored.to_bytes()) == (pins_of(state), state.to_bytes())
    apply(restored, DeleteTopic(TOPIC))
    apply(restored, create())
    assert restored.topics["default/t"].pins == []


def test_the_command_survives_the_journal_and_a_build_without_it_goes_on() -> None:
    command = pinned(1)
    assert decode_command(encode_command(command)) == command
    state = founded()
    unknown = decode_command(encode_command(command).replace(b"SetPins", b"SetPons"))
    assert (unknown, apply(state, pinned(1))[0]) == (None, Result.APPLIED)
    outcome = state.apply(state.applied_index + 1, unknown)
    assert (outcome.result, "does not know" in outcome.detail) == (Result.REFUSED, True)


# Retention.

SIZE = 100


def rolled(settings: TopicSettings, *pins: SetPins) -> TopicState:
    """Five sealed segments of ten records, 100 bytes and a second each, and an open one."""
    state = founded()
    for number in range(1, 6):
        made = seal(TOPIC, number, number * 10)
        apply(
            state,
            msgspec.structs.replace(made, end_position=SIZE, last_append_time_us=number * SECOND),
        )
    for command in pins:
        apply(state, command)
    topic = topic_of(state)
    assert len(topic.segments) == 6
    topic.settings = settings
    return topic


BY_SIZE = TopicSettings(retention_bytes=2 * SIZE)
BY_AGE = TopicSettings(retention_ms=2_000)


@pytest.mark.parametrize("settings", [BY_SIZE, BY_AGE], ids=["size", "age"])
@pytest.mark.parametrize(
    ("pins", "kept_from"),
    [
        ([], 30),
        ([pinned(0, offset=25)], 20),
        ([pinned(0, offset=20)], 20),
        ([pinned(0, offset=30)], 30),
        ([pinned(0, offset=49)], 30),
        ([pinned(0, offset=25), pinned(0, "q", 45)], 20),
        ([pinned(0, offset=25, ttl_us=4 * SECOND)], 30),
    ],
    ids=["none", "within", "at-a-base", "behind-what-goes", "far-ahead", "the-first-counts", "ran-out"],
)
def test_retention_waits_for_the_first_live_pin(
    settings: TopicSettings, pins: list[SetPins], kept_from: int
) -> None:
    assert first_offset_to_keep(rolled(settings, *pins), 5 * SIZE, 5 * SECOND) == kept_from


@pytest.mark.parametrize("settings", [BY_SIZE, BY_AGE], ids=["size", "age"])
def test_a_pin_holds_no_more_than_twice_what_the_topic_is_set_to_keep(settings: TopicSettings) -> None:
    topic = rolled(settings, pinned(0, offset=0))
    assert HELD_TIMES == 2
    assert first_offset_to_keep(topic, 5 * SIZE, 5 * SECOND) == 10
