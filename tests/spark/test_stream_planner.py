"""What a stream reads next, against a real broker but without Spark: Spark's calls are made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import pytest

from ister import sync
from ister.errors import ConfigError, IsterError, OffsetOutOfRange, UnknownTopic
from ister.spark.options import parse_stream_options
from ister.spark.ranges import OffsetRange
from ister.spark.source.offsets import StreamOffset, TopicPlace, stream_offset
from ister.spark.source.triggers import DISCOVERY_S, StreamPlanner


class World:
    """A clock that is told how late it is, and chance that counts."""

    def __init__(self) -> None:
        self.now, self.tokens = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def now_us(self) -> int:
        return int(self.now * 1e6)

    def token(self) -> int:
        self.tokens += 1
        return self.tokens


class Pinned:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, int]]] = []
        self.released: list[str] = []

    def hold(self, reader: str, places: Mapping[str, TopicPlace]) -> None:
        self.told.append((reader, {topic: place.offset for topic, place in places.items()}))

    def release(self, reader: str) -> None:
        self.released.append(reader)


class Query:
    """One run of a query: triggers, and the checkpoint, which a next run may begin with."""

    def __init__(self, log: sync.Log, world: World, checkpoint: list[str], options: dict[str, str]) -> None:
        self.pinned = Pinned()
        self.planner = StreamPlanner(parse_stream_options(options), log, world, self.pinned, world.monotonic)
        self.checkpoint = checkpoint
        self.limited = any("pertrigger" in name.lower() for name in options)

    def trigger(self) -> list[tuple[str, int, int]]:
        """One micro-batch: what it reads, by topic; nothing if there was none."""
        start = self._start()
        end = self.planner.latest(start, limited=self.limited)
        text = json.dumps(end.to_json())
        if self.checkpoint and text == self.checkpoint[-1]:
            return []
        self.checkpoint.append(text)
        return shares(self.planner.ranges(self._start(before=1), end))

    def again(self) -> list[tuple[str, int, int]]:
        """The batch that stands in the checkpoint, after a failure."""
        return shares(self.planner.ranges(self._start(before=1), offset(self.checkpoint[-1])))

    def _start(self, before: int = 0) -> StreamOffset:
        known = self.checkpoint[: len(self.checkpoint) - before]
        return offset(known[-1]) if known else stream_offset(self.planner.initial().to_json())


def offset(text: str) -> StreamOffset:
    return stream_offset(json.loads(text))


def shares(ranges: list[OffsetRange]) -> list[tuple[str, int, int]]:
    """Tasks that follow each other are one: how they are divided is another test's."""
    whole: list[tuple[str, int, int]] = []
    for part in ranges:
        topic = part.topic.removeprefix("default/")
        if whole and whole[-1][0] == topic and whole[-1][2] == part.start:
            whole[-1] = (topic, whole[-1][1], part.end)
        else:
            whole.append((topic, part.start, part.end))
    return whole


