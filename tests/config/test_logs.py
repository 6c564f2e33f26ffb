"""Logs: fields beside the message, levels for modules, and lines that nobody can forge."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ister.errors import ConfigError
from ister.logs import Repeats, fields, get_logger, parse_levels, set_up_logs


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in [found for found in root.handlers if found not in before]:
        root.removeHandler(handler)
        handler.close()
    logging.getLogger("ister").setLevel(logging.NOTSET)
    logging.getLogger("ister.wal").setLevel(logging.NOTSET)


def test_fields_follow_the_message_as_pairs() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream)
    get_logger("ister.wal").info("recovered %s", "well", extra={"fields": {"topic": "default/x", "end": 7}})
    line = stream.getvalue()
    assert line.endswith("INFO     ister.wal: recovered well topic=default/x end=7\n")
    assert line[:20].count("-") == 2
    assert "\x1b" not in line


def test_json_has_the_fields_beside_the_message() -> None:
    stream = io.StringIO()
    set_up_logs(style="json", stream=stream)
    get_logger("ister.wal").warning("cut", extra=fields(end=7, level="odd", raw=b"\xff", path=Path("x")))
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "logger": "ister.wal",
        "message": "cut",
        "end": 7,
        "level_": "odd",
        "raw": "\\xff",
        "path": "x",
    }


def test_a_value_from_outside_cannot_forge_a_line() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream)
    get_logger("ister.server").info("hello from %s", "a\nERROR b\x1b[2J", extra=fields(client='x\ny "z"'))
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert r'client="x\ny \"z\""' in stream.getvalue()


def test_one_module_may_speak_more_than_the_others() -> None:
    stream = io.StringIO()
    set_up_logs("warning,ister.wal=debug", stream=stream)
    get_logger("ister.wal").debug("heard")
    get_logger("ister.server").info("not heard")
    assert "heard" in stream.getvalue()
    assert "not heard" not in stream.getvalue()


@pytest.mark.parametrize("name", ["ister.wal", "ister", "ister.broker.topic", "ister.wal.commit", "asyncio"])
def test_a_module_is_called_as_in_the_log_lines_or_by_what_they_begin_with(name: str) -> None:
    assert parse_levels(f"info,{name}=debug")[1] == {name: 10}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ister.wall", "nothing logs under that; did you mean ister.wal?"),
        ("wal", "'wal', and nothing logs under that"),
        ("nonsense.module", "'nonsense.module', and nothing logs under that"),
        ("", "names '', and nothing logs under that"),
    ],
)
def test_a_module_that_there_is_none_of_is_an_error(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_levels(f"info,{name}=debug")


def test_what_is_repeated_is_said_once_and_then_how_often() -> None:
    now = 0.0
    repeats = Repeats(lambda: now, seconds=10)
    assert [repeats.count("a") for _ in range(5)] == [1, 0, 0, 0, 0]
    assert repeats.count("b") == 1, "another thing"
    now = 10.0
    assert repeats.count("a") == 5, "the four that were not said, and this one"
    assert repeats.left() == [], "b came once, a is fresh"
    repeats.count("a")
    now = 20.0
    assert repeats.left() == [("a", 1)]
    assert repeats.count("a") == 1, "told"


def test_setting_up_again_replaces_what_was_before() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logs("debug,ister.wal=debug", stream=first)
    set_up_logs("info", stream=second)
    get_logger("ister.wal").debug("no longer heard")
    get_logger("ister.wal").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert "no longer" not in second.getvalue()


def test_a_message_below_the_level_is_never_formatted() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    set_up_logs("info", stream=io.StringIO())
    get_logger("ister.wal").debug("%s", Costly(), extra=fields(what=Costly()))


def test_an_exception_is_shown_whole_in_both_styles() -> None:
    for style in ("text", "json"):
        stream = io.StringIO()
        set_up_logs(style=style, stream=stream)
        try:
            raise ValueError("broken")
        except ValueError:
            get_logger("ister.wal").exception("failed")
        assert "ValueError: broken" in stream.getvalue()
        assert style == "text" or json.loads(stream.getvalue())["error"].startswith("Traceback")


def test_a_log_file_is_appended_to_and_has_no_colour(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    path.write_text("before\n")
    set_up_logs(file=str(path), colour=True)
    get_logger("ister.wal").info("after")
    lines = path.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[1].endswith("ister.wal: after")
    assert "\x1b" not in lines[1]


def test_a_log_file_that_was_rotated_away_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "broker.log"
    set_up_logs(file=str(path))
    path.rename(tmp_path / "broker.log.1")
    get_logger("ister.wal").info("here")
    assert "here" in path.read_text()


def test_a_log_file_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log_file .* cannot be opened: No such file"):
        set_up_logs(file=str(tmp_path / "nowhere" / "x.log"))


def test_colour_is_there_when_asked_for() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream, colour=True)
    get_logger("ister.wal").error("red")
    assert "\x1b[31mERROR" in stream.getvalue()


def test_levels_have_their_usual_other_names() -> None:
    assert parse_levels("warn, ister.wal = fatal") == (logging.WARNING, {"ister.wal": logging.CRITICAL})
    assert parse_levels("") == (logging.INFO, {})
