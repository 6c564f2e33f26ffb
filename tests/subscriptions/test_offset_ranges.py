"""The sets of offsets beside the simplest model of them: a Python set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ister.broker.subscriptions.range_map import RangeMap
from ister.offset_ranges import Acknowledged, OffsetRanges

SPANS = st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def as_ranges(offsets: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found


@given(st.lists(SPANS, max_size=40), SPANS)
def test_a_set_of_ranges_is_the_set_of_its_offsets(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    ranges, model = OffsetRanges(), set[int]()
    for start, end in added:
        new = set(range(start, end)) - model
        assert ranges.add(start, end) == len(new)
        model |= new
    assert list(ranges) == as_ranges(model)
    assert ranges.count == len(model)
    assert ranges.end == max(model, default=-1) + 1
    assert all((offset in ranges) == (offset in model) for offset in range(-1, 80))
    assert ranges.missing(*asked) == as_ranges(set(range(*asked)) - model)


@given(st.integers(0, 20), st.lists(SPANS, max_size=40), SPANS)
def test_the_mark_moves_only_past_what_is_acknowledged_without_a_gap(
    low: int, added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    acknowledged, model = Acknowledged(low), set(range(low))
    for start, end in added:
        before = acknowledged.low
        new = set(range(start, end)) - model
        assert acknowledged.add(start, end) == len(new)
        model |= new
        assert acknowledged.low >= before
    first_missing = next(offset for offset in range(1000) if offset not in model)
    assert acknowledged.low == first_missing
    assert list(acknowledged.beyond) == as_ranges({offset for offset in model if offset > first_missing})
    assert acknowledged.end == max(max(model, default=-1) + 1, first_missing)
    assert all((offset in acknowledged) == (offset in model) for offset in range(80))
    assert acknowledged.missing(*asked) == as_ranges(set(range(*asked)) - model)
    again = Acknowledged(acknowledged.low, list(acknowledged.beyond))
    assert (again.low, list(again.beyond)) == (acknowledged.low, list(acknowledged.beyond))


@given(st.lists(st.tuples(st.booleans(), SPANS, st.integers(1, 2)), max_size=40))
def test_a_map_of_ranges_is_the_map_of_its_offsets(steps: list[tuple[bool, tuple[int, int], int]]) -> None:
    ranges, model = RangeMap[int](), dict[int, int]()
    for is_put, (start, end), value in steps:
        if is_put and not any(offset in model for offset in range(start, end)):
            ranges.put(start, end, value)
            model |= dict.fromkeys(range(start, end), value)
        else:
            taken = {
                offset: found for low, high, found in ranges.carve(start, end) for offset in range(low, high)
            }
            assert taken == {offset: model.pop(offset) for offset in range(start, end) if offset in model}
        listed = list(ranges)
        assert {offset: found for low, high, found in listed for offset in range(low, high)} == model
        assert listed == sorted(listed)
        assert ranges.count == len(model)
