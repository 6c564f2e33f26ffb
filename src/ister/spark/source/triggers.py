"""What a stream reads next: the driver's side of a streaming query, which lives as long as the query does.

At each trigger Spark asks how far the next micro-batch may reach, writes that into the checkpoint, and then
has the ranges planned. Only what is in the checkpoint survives a crash; nothing here decides a second time
what stands there already.

What can happen under a running query, and is never fewer rows in silence (promise 5): the topic is trimmed
past the place of the query, deleted, made again under its name, or ends before that place, as with another
data directory; records are given up by an operator, which a task finds. Each is an error with the offsets, or
with failOnDataLoss=false a warning, after which the query goes on with what is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from ister import sync
from ister.errors import ConfigError, UnknownTopic
from ister.io.clock import Clock, monotonic
from ister.protocol.messages import TopicDescription
from ister.spark.locating import locate
from ister.spark.options import StreamOptions
from ister.spark.ranges import HOT, Loss, OffsetRange
from ister.spark.source.limits import Admission, at_most, at_most_bytes, gaps_of
from ister.spark.source.offsets import StreamOffset, TopicPlace
from ister.spark.source.pin import ReaderPin
from ister.spark.source.planning import clip, described, divide, offset_at, topics_now

WAIT_S: Final = 0.1
"""How long a trigger that finds nothing waits for a record: Spark would ask a hundred times a second."""
_WAIT_FOR_EACH_S: Final = 0.005
_LONGEST_WAIT_S: Final = 1.0
DISCOVERY_S: Final = 1.0
"""How often it is asked whether there are more topics."""


class StreamPlanner:
    def __init__(
        self,
        options: StreamOptions,
        found: sync.Log,
        clock: Clock,
        pin: ReaderPin,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._options = options
        self._found = found
        self._now = now
        self._pin = pin
        self._loss = Loss(options.read.fail_on_data_loss)
        self._admission = Admission(options.limits, now)
        self._initial: StreamOffset | None = None
        self._latest: StreamOffset | None = None
        self._last_look: float | None = None
        self._target: dict[str, TopicPlace] | None = None
        """With AvailableNow: where everything ends, for this query."""
        self._reader = f"{options.name or 'spark'}-{clock.token():016x}"

    # Where it begins.

    def initial(self) -> StreamOffset:
        """The same each time: Spark asks until the first batch is done."""
        if self._initial is None:
            read = self._options.read
            topics = topics_now(self._found, read.subscription)
            read.start.check(topics)
            self._last_look = self._now()
            places = {topic: self._first_place(described(self._found, topic)) for topic in topics}
            self._initial = StreamOffset(self._found.cluster_id, self._reader, places)
        return self._initial

    def _first_place(self, there: TopicDescription) -> TopicPlace:
        start = offset_at(self._found, there, self._options.read.start.of(there.topic))
        if start > there.end_offset:
            self._loss.report(there.topic, there.end_offset, start, f"the topic ends at {there.end_offset}")
        # What was dropped before it is reported with the first batch, as it is with every other one.
        start = min(start, there.end_offset)
        return TopicPlace(there.uid, start, start)

    def prepare_available_now(self) -> None:
        """This query ends with what is there now, whatever is appended meanwhile."""
        topics = topics_now(self._found, self._options.read.subscription)
        self._target = {}
        for topic in topics:
            # One that is not there is told of where it is missed, by what the checkpoint knows.
            with suppress(UnknownTopic):
                there = described(self._found, topic)
                self._target[topic] = TopicPlace(there.uid, there.start_offset, there.end_offset)

    # How far the next batch reaches.

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset:
        """Where a batch that begins at `start` ends; `start` itself if there is nothing to read yet."""
        start = self._adopted(start)
        self._pin.hold(start.reader, start.topics)
        places = self._joined(self._subscribed(start.topics))
        ends = self._ends(places)
        taken = self._taken(places, ends, limited)
        has_nothing = not any(taken[topic] > places[topic].offset for topic in places)
        if has_nothing and self._target is None and self._wait(ends):
            ends = self._ends(places)
            taken = self._taken(places, ends, limited)
        self._latest = _at(start, places, ends)
        return _at(start, places, taken)

    def reported(self) -> StreamOffset | None:
        """Where the topics ended when that was asked last, for the progress of the query."""
        return self._latest

    def _adopted(self, start: StreamOffset) -> StreamOffset:
        """This run goes on under the name that the checkpoint has for the query."""
        cluster = self._found.cluster_id
        if start.cluster not in ("", cluster):
            raise ConfigError(
                f"the checkpoint is of cluster {start.cluster}, and {self._options.read.bootstrap} is "
                f"cluster {cluster}",
                hint="Give the bootstrap.servers of that cluster, or a fresh checkpointLocation.",
            )
        if start.reader:
            return StreamOffset(cluster, start.reader, start.topics)
        places = {topic: place._replace(began=place.offset) for topic, place in start.topics.items()}
        return StreamOffset(cluster, self._reader, places)

    def _subscribed(self, places: Mapping[str, TopicPlace]) -> dict[str, TopicPlace]:
        """Without topics that the options do not name any more."""
        subscribed = set(self._options.read.subscription.among(places))
        for topic, place in places.items():
            if topic not in subscribed:
                why = "the query read this topic before, and its options do not name it any more"
                self._loss.report(topic, place.offset, None, why)
        return {topic: place for topic, place in places.items() if topic in subscribed}

    def _joined(self, places: dict[str, TopicPlace]) -> dict[str, TopicPlace]:
        """With topics that have appeared since, from their first record on."""
        if not self._should_look(places):
            return places
        self._last_look = self._now()
        for topic in topics_now(self._found, self._options.read.subscription):
            if topic not in places and (self._target is None or topic in self._target):
                place = self._joining(topic)
                if place is not None:
                    places[topic] = place
        return places

    def _should_look(self, places: Mapping[str, TopicPlace]) -> bool:
        subscription = self._options.read.subscription
        if subscription.pattern is None and places.keys() >= set(subscription.topics):
            return False
        return self._last_look is None or self._now() - self._last_look >= DISCOVERY_S

    def _joining(self, topic: str) -> TopicPlace | None:
        """From its first record, also where the first ones are gone: that is reported when they are read."""
        try:
            return TopicPlace(self._found.describe_topic(topic).uid, 0, 0)
        except UnknownTopic:
            return None

    def _ends(self, places: dict[str, TopicPlace]) -> dict[str, int]:
        """Where each topic ends. Those that are not there any more leave `places`, or begin anew in it."""
        found = self._found.ends_of({topic: place.uid for topic, place in places.items()})
        ends: dict[str, int] = {}
        for topic, end in found.items():
            place = places[topic]
            if end is None:
                end = self._replaced(topic, places)
                if end is None:
                    continue
            elif end < place.offset:
                why = f"the topic ends at {end}, before the place that the query had read up to"
                self._loss.report(topic, end, place.offset, why)
                places[topic] = place._replace(offset=end)
            ends[topic] = end if self._target is None else self._target_of(topic, places[topic], end)
        return ends

    def _replaced(self, topic: str, places: dict[str, TopicPlace]) -> int | None:
        """The end of the topic that has the name now, which the query reads from its first record on."""
        place = places.pop(topic)
        joining = self._joining(topic)
        how = "deleted" if joining is None else "deleted and made again"
        self._loss.report(
            topic, place.offset, None, f"the topic (uid {place.uid}) was {how} under this query"
        )
        if joining is None:
            return None
        places[topic] = joining
        return self._found.ends_of({topic: joining.uid})[topic]

    def _target_of(self, topic: str, place: TopicPlace, end: int) -> int:
        assert self._target is not None
        target = self._target.get(topic)
        if target is None or target.uid != place.uid:
            return place.offset  # it was not there when the query began
        return max(place.offset, min(end, target.offset))

    def _taken(
        self, places: Mapping[str, TopicPlace], ends: Mapping[str, int], limited: bool
    ) -> dict[str, int]:
        """Where the batch ends in each topic: the end, or what the limits leave of it."""
        limits = self._options.limits
        spans = {topic: (places[topic].offset, end) for topic, end in ends.items()}
        count = sum(end - start for start, end in spans.values())
        if not limited:
            return dict(ends)
        if self._target is None and not self._admission.admits(count):
            return {topic: start for topic, (start, _) in spans.items()}
        if count and limits.max_bytes is not None:
            segments = {topic: there.segments for topic, there in self._described(spans).items()}
            by_bytes = at_most_bytes(limits.max_bytes, spans, segments)
            spans = {topic: (start, by_bytes[topic]) for topic, (start, _) in spans.items()}
        if limits.max_offsets is not None and count > limits.max_offsets:
            gaps = {topic: gaps_of(there) for topic, there in self._described(spans).items()}
            return at_most(limits.max_offsets, spans, gaps)
        return {topic: end for topic, (_, end) in spans.items()}

    def _described(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Those that are there; of one that was deleted a moment ago the next trigger hears."""
        found = {}
        for topic in topics:
            with suppress(UnknownTopic):
                found[topic] = self._found.describe_topic(topic)
        return found

    def _wait(self, ends: Mapping[str, int]) -> bool:
        seconds = min(_LONGEST_WAIT_S, max(WAIT_S, _WAIT_FOR_EACH_S * len(ends)))
        return self._found.wait_for_records(ends, seconds)

    # Who reads what.

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The tasks of the batch between two offsets. `end` is what counts: the start of a first batch that
        is done again was asked for anew, and is another one now."""
        read = self._options.read
        is_again = start.reader != end.reader
        needed: dict[str, TopicPlace] = {}
        for topic, place in end.topics.items():
            before = None if is_again else start.topics.get(topic)
            first = place.began if before is None or before.uid != place.uid else before.offset
            needed[topic] = place._replace(offset=min(first, place.offset))
        # A run that begins with a batch that its checkpoint has asks for no `latest` before that is done.
        self._pin.hold(end.reader or self._reader, needed)
        whole: list[OffsetRange] = []
        for topic, place in needed.items():
            if place.offset < end.topics[topic].offset:
                whole += self._range(topic, place.uid, place.offset, end.topics[topic].offset)
        return divide(whole, os.cpu_count() or 1, read.min_partitions, read.max_records_per_partition)

    def _range(self, topic: str, uid: int, start: int, end: int) -> Iterable[OffsetRange]:
        try:
            there = self._found.describe_topic(topic)
        except UnknownTopic:
            self._loss.report(topic, start, end, f"the topic (uid {uid}) was deleted under this query")
            return []
        if there.uid != uid:
            why = f"the topic (uid {uid}) was deleted and made again under this query"
            self._loss.report(topic, start, end, why)
            return []
        if there.end_offset < end:
            there = described(self._found, topic)
        first, last = clip(there, start, end, self._loss)
        tier = self._options.read.tier
        lives = () if tier == HOT else locate(self._found, topic, uid, first, last, there)
        return [OffsetRange(topic, uid, first, last, lives)]

    # What is done.

    def committed(self, end: StreamOffset) -> None:
        self._pin.hold(end.reader or self._reader, end.topics)

    def stopped(self) -> None:
        self._pin.release(self._reader if self._latest is None else self._latest.reader)


def _at(start: StreamOffset, places: Mapping[str, TopicPlace], offsets: Mapping[str, int]) -> StreamOffset:
    moved = {topic: places[topic]._replace(offset=offset) for topic, offset in offsets.items()}
    return StreamOffset(start.cluster, start.reader, moved)
