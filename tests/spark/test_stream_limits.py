"""How much one micro-batch takes, on paper."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ister.protocol.messages import SegmentDescription
from ister.spark.options import TriggerLimits
from ister.spark.source.limits import Admission, at_most, at_most_bytes


class Watch:
    """A clock that stands still until it is told."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_us(self) -> int:
        return int(self.now * 1e6)

    def token(self) -> int:
        return 1


def segment(base: int, end: int, size: int, lost: int = 0) -> SegmentDescription:
    return SegmentDescription(1, 1, base, end, size, 1, True, 0, 0, "sealed", lost=lost)


# At least.


def test_too_few_records_wait_until_there_are_enough_or_long_enough() -> None:
    watch = Watch()
    admission = Admission(TriggerLimits(min_offsets=10, max_delay_s=60), watch.monotonic)
    assert admission.admits(3)  # what is there when the query begins
    assert not admission.admits(9)
    assert admission.admits(10)
    watch.now = 59
    assert not admission.admits(1)
    watch.now = 60
    assert admission.admits(1)
    assert not admission.admits(1)


def test_a_quiet_time_is_no_batch_and_does_not_begin_the_delay_anew() -> None:
    watch = Watch()
    admission = Admission(TriggerLimits(min_offsets=10, max_delay_s=60), watch.monotonic)
    admission.admits(0)
    watch.now = 100
    assert not admission.admits(0)
    assert admission.admits(1)


def test_without_a_least_every_record_is_let_through() -> None:
    admission = Admission(TriggerLimits(), Watch().monotonic)
    assert [admission.admits(1) for _ in range(3)] == [True] * 3


# At most.


def test_records_are_shared_out_by_what_each_topic_has() -> None:
    assert at_most(100, {"a": (0, 300), "b": (50, 150)}) == {"a": 75, "b": 75}
    assert at_most(1000, {"a": (0, 300), "b": (50, 150)}) == {"a": 300, "b": 150}


def test_a_small_topic_beside_a_large_one_is_not_starved() -> None:
    assert at_most(10, {"big": (0, 1_000_000), "small": (5, 6)}) == {"big": 9, "small": 6}


@given(
    st.integers(1, 1000),
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 5000), min_size=1, max_size=6),
)
def test_the_most_is_never_passed_but_for_one_record_of_each(most: int, sizes: dict[str, int]) -> None:
    ends = at_most(most, {topic: (7, 7 + size) for topic, size in sizes.items()})
    taken = {topic: end - 7 for topic, end in ends.items()}
    waiting = [topic for topic, size in sizes.items() if size]
    assert sum(taken.values()) <= max(most, len(waiting))
    assert all(1 <= taken[topic] <= sizes[topic] for topic in waiting)
    assert all(not taken[topic] for topic in sizes if topic not in waiting)


def test_bytes_are_counted_by_the_mean_size_in_each_segment() -> None:
    segments = {"t": [segment(0, 100, 1000), segment(100, 200, 10_000)]}
    assert at_most_bytes(1500, {"t": (0, 200)}, segments) == {"t": 105}
    assert at_most_bytes(1500, {"t": (50, 200)}, segments) == {"t": 110}
    assert at_most_bytes(20_000, {"t": (0, 200)}, segments) == {"t": 200}


def test_one_record_is_read_however_large_it_is() -> None:
    assert at_most_bytes(10, {"t": (3, 5)}, {"t": [segment(0, 5, 5_000_000)]}) == {"t": 4}


def test_records_that_were_given_up_have_no_bytes() -> None:
    lost = [segment(0, 1_000_000, 1000, lost=999_900), segment(1_000_000, 1_000_100, 1000)]
    assert at_most_bytes(1500, {"t": (0, 1_000_100)}, {"t": lost}) == {"t": 1_000_050}


def test_offsets_that_have_no_records_do_not_count_as_read() -> None:
    """Else a query goes through the millions that an operator gave up a thousand at a time."""
    gaps = {"t": [(0, 50), (100, 1000)]}
    assert at_most(20, {"t": (0, 2000)}, gaps) == {"t": 70}
    assert at_most(60, {"t": (0, 2000)}, gaps) == {"t": 1010}
    assert at_most(60, {"t": (40, 2000)}, gaps) == {"t": 1010}
    assert at_most(50, {"t": (50, 2000)}, gaps) == {"t": 100}
    assert at_most(5, {"t": (200, 2000), "u": (0, 900)}, {"t": [(0, 2000)]}) == {"t": 2000, "u": 5}