Run = Callable[..., Query]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def run(log: sync.Log, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """`run("topic", startingOffsets=...)`: a query; with `after=` another run, from its checkpoint."""
    monkeypatch.setattr("ister.spark.source.triggers.WAIT_S", 0.001)

    def begin(topic: str | None = None, *, after: Query | None = None, **options: str) -> Query:
        if topic is not None:
            options["subscribe"] = topic
        lowered = {name.lower(): value for name, value in options.items()}
        return Query(log, world, [] if after is None else after.checkpoint, lowered)

    yield begin


def fill(log: sync.Log, topic: str, count: int, *, each: int = 10) -> None:
    """In segments of ten records, so that they can be trimmed."""
    log.create_topic(topic, if_absent=True, segment_records=10)
    for _ in range(count // each):
        log.append(topic, [b"x"] * each)


# Where it begins, and goes on.


def test_each_batch_reads_what_came_since_the_last_one(log: sync.Log, run: Run) -> None:
    log.append("plain", [b"x"] * 3)
    query = run("plain", startingOffsets="earliest")
    assert query.trigger() == [("plain", 0, 3)]
    assert query.trigger() == []
    log.append("plain", [b"x"] * 2)
    assert query.trigger() == [("plain", 3, 5)]


@pytest.mark.parametrize(
    ("options", "begins"),
    [
        ({}, 10),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"begins": {"0": 4}}'}, 4),
        ({"startingOffsets": '{"begins": {"0": -1}}'}, 10),
        ({"startingOffsets": '{"begins": {"0": -2}}'}, 0),
        ({"startingTimestamp": "1"}, 0),
        ({"startingOffsetsByTimestamp": '{"begins": {"0": 1}}', "startingOffsets": "latest"}, 0),
    ],
)
def test_a_stream_begins_where_it_is_told(
    log: sync.Log, run: Run, options: dict[str, str], begins: int
) -> None:
    if log.append("begins-marker", [b"x"]).base_offset == 0:
        fill(log, "begins", 10)
    assert run("begins", **options).planner.initial().topics["default/begins"].offset == begins


def test_a_time_that_nothing_was_appended_since_is_an_error_or_the_end_as_is_said(
    log: sync.Log, run: Run
) -> None:
    log.append("future", [b"x"] * 3)
    future = {"startingTimestamp": "9000000000000"}
    with pytest.raises(ConfigError, match=r"nothing was appended .* at or after 9000000000000 \(2255-"):
        run("future", **future).planner.initial()
    query = run("future", **future, startingOffsetsByTimestampStrategy="latest")
    assert query.planner.initial().topics["default/future"].offset == 3


def test_a_start_past_the_end_is_an_error_or_the_end(log: sync.Log, run: Run) -> None:
    log.append("past", [b"x"] * 3)
    past = {"startingOffsets": '{"past": {"0": 9}}'}
    with pytest.raises(OffsetOutOfRange, match="offsets 3 to 8 of default/past are not there"):
        run("past", **past).planner.initial()
    query = run("past", **past, failOnDataLoss="false")
    assert query.planner.initial().topics["default/past"].offset == 3


def test_an_unknown_topic_is_an_error_at_the_start(run: Run) -> None:
    with pytest.raises(UnknownTopic, match="nowhere"):
        run("nowhere").trigger()


def test_a_first_batch_that_is_done_again_reads_the_same_although_the_end_has_moved(
    log: sync.Log, run: Run
) -> None:
    """Spark keeps the end of a batch that it begins, and not where the query started: `latest` is elsewhere
    by the time that it asks again, and five records would be in no batch at all."""
    log.append("first", [b"old"] * 10)
    query = run("first")
    query.planner.initial()
    log.append("first", [b"new"] * 5)
    assert query.trigger() == [("first", 10, 15)]
    log.append("first", [b"newer"] * 5)
    restarted = run("first", after=query)
    assert restarted.again() == [("first", 10, 15)]
    assert restarted.trigger() == [("first", 15, 20)]


def test_a_query_keeps_its_name_from_run_to_run(log: sync.Log, run: Run) -> None:
    log.append("named", [b"x"])
    query = run("named", startingOffsets="earliest", groupIdPrefix="night")
    query.trigger()
    restarted = run("named", after=query)
    log.append("named", [b"x"])
    restarted.trigger()
    names = {offset(text).reader for text in query.checkpoint}
    assert len(query.checkpoint) == 2 and len(names) == 1
    assert names.pop().startswith("night-")


def test_a_checkpoint_of_version_1_goes_on(log: sync.Log, run: Run) -> None:
    fill(log, "older", 20)
    uid = log.describe_topic("older").uid
    query = run("older")
    old = [{"version": 1, "topics": {"default/older": {"uid": uid, "offset": at}}} for at in (5, 9)]
    query.checkpoint += [json.dumps(found) for found in old]
    assert query.again() == [("older", 5, 9)]
    assert query.trigger() == [("older", 9, 20)]
    assert json.loads(query.checkpoint[-1])["version"] == 2
    assert query.again() == [("older", 9, 20)]


def test_a_checkpoint_of_another_cluster_is_refused(log: sync.Log, run: Run) -> None:
    """I1: the same names and uids may well be there, too."""
    log.append("elsewhere", [b"x"])
    query = run("elsewhere", startingOffsets="earliest")
    query.trigger()
    query.checkpoint[-1] = query.checkpoint[-1].replace(log.cluster_id, "0123456789abcdef")
    with pytest.raises(ConfigError, match=f"cluster 0123456789abcdef, and .* is cluster {log.cluster_id}"):
        query.trigger()


# Topics that come and go.


def test_a_topic_that_appears_later_is_read_from_its_first_record(
    log: sync.Log, run: Run, world: World
) -> None:
    log.append("shop-1", [b"x"] * 3)
    query = run(subscribePattern="shop-.*")
    assert query.trigger() == []
    log.append("shop-2", [b"y"] * 2)
    log.append("other-1", [b"z"])
    world.now += DISCOVERY_S
    assert query.trigger() == [("shop-2", 0, 2)]
    log.append("shop-1", [b"x"])
    assert query.trigger() == [("shop-1", 3, 4)]


def test_a_topic_that_joined_in_a_batch_that_failed_is_read_again_from_its_first_record(
    log: sync.Log, run: Run, world: World
) -> None:
    log.append("join-1", [b"x"] * 3)
    query = run(subscribePattern="join-.*", startingOffsets="earliest")
    query.trigger()
    log.append("join-2", [b"y"] * 2)
    world.now += DISCOVERY_S
    assert query.trigger() == [("join-2", 0, 2)]
    assert run(after=query, subscribePattern="join-.*").again() == [("join-2", 0, 2)]


def test_topics_of_the_system_never_join(log: sync.Log, run: Run) -> None:
    log.create_topic("_ister/kept", if_absent=True)
    log.append("_ister/kept", [b"x"])
    assert not [t for t in run(subscribePattern=".*").planner.initial().topics if t.startswith("_")]


def test_a_topic_that_joined_late_and_lacks_its_first_records_is_not_read_in_silence(
    log: sync.Log, run: Run, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("late-1", [b"x"])
    query = run(subscribePattern="late-.*")
    query.trigger()
    fill(log, "late-2", 30)
    log.trim_topic("late-2", 20)
    world.now += DISCOVERY_S
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 19 of default/late-2 are not there"):
        query.trigger()
    careless = run(after=query, subscribePattern="late-.*", failOnDataLoss="false")
    assert careless.again() == [("late-2", 20, 30)]
    assert "offsets 0 to 19 of default/late-2" in caplog.text


def test_a_topic_that_the_options_do_not_name_any_more_is_not_dropped_in_silence(
    log: sync.Log, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("kept", [b"x"] * 2)
    log.append("dropped", [b"x"] * 2)
    query = run("kept,dropped", startingOffsets="earliest")
    query.trigger()
    with pytest.raises(OffsetOutOfRange, match=r"offsets from 2 on of default/dropped .* do not name it"):
        run("kept", after=query).trigger()
    log.append("kept", [b"x"])
    assert run("kept", after=query, failOnDataLoss="false").trigger() == [("kept", 2, 3)]
    assert "DATA LOSS" in caplog.text


# What is lost under a running query.


def lost(query: Query) -> IsterError:
    with pytest.raises(OffsetOutOfRange) as caught:
        query.trigger()
    return caught.value


def test_a_topic_that_was_trimmed_past_the_query_is_an_error_with_the_offsets(
    log: sync.Log, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log, "trimmed", 20)
    query = run("trimmed", startingOffsets='{"trimmed": {"0": 5}}', maxOffsetsPerTrigger="5")
    assert query.trigger() == [("trimmed", 5, 10)]
    fill(log, "trimmed", 30)
    log.trim_topic("trimmed", 40)
    error = lost(query)
    # The records that the batch was to have begin behind those that are gone.
    assert error.message.startswith(
        "offsets 10 to 39 of default/trimmed are not there: the topic begins at 40"
    )
    assert "failOnDataLoss=false reads on without them" in error.hint
    careless = run("trimmed", after=query, failOnDataLoss="false", maxOffsetsPerTrigger="5")
    assert careless.again() == [("trimmed", 40, 45)]
    assert "DATA LOSS" in caplog.text and "offsets 10 to 39" in caplog.text
    assert careless.trigger() == [("trimmed", 45, 50)]


def test_a_topic_that_was_deleted_is_an_error_that_says_from_where_on(
    log: sync.Log, run: Run, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("deleted", [b"x"] * 3)
    log.append("beside", [b"x"] * 3)
    query = run("deleted,beside", startingOffsets="earliest")
    query.trigger()
    log.delete_topic("deleted")
    assert "offsets from 3 on of default/deleted are not there" in lost(query).message
    careless = run("deleted,beside", after=query, failOnDataLoss="false")
    log.append("beside", [b"x"])
    assert careless.trigger() == [("beside", 3, 4)]
    assert caplog.text.count("DATA LOSS") == 1
    log.append("deleted", [b"new"] * 2)
    world.now += DISCOVERY_S
    assert careless.trigger() == [("deleted", 0, 2)]


def test_a_topic_that_was_made_again_is_never_taken_for_the_one_before(
    log: sync.Log, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """I3: it has more records than were read of the other, so that offsets alone would look well."""
    log.append("again", [b"x"] * 3)
    query = run("again", startingOffsets="earliest")
    query.trigger()
    log.delete_topic("again")
    log.append("again", [b"new"] * 5)
    assert "offsets from 3 on of default/again are not there" in lost(query).message
    careless = run("again", after=query, failOnDataLoss="false")
    assert careless.trigger() == [("again", 0, 5)]
    assert "was deleted and made again under this query" in caplog.text
    assert careless.again() == [("again", 0, 5)]


def test_a_batch_whose_topic_was_made_again_since_it_was_planned_has_none_of_its_records(
    log: sync.Log, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    log.append("replanned", [b"x"] * 3)
    query = run("replanned", startingOffsets="earliest")
    query.trigger()
    log.append("replanned", [b"x"] * 2)
    assert query.trigger() == [("replanned", 3, 5)]
    log.delete_topic("replanned")
    for made_again in (False, True):
        if made_again:
            log.append("replanned", [b"new"] * 5)
        with pytest.raises(OffsetOutOfRange, match="offsets 3 to 4 of default/replanned are not there"):
            run("replanned", after=query).again()
    assert run("replanned", after=query, failOnDataLoss="false").again() == []
    assert "DATA LOSS" in caplog.text


def test_a_topic_that_ends_before_the_query_is_an_error_and_not_a_query_that_waits_for_ever(
    log: sync.Log, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Another data directory under the same cluster id, or one that lost its tail with fsync off."""
    log.append("shorter", [b"x"] * 3)
    query = run("shorter", startingOffsets="earliest")
    query.trigger()
    query.checkpoint[-1] = query.checkpoint[-1].replace('"offset": 3', '"offset": 8')
    assert "offsets 3 to 7 of default/shorter are not there: the topic ends at 3" in lost(query).message
    log.append("shorter", [b"y"])
    careless = run("shorter", after=query, failOnDataLoss="false")
    careless.trigger()
    log.append("shorter", [b"z"])
    assert careless.trigger() == [("shorter", 4, 5)]


# How much, and when.


def test_at_most_so_many_records_are_read_at_once_whatever_they_are_of(log: sync.Log, run: Run) -> None:
    fill(log, "most-a", 60)
    fill(log, "most-b", 20)
    query = run("most-a,most-b", startingOffsets="earliest", maxOffsetsPerTrigger="40")
    batches = [query.trigger(), query.trigger()]
    assert batches == [
        [("most-a", 0, 30), ("most-b", 0, 10)],
        [("most-a", 30, 60), ("most-b", 10, 20)],
    ]
    assert query.trigger() == []


def test_a_trigger_that_must_read_all_ignores_the_limits(log: sync.Log, run: Run) -> None:
    fill(log, "all", 60)
    query = run("all", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    query.limited = False
    assert query.trigger() == [("all", 0, 60)]


def test_a_batch_waits_for_its_least_or_for_the_delay(log: sync.Log, run: Run, world: World) -> None:
    fill(log, "least", 10)
    query = run("least", startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="1m")
    assert query.trigger() == [("least", 0, 10)]  # what is there at the start
    fill(log, "least", 10)
    assert query.trigger() == []
    fill(log, "least", 10)
    assert query.trigger() == [("least", 10, 30)]
    fill(log, "least", 10)
    world.now += 59
    assert query.trigger() == []
    world.now += 1
    assert query.trigger() == [("least", 30, 40)]


def test_about_so_many_bytes_are_read_at_once(log: sync.Log, run: Run) -> None:
    for _ in range(10):
        log.append("bytes", [b"x" * 1000] * 10)
    query = run("bytes", startingOffsets="earliest", maxBytesPerTrigger="25k")
    ends = [0]
    while reads := query.trigger():
        ((_, start, end),) = reads
        assert start == ends[-1]
        ends.append(end)
    assert ends[-1] == 100
    assert all(20 <= end - start <= 26 for start, end in pairwise(ends[:-1]))


def test_available_now_ends_at_what_was_there_at_the_start(log: sync.Log, run: Run, world: World) -> None:
    fill(log, "now-1", 30)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "20"}
    query = run(subscribePattern="now-.*", **options)
    query.planner.prepare_available_now()
    fill(log, "now-1", 30)
    assert query.trigger() == [("now-1", 0, 20)]
    log.append("now-2", [b"x"])
    world.now += DISCOVERY_S
    assert query.trigger() == [("now-1", 20, 30)]
    assert query.trigger() == []


def test_large_batches_are_divided_and_no_task_has_more_than_it_may(log: sync.Log, run: Run) -> None:
    fill(log, "divided", 100)
    options = {"startingOffsets": "earliest", "minPartitions": "3", "maxRecordsPerPartition": "30"}
    planner = run("divided", **options).planner
    start = planner.initial()
    ranges = planner.ranges(start, planner.latest(start, limited=False))
    assert [part.count for part in ranges] == [25, 25, 25, 25]
    assert [piece.segment for piece in ranges[0].lives] == [1, 2, 3]


# Who is told.


def test_whoever_pins_is_told_what_the_query_still_needs(log: sync.Log, run: Run) -> None:
    log.append("told-where", [b"x"] * 4)
    query = run("told-where", startingOffsets="earliest", groupIdPrefix="report")
    query.trigger()
    query.trigger()
    query.planner.committed(offset(query.checkpoint[-1]))
    query.planner.stopped()
    (name,) = {name for name, _ in query.pinned.told}
    assert name.startswith("report-") and query.pinned.released == [name]
    assert [places for _, places in query.pinned.told] == [
        {"default/told-where": 0},
        {"default/told-where": 0},
        {"default/told-where": 4},
        {"default/told-where": 4},
    ]


def test_a_run_that_begins_with_the_batch_of_its_checkpoint_pins_what_that_needs(
    log: sync.Log, run: Run
) -> None:
    log.append("told-again", [b"x"] * 4)
    query = run("told-again", startingOffsets="earliest", groupIdPrefix="report")
    query.trigger()
    log.append("told-again", [b"x"] * 3)
    query.trigger()
    next_run = run("told-again", after=query)
    assert next_run.again() == [("told-again", 4, 7)]
    assert next_run.pinned.told == [(query.pinned.told[0][0], {"default/told-again": 4})]


def test_the_progress_of_a_query_shows_where_its_topics_end(log: sync.Log, run: Run) -> None:
    fill(log, "progress", 30)
    query = run("progress", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert query.planner.reported() is None
    query.trigger()
    reported = query.planner.reported()
    assert reported is not None and reported.topics["default/progress"].offset == 30
