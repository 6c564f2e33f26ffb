"""Progress of a job: a bar on a terminal, lines in a pipe, nothing where JSON was asked for."""

from __future__ import annotations

import pytest

from ister.cli.progress import PIPE_SECONDS, ProgressLine, Stretch, bar, moving_line, plain_line, show_seconds
from ister.cli.terminal import Paint, Terminal


def terminal(*, is_terminal: bool, wants_json: bool = False) -> Terminal:
    made = Terminal({})
    made.errors_to_terminal = is_terminal
    made.paint_errors = Paint(on=False)
    made.output = "json" if wants_json else "text"
    return made


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_has_records_bytes_rate_and_what_is_left() -> None:
    stretch = Stretch("tier default/orders", 1_000_000, 200_000_000, 0.0)
    stretch.advance(250_000, 50_000_000, 2.0)
    assert plain_line(stretch, 2.0) == (
        "tier default/orders: 25%, 250,000 records, 47.7 MiB, 25.0 MB/s, 0:06 left"
    )


def test_a_line_shows_that_it_lives_before_the_first_tasks_have_ended() -> None:
    stretch = Stretch("tier default/orders", 1_000_000, 200_000_000, 0.0)
    assert plain_line(stretch, 3.0) == "tier default/orders: 0%, 0:03"
    stretch.advance(250_000, 50_000_000, 4.0)
    assert "250,000 records" in plain_line(stretch, 4.0)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    stretch = Stretch("tier", 0, 1_000_000_000, 0.0)
    for second in range(1, 101):
        stretch.advance(0, 1_000_000 if second <= 50 else 5_000_000, float(second))
    assert stretch.rate(100.0) == pytest.approx(5_000_000)


def test_a_line_is_cut_to_the_terminals_width() -> None:
    stretch = Stretch("tier default/orders", 1_000_000, 200_000_000, 0.0)
    stretch.advance(250_000, 50_000_000, 2.0)
    for width in range(30, 140):
        assert len(moving_line(stretch, 2.0, width, terminal(is_terminal=True))) < width


def test_a_bar_fills_from_nothing_to_all() -> None:
    assert bar(0.0) == "·" * 24
    assert bar(0.5) == "█" * 12 + "·" * 12
    assert bar(1.0) == "█" * 24


def test_time_is_shown_as_a_clock_does() -> None:
    assert [show_seconds(each) for each in (0.4, 59.6, 200, 3723)] == ["0:00", "1:00", "3:20", "1:02:03"]


def test_a_terminal_gets_one_line_that_is_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    line = ProgressLine(terminal(is_terminal=True), clock)
    line.begins("audit default/orders", 10, 100)
    clock.now += 1
    line.advances(5, 50)
    line.ends()
    said = capsys.readouterr().err
    assert "\n" not in said
    assert " 50%" in said
    assert said.endswith("\r\x1b[2K")


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    line = ProgressLine(terminal(is_terminal=False), clock)
    line.begins("audit default/orders", 10, 100)
    line.advances(2, 20)
    assert capsys.readouterr().err == ""
    clock.now += PIPE_SECONDS
    line.show()
    line.advances(2, 20)
    said = capsys.readouterr().err
    assert said.startswith("audit default/orders: 20%, 2 records")
    assert said.count("\n") == 1


def test_scripts_that_asked_for_json_get_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    line = ProgressLine(terminal(is_terminal=False, wants_json=True), clock)
    line.begins("audit default/orders", 10, 100)
    clock.now += 60
    line.advances(5, 50)
    line.tells("something")
    assert capsys.readouterr().err == ""
