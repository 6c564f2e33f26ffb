"""Units, ranges and the settings of a topic: what is accepted, and what an error says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.errors import InvalidSetting
from ister.protocol.messages import TopicSettings
from ister.settings import (
    TOPIC_SETTINGS,
    Kind,
    NotAllowed,
    nearest,
    parse_duration,
    parse_size,
    show,
    validate_settings,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("1m", 1 << 20),
        ("1.5g", 3 << 29),
        ("2MB", 2_000_000),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [("250", 250), ("250ms", 250), ("10s", 10_000), ("1.5h", 5_400_000), ("7d", 604_800_000)],
)
def test_a_duration_is_read_with_its_unit(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "MiB", "10 parsecs", "1e3", "0x10", "--5", "10s10s", "１０"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(NotAllowed):
        parse_size(text)
    with pytest.raises(NotAllowed):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_quantity_that_is_shown_reads_back_as_itself(number: int) -> None:
    assert parse_size(show(Kind.BYTES, number)) == number
    assert parse_duration(show(Kind.MILLISECONDS, number)) == number


def test_every_setting_of_a_topic_has_a_spec_and_its_default_is_allowed() -> None:
    defaults = TopicSettings()
    assert tuple(TOPIC_SETTINGS) == TopicSettings.__struct_fields__
    given_all = {name: getattr(defaults, name) for name in TOPIC_SETTINGS}
    assert validate_settings(given_all) == given_all


def test_settings_become_numbers_and_those_not_named_stay_not_named() -> None:
    assert validate_settings({"segment_bytes": "64MiB", "retention_ms": "7d"}) == {
        "segment_bytes": 64 << 20,
        "retention_ms": 604_800_000,
    }


def test_an_unknown_setting_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidSetting, match=r"'segment_byte'; did you mean segment_bytes\?"):
        validate_settings({"segment_byte": 4096})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("segment_records", 0, "segment_records = 0 is out of range: 1 to "),
        ("segment_bytes", 4095, "segment_bytes = 4095 is out of range: 4KiB to 1TiB"),
        ("segment_age_ms", -1, "is out of range: 0 to"),
        ("fsync", "fsnyc", "is not one of: fsync, interval, none; did you mean fsync?"),
        ("fsync", 1, "is a number, not text"),
        ("segment_bytes", True, "is true or false, not a size"),
        ("segment_bytes", 1.5, "is a fraction, not a size"),
        ("retention_ms", "soon", "'soon' is not a duration such as"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_its_field_and_its_range(
    name: str, value: object, reason: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        validate_settings({name: value})
    assert reason in caught.value.message
    assert caught.value.hint == f"Allowed: {TOPIC_SETTINGS[name].allowed}."


def test_a_name_like_no_other_has_no_nearest_one() -> None:
    assert nearest("zzz", TOPIC_SETTINGS) is None
