"""What only a simulation can see of the history: each command about it, as it is applied, against the store.

- An object is published, or takes the place of others: it is there, and has each segment's frames, from its
  base to its end (E1, E5).
- Copies are released: the object is there, and whole (E1). A segment is trimmed: it was published (E4).
- An object is deleted: nobody names it (E3).

In the end every segment that has records is published, every descriptor has its object, and a sweep leaves
nothing that nobody names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ister.errors import ObjectNotFound
from ister.frame import frames_in
from ister.history.format import read_footer
from ister.history.names import parse_name
from ister.metadata.commands import (
    Command,
    DeleteTopic,
    PublishObject,
    ReleaseCopies,
    ReplaceObjects,
    SealSegment,
    TrimTopic,
)
from ister.metadata.copies import find_segment
from ister.metadata.state import ClusterState, SegmentState, TopicState
from ister.testing import MemoryStore
from ister.testing.history import History
from tests.replicas_sim.copies import DurableCopies


class StoreWatch:
    def __init__(self, history: History, store: MemoryStore, copies: DurableCopies) -> None:
        self.published = self.released = self.trimmed = 0
        self._history = history
        self._store = store
        self._copies = copies
        self._sealed: dict[int, dict[int, SegmentState]] = {}
        """By topic and segment: those that are in the chain and have records."""
        self._named: dict[int, str] = {}
        """By a segment's uid: the object that its descriptor names."""
        self._was_named: set[str] = set()
        """What was replaced outlives its readers by a bound (E5)."""

    def applied(self, state: ClusterState, command: Command, topic_uid: int) -> None:
        """The first node has applied this, and it changed something."""
        topic = state.topic_by_uid(topic_uid)
        match command:
            case DeleteTopic():
                self._forget(self._sealed.pop(command.topic_uid, {}))
            case SealSegment() if topic is not None and not topic.segments[-2].is_empty:
                self._sealed.setdefault(topic.uid, {})[topic.segments[-2].uid] = topic.segments[-2]
            case TrimTopic() if topic is not None:
                self._trimmed(topic)
            case PublishObject() if topic is not None:
                segment = find_segment(topic, command.segment_uid)
                assert segment is not None
                self.published += 1
                self._name(segment.uid, command.name)
                self._check_object("E1: as published", topic, segment)
            case ReplaceObjects() if topic is not None:
                for part in command.parts:
                    segment = find_segment(topic, part.segment_uid)
                    assert segment is not None
                    self._name(segment.uid, command.name)
                    self._check_object("E5: as merged", topic, segment)
            case ReleaseCopies() if topic is not None:
                segment = find_segment(topic, command.segment_uid)
                assert segment is not None
                self.released += 1
                self._check_object("E1: as released", topic, segment)

    def _name(self, segment_uid: int, name: str) -> None:
        self._named[segment_uid] = name
        self._was_named.add(name)

    def _forget(self, segments: dict[int, SegmentState]) -> None:
        for uid in segments:
            self._named.pop(uid, None)

    def _trimmed(self, topic: TopicState) -> None:
        there = self._sealed.get(topic.uid, {})
        gone = {uid: one for uid, one in there.items() if (one.end_offset or 0) <= topic.start_offset}
        for uid, segment in gone.items():
            self.trimmed += 1
            if uid not in self._named:
                self._history.violated(f"E4: {topic.key_of(segment)} was trimmed, and is not in the history")
            del there[uid]
        self._forget(gone)

    def _check_object(self, what: str, topic: TopicState, segment: SegmentState) -> None:
        problem = self._what_is_wrong(topic, segment)
        if problem:
            self._history.violated(f"{what}, {topic.key_of(segment)} {problem}")

    def _what_is_wrong(self, topic: TopicState, segment: SegmentState) -> str:
        """With a segment's object; empty if it has all of it."""
        if segment.history is None:
            return "is not published"
        name = segment.history.name
        try:
            data = self._store.peek(name)
        except ObjectNotFound:
            return f"has no object: {name} is not in the store"
        position, size = segment.history.position, segment.history.size
        data = data[position : position + size]  # all of it, or its part of a merged one
        footer = read_footer(data, size, name)
        headers = [frame.header for frame in frames_in(data[: footer.frames_size])]
        known = self._copies.frames(segment.uid)[: len(headers)]
        ends = (headers[0].base_offset, headers[-1].end_offset)
        if (footer.segment_uid, *ends) != (segment.uid, segment.base_offset, segment.data_end):
            return f"has an object of segment {footer.segment_uid}, from {ends[0]} to {ends[1]}"
        return "" if headers[: len(known)] == known else "has an object with other frames than its replicas"

    def hooks(self) -> list[tuple[object, str, object]]:
        return [(MemoryStore, "delete", self._watched_delete(MemoryStore.delete))]

    def _watched_delete(self, delete: Callable[..., Any]) -> Callable[..., Any]:
        def watched(store: MemoryStore, name: str) -> None:
            if name in self._named.values():
                self._history.violated(f"E3: {name} was deleted, and is published")
            delete(store, name)

        return watched

    # In the end.

    def what_is_missing(self, state: ClusterState) -> str:
        """Of segments that have records; empty if all are in the store, and of their topics only what was
        named once."""
        named = set()
        for topic, segment in _with_records(state):
            problem = self._what_is_wrong(topic, segment)
            if problem:
                return f"{topic.key_of(segment)} {problem}"
            assert segment.history is not None
            named.add(segment.history.name)
        uids = {topic.uid for topic in state.topics.values()}
        for name in self._store.stored():
            parsed = parse_name(name)
            if parsed is not None and parsed.topic_uid in uids and name not in named | self._was_named:
                return f"nobody names {name}"
        return ""


def _with_records(state: ClusterState) -> Iterator[tuple[TopicState, SegmentState]]:
    for topic in state.topics.values():
        for segment in topic.segments:
            if segment.is_sealed and not segment.is_empty:
                yield topic, segment
