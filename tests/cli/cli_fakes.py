"""A log in memory in place of a broker, for tests of what the commands make of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple

from ister import frame
from ister.client.reader import Chunk
from ister.errors import ConnectionFailed, TopicExists, UnknownTopic
from ister.names import normalise_topic
from ister.protocol.messages import SegmentDescription, TopicDescription, TopicSettings
from ister.settings import validate_settings

APPENDED_AT_US = 1_700_000_000_000_000


class FakeTopic:
    def __init__(self, name: str, settings: TopicSettings) -> None:
        self.name = name
        self.settings = settings
        self.frames: list[frame.Frame] = []
        self.end = 0

    def append(self, values: Sequence[bytes | None], **columns: Any) -> range:
        made = bytearray(frame.encode(values, **columns))
        frame.stamp(made, self.end, 1, APPENDED_AT_US)
        decoded = frame.decode(made)
        assert isinstance(decoded, frame.Frame)
        self.frames.append(decoded)
        offsets = range(self.end, self.end + len(values))
        self.end = offsets.stop
        return offsets

    def describe(self) -> TopicDescription:
        size = sum(found.header.size for found in self.frames)
        segment = SegmentDescription(
            1, 5, 0, self.end, size, 1, False, APPENDED_AT_US, APPENDED_AT_US, "open"
        )
        notes = [] if self.settings.fsync == "fsync" else ["acknowledged records may be lost on power loss"]
        return TopicDescription(self.name, 4, 0, self.end, size, self.settings, [segment], 0, notes)


class FakeProducer:
    def __init__(self, topic: FakeTopic, fail_after: int | None) -> None:
        self._topic = topic
        self._fail_after = fail_after

    async def __aenter__(self) -> FakeProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def send(self, value: bytes, *, key: bytes | None = None, headers: Any = None) -> int:
        columns = {"keys": [key] if key is not None else None, "headers": [headers] if headers else None}
        return self._topic.append([value], **columns)[0]

    async def send_many(
        self, values: Sequence[bytes], *, keys: Sequence[bytes] | None = None, headers: Any = None
    ) -> range:
        if self._fail_after is not None and self._topic.end >= self._fail_after:
            raise ConnectionFailed("the broker went away")
        return self._topic.append(values, keys=keys, headers=headers)


class FakeReader(NamedTuple):
    topic: FakeTopic
    start: int
    end: int

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        wanted = [
            found
            for found in self.topic.frames
            if found.header.end_offset > self.start and found.header.base_offset < self.end
        ]
        if wanted:
            yield Chunk(wanted, self.start, self.end)


class FakeLog:
    """The part of the client's API that the command line uses."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.asked: list[str] = []
        self.fail_after: int | None = None

    async def __aenter__(self) -> FakeLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def add(self, name: str, **settings: Any) -> FakeTopic:
        full = normalise_topic(name)
        checked: dict[str, Any] = dict(validate_settings(settings))
        return self.topics.setdefault(full, FakeTopic(full, TopicSettings(**checked)))

    def _find(self, name: str) -> FakeTopic:
        full = normalise_topic(name)
        if full not in self.topics:
            raise UnknownTopic(f"there is no topic {full}")
        return self.topics[full]

    async def create_topic(self, name: str, *, if_absent: bool = False, **settings: Any) -> TopicDescription:
        if normalise_topic(name) in self.topics and not if_absent:
            raise TopicExists(f"there is a topic {name}")
        return self.add(name, **settings).describe()

    async def delete_topic(self, name: str) -> None:
        del self.topics[self._find(name).name]

    async def alter_topic(self, name: str, **settings: Any) -> TopicDescription:
        topic = self._find(name)
        now = {field: getattr(topic.settings, field) for field in TopicSettings.__struct_fields__}
        topic.settings = TopicSettings(**{**now, **settings})
        return topic.describe()

    async def describe_topic(self, name: str) -> TopicDescription:
        return self._find(name).describe()

    async def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        return [found.describe() for name, found in sorted(self.topics.items()) if name.startswith(prefix)]

    async def offsets_at(self, topic: str, when: datetime) -> int:
        found = self._find(topic)
        return 0 if when.timestamp() * 1_000_000 <= APPENDED_AT_US else found.end

    def producer(self, topic: str, **options: Any) -> FakeProducer:
        return FakeProducer(self.add(topic), self.fail_after)

    def read(self, topic: str, *, start: int, end: int | None, follow: bool) -> FakeReader:
        found = self._find(topic)
        return FakeReader(found, start, found.end if end is None else end)


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str


Ister = Callable[..., Outcome]
