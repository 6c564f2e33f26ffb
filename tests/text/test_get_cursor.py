"""The GET cursor's bookkeeping against a model that keeps one word for every offset."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ister.broker.text.get_cursor import GetCursor

HANDED, RETURNED, DONE, GONE = "handed", "returned", "done", "gone"


class Model:
    """Every offset below the next, and what is known of it."""

    def __init__(self, offset: int) -> None:
        self.start = offset
        self.states: dict[int, str] = {}
        self.attempts: dict[int, int] = {}

    @property
    def next(self) -> int:
        return self.start + len(self.states)

    @property
    def candidate(self) -> int:
        return min((o for o, state in self.states.items() if state == RETURNED), default=self.next)

    @property
    def acknowledged(self) -> int:
        return min((o for o, state in self.states.items() if state in (HANDED, RETURNED)), default=self.next)


steps = st.lists(
    st.tuples(
        st.sampled_from(["hand", "hand", "done", "return", "return-late", "pass", "trim"]), st.integers(0, 12)
    ),
    max_size=60,
)


@given(st.integers(0, 5), steps)
@settings(max_examples=300)
def test_the_cursor_agrees_with_a_model_that_remembers_everything(
    offset: int, history: list[tuple[str, int]]
) -> None:
    cursor, model = GetCursor(1, offset), Model(offset)
    for step, number in history:
        before = cursor.acknowledged
        target = offset + number
        match step:
            case "hand":
                place = model.candidate
                model.attempts[place] = model.attempts.get(place, 0) + 1
                assert cursor.hand_out() == (place, model.attempts[place])
                model.states[place] = HANDED
            case "done":
                expected = model.states.get(target) in (HANDED, RETURNED)
                assert cursor.done(target) is expected
                if expected:
                    model.states[target] = DONE
            case "return":
                expected = model.states.get(target) == HANDED
                assert cursor.give_back(target, model.attempts.get(target, 1)) is expected
                if expected:
                    model.states[target] = RETURNED
            case "return-late":
                assert not cursor.give_back(target, model.attempts.get(target, 1) - 1), "an older attempt"
            case "pass":
                place = model.candidate
                gone = cursor.pass_over(place + number + 1)
                for each in range(place, place + gone):
                    model.states[each] = GONE
            case "trim":
                lost = 0
                for each in range(offset, target):
                    if each >= model.next or model.states[each] == RETURNED:
                        lost += 1
                    model.states[each] = GONE
                was = cursor.acknowledged
                told = cursor.trim(target)
                assert told == (lost if target > was else 0)
        assert cursor.candidate == model.candidate
        assert cursor.next_offset == model.next
        assert cursor.acknowledged == model.acknowledged
        assert cursor.acknowledged >= before, "a cursor never goes back"
        assert cursor.window == model.next - model.acknowledged
        between = range(model.acknowledged, model.next)
        assert cursor.remembered <= cursor.window
        assert cursor.remembered >= sum(model.states[each] != GONE for each in between)


def test_f6_lost_offsets_are_passed_over_as_one_gap_that_costs_nothing_to_remember() -> None:
    cursor = GetCursor(1, 0)
    for _ in range(4):
        cursor.hand_out()
    for offset in (1, 2):
        cursor.give_back(offset, 1)
    assert cursor.lose(2, 5_000_000) == 4_999_997, "what came back, and all that nobody had been given"
    assert (cursor.candidate, cursor.next_offset) == (1, 5_000_000), "what lies before is still to be had"
    assert cursor.lose(2, 5_000_000) == 0
    cursor.hand_out()
    assert cursor.remembered <= 4
    for offset in (0, 1, 3):
        assert cursor.done(offset)
    assert (cursor.acknowledged, cursor.candidate, cursor.window) == (5_000_000, 5_000_000, 0)


def test_what_came_back_is_handed_out_first_and_the_lowest_first() -> None:
    cursor = GetCursor(1, 0)
    for _ in range(4):
        cursor.hand_out()
    for offset in (2, 0, 3):
        assert cursor.give_back(offset, 1)
    assert [cursor.hand_out() for _ in range(4)] == [(0, 2), (2, 2), (3, 2), (4, 1)]


def test_a_record_that_arrived_after_all_is_not_handed_out_again() -> None:
    cursor = GetCursor(1, 0)
    cursor.hand_out()
    cursor.give_back(0, 1)
    assert cursor.done(0)
    assert (cursor.candidate, cursor.acknowledged) == (1, 1)
