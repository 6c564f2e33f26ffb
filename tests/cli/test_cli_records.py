"""Records as lines: formats, escapes, and the places to start from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.cli.records import compile_format, escape, painted_lines, parse_place, raw_lines, show_time
from ister.cli.terminal import Paint, Terminal
from ister.frame import Record

RECORD = Record(7, 1_700_000_000_123_456, b"key", b"va\xfflue\n", [("h", b"1"), ("i", b"")])
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (r"%o\n", b"7\n"),
        ("%t", b"2023-11-14T22:13:20.123456Z"),
        ("%u", b"1700000000123456"),
        ("%k=%v", b"key=va\xfflue\n"),
        ("%h", b"h=1,i="),
        ("%s %n 100%%", b"7 default/x 100%"),
        (r"a\tb\0\x41\\", b"a\tb\0A\\"),
        ("plain", b"plain"),
        ("", b""),
    ],
)
def test_a_format_shows_what_its_tokens_say(template: str, shown: bytes) -> None:
    assert compile_format(template, "default/x", escaped=False)([RECORD]) == shown


@pytest.mark.parametrize("template", ["%z", "%", r"\q", "\\", r"\x4"])
def test_an_unknown_token_is_a_usage_error(template: str) -> None:
    with pytest.raises(click.BadParameter, match="unknown"):
        compile_format(template, "t", escaped=False)


def test_on_a_terminal_values_are_escaped() -> None:
    assert compile_format("%v", "t", escaped=True)([RECORD]) == rb"va\xfflue\n"


@given(st.binary())
def test_no_record_can_play_with_the_terminal(data: bytes) -> None:
    shown = escape(data).decode("utf-8")
    assert all(character == "\t" or character.isprintable() or ord(character) > 0x9F for character in shown)
    assert "\x1b" not in shown


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "Zs"])))
def test_text_that_is_harmless_is_shown_as_it_is(text: str) -> None:
    assert escape(text.encode()).decode() == text


@given(st.lists(st.binary(max_size=20)))
def test_raw_lines_are_the_values_byte_for_byte(values: list[bytes]) -> None:
    records = [Record(place, 0, None, value, ()) for place, value in enumerate(values)]
    assert raw_lines(records) == b"".join(value + b"\n" for value in values)


def test_a_null_value_is_not_shown_as_an_empty_one() -> None:
    null, empty = Record(7, 0, None, None, ()), Record(7, 0, None, b"", ())
    write = painted_lines(Paint(on=False))
    assert write([null]) != write([empty])


def test_colour_needs_a_terminal_and_no_wish_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert Terminal({}).paint("red", "x") == "\x1b[31mx\x1b[0m"
    assert Terminal({"NO_COLOR": "1"}).paint("red", "x") == "x"
    assert Terminal({"TERM": "dumb"}).paint("red", "x") == "x"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert Terminal({}).paint("red", "x") == "x"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", "earliest"),
        ("END", "latest"),
        ("42", 42),
        ("10m ago", NOW - timedelta(minutes=10)),
        ("1.5h ago", NOW - timedelta(minutes=90)),
        ("2030-01-31T11:00:00Z", NOW - timedelta(hours=1)),
        ("2030-01-31T13:00+02:00", NOW - timedelta(hours=1)),
    ],
)
def test_a_place_is_a_word_an_offset_or_a_time(text: str, place: object) -> None:
    assert parse_place(text, NOW) == place


def test_a_time_without_a_zone_is_local() -> None:
    found = parse_place("2030-01-31", NOW)
    assert isinstance(found, datetime)
    assert found == datetime(2030, 1, 31).astimezone()


@pytest.mark.parametrize("text", ["", "-1", "ago", "soon", "10 ago?", "2030-13-01", "9999999999d ago"])
def test_what_is_no_place_says_what_would_be_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match="give start, end, an offset, a time"):
        parse_place(text, NOW)


def test_a_time_beyond_every_calendar_is_still_shown() -> None:
    assert show_time(1 << 62) == f"{1 << 62}us"
