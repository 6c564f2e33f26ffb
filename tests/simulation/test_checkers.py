"""Each checker names the broken promise, and is content with a history that keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ister.testing.checkers import Violation, check_history
from ister.testing.history import History, SeenFrame

LINE = "t#1"


def frame(base: int, *values: bytes, time: int = 5, producer: int = 0, sequence: int = 0) -> SeenFrame:
    return SeenFrame(base, values, time, producer, sequence)


def good() -> History:
    history = History()
    history.sending("p", LINE, [b"a", b"b"]).acknowledged([0, 1])
    history.sending("p", LINE, [b"lost"]).unknown(TimeoutError("nobody said"))
    history.sending("p", LINE, [b"refused"]).failed(ValueError("too large"))
    history.sending("p", LINE, [b"c"]).acknowledged([2])
    history.reading("r", LINE, 1).frames.append(frame(0, b"a", b"b", producer=7))
    final = history.final(LINE, 0)
    final.frames += [frame(0, b"a", b"b", producer=7), frame(2, b"c", time=6, producer=7, sequence=2)]
    return history


def test_a_history_that_keeps_every_promise_is_clean() -> None:
    check_history(good())


def lose_the_end(history: History) -> None:
    history.finals[LINE].frames.pop()


def change_a_value(history: History) -> None:
    history.reading("s", LINE, 2).frames.append(frame(2, b"other", time=6))


def append_twice(history: History) -> None:
    history.finals[LINE].frames.append(frame(3, b"c", time=6))


def skip_an_offset(history: History) -> None:
    history.finals[LINE].frames.append(frame(4, b"e", time=6))


def swap_the_order(history: History) -> None:
    history.sending("p", LINE, [b"late"]).acknowledged([1])
    history.sends[0].outcome = history.sends[1].outcome
    history.sends[0].values = (b"a", b"late")
    for read in history.reads:
        read.frames[0] = frame(0, b"a", b"late", producer=7)


def show_what_was_refused(history: History) -> None:
    history.finals[LINE].frames.append(frame(3, b"refused", time=6))


def tear_a_batch(history: History) -> None:
    history.sending("q", LINE, [b"x", b"y"]).unknown(TimeoutError())
    history.finals[LINE].frames.append(frame(3, b"x", time=6))


def forget_what_was_read(history: History) -> None:
    history.reading("s", LINE, 2).frames += [frame(2, b"c", time=6), frame(3, b"seen once", time=6)]


def turn_time_back(history: History) -> None:
    history.finals[LINE].frames.append(frame(3, b"d", time=1))


def skip_a_sequence(history: History) -> None:
    history.finals[LINE].frames.append(frame(3, b"d", time=6, producer=7, sequence=9))


@pytest.mark.parametrize(
    ("spoil", "checker"),
    [
        (lose_the_end, "acknowledged_is_readable"),
        (change_a_value, "one_offset_one_value"),
        (append_twice, "no_duplicates"),
        (skip_an_offset, "reads_are_gapless"),
        (swap_the_order, "sends_are_in_order"),
        (show_what_was_refused, "failed_never_appears"),
        (tear_a_batch, "batches_are_whole"),
        (forget_what_was_read, "what_was_read_stays"),
        (turn_time_back, "append_time_never_falls"),
        (skip_a_sequence, "sequences_are_in_order"),
    ],
)
def test_a_checker_names_the_promise_that_was_broken(spoil: Callable[[History], None], checker: str) -> None:
    history = good()
    spoil(history)
    with pytest.raises(Violation) as caught:
        check_history(history)
    assert caught.value.checker == checker


def test_a_line_that_was_excused_is_not_judged() -> None:
    history = good()
    lose_the_end(history)
    history.excuse(LINE, "its topic does not sync, and power was lost (P6)")
    check_history(history)


def test_what_a_watcher_saw_comes_first() -> None:
    history = good()
    history.violated("an acknowledgement before its sync")
    with pytest.raises(Violation, match="before its sync"):
        check_history(history)
