"""A log in memory in place of a broker, for tests of what the commands make of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from ister import frame
from ister.client.reader import Chunk
from ister.errors import BadRequest, ConnectionFailed, IsterError, TopicExists, UnknownTopic
from ister.names import normalise_topic
from ister.protocol.messages import (
    ClusterAnswer,
    ClusterNode,
    NodeAnswer,
    Problem,
    SegmentDescription,
    StatsAnswer,
    TopicDescription,
    TopicSettings,
)
from ister.protocol.moves import BalanceAnswer, DrainDescription, MoveDescription, NodeBurden
from ister.protocol.recovery import TopicRecovery
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
            1, 5, 0, self.end, size, 1, False, APPENDED_AT_US, APPENDED_AT_US, "open", [1, 3]
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
        self.read_from: list[str] = []
        """Who was to answer, of each reading."""
        self.fail_after: int | None = None
        self.end_unknown: IsterError | None = None
        """Why nobody can say where a topic ends; its description then shows an older end."""
        self.looks: list[ClusterAnswer | IsterError] = [cluster_of(3)]
        """What `cluster` answers, one after the other; the last one for ever."""
        self.nodes: dict[str, FakeNode] = {}
        """Who answers at other addresses."""
        self.recovery: TopicRecovery | None = None
        """How it stands with the open segment of whichever topic is asked for."""
        self.administered: list[tuple[object, ...]] = []
        self.detail = ""
        self.stages = ["done"]
        """Of the moves that there are."""
        self.drains = [0]
        """How much a drained node has, at each look; the last one for ever."""

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
        found = self._find(name).describe()
        return found if self.end_unknown is None else msgspec.structs.replace(found, end_offset=0)

    async def list_topics(self, prefix: str = "") -> list[TopicDescription]:
        return [found.describe() for name, found in sorted(self.topics.items()) if name.startswith(prefix)]

    async def offsets_at(self, topic: str, when: datetime | str) -> int:
        found = self._find(topic)
        if isinstance(when, str):
            if self.end_unknown is not None:
                raise self.end_unknown
            return {"earliest": 0, "latest": found.end}[when]
        return 0 if when.timestamp() * 1_000_000 <= APPENDED_AT_US else found.end

    async def cluster(self) -> ClusterAnswer:
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(found, IsterError):
            raise found
        return found

    async def recovery_of(self, topic: str) -> TopicRecovery:
        self._find(topic)
        assert self.recovery is not None
        return self.recovery

    async def accept_loss(self, shown: TopicRecovery, *, node_stopped: bool) -> TopicRecovery:
        self.administered.append(("accept_loss", shown.segment_uid, node_stopped))
        return msgspec.structs.replace(shown, accepted=True)

    async def transfer_leader(self, node_id: int = 0) -> NodeAnswer:
        self.administered.append(("transfer_leader", node_id))
        return NodeAnswer(node_id or 2, self.detail)

    async def add_node(self, host: str, port: int) -> NodeAnswer:
        self.administered.append(("add_node", host, port))
        return NodeAnswer(4, self.detail)

    async def remove_node(self, node_id: int, *, disk_gone: bool = False) -> NodeAnswer:
        self.administered.append(("remove_node", node_id, *(["disk gone"] if disk_gone else [])))
        if node_id == 1:
            raise BadRequest("node 1 holds the open default/events:1", hint="Move it away first.")
        return NodeAnswer(node_id, self.detail)

    def _move(self, topic: str, source: int, target: int, stage: str, move: int = 7) -> MoveDescription:
        is_over = stage in ("done", "planned", "cancelled", "failed")
        sealed = 3 if stage == "done" else 0
        return MoveDescription(
            move, topic, source, target, "operator", stage, is_over, True, 1, sealed, 22, self.detail
        )

    async def move_topic(self, name: str, node_id: int, *, plan: bool = False) -> MoveDescription:
        self.administered.append(("move_topic", name, node_id, *(["plan"] if plan else [])))
        return self._move(f"default/{name}", 1, node_id, "planned" if plan else "requested", 0 if plan else 7)

    async def unload_topic(self, name: str, *, plan: bool = False) -> MoveDescription:
        self.administered.append(("unload_topic", name))
        return self._move(f"default/{name}", 1, 2, "planned" if plan else "requested")

    async def release_topic(self, name: str) -> MoveDescription:
        self.administered.append(("release_topic", name))
        return self._move(f"default/{name}", 1, 0, "done", 0)

    async def moves(self, topic: str = "", move: int = 0) -> list[MoveDescription]:
        return [self._move("default/events", 1, 3, stage) for stage in self.stages]

    async def cancel_move(self, move: int) -> MoveDescription:
        self.administered.append(("cancel_move", move))
        return self._move("default/events", 1, 3, "cancelled", move)

    async def drain_node(
        self, node_id: int, *, dry_run: bool = False, max_parallel: int = 4
    ) -> DrainDescription:
        self.administered.append(("drain_node", node_id, "dry" if dry_run else max_parallel))
        left = self.drains[0] if len(self.drains) == 1 else self.drains.pop(0)
        return DrainDescription(node_id, not dry_run, left, 0, left, left * 1000, 0, self.detail)

    async def activate_node(self, node_id: int) -> DrainDescription:
        self.administered.append(("activate_node", node_id))
        return DrainDescription(node_id, False, 1, 0, 0, 0, 0)

    async def balance(self, *, dry_run: bool = False, strategy: str = "") -> BalanceAnswer:
        self.administered.append(("balance", "dry" if dry_run else "", strategy))
        burdens = [NodeBurden(node, 9 if node == 1 else 0, 0.0, 0.0, 0.1, 0, 0, 9.0) for node in (1, 2)]
        stage = "planned" if dry_run else "requested"
        return BalanceAnswer(
            strategy or "fair", 0.3, 1.0, 0.0, burdens, [self._move("default/events", 1, 2, stage)]
        )

    async def promote_node(self, node_id: int) -> NodeAnswer:
        self.administered.append(("promote_node", node_id))
        return NodeAnswer(node_id, self.detail)

    def producer(self, topic: str, **options: Any) -> FakeProducer:
        return FakeProducer(self.add(topic), self.fail_after)

    def read(
        self, topic: str, *, start: int, end: int | None, follow: bool, read_from: str = "leader"
    ) -> FakeReader:
        found = self._find(topic)
        self.read_from.append(read_from)
        return FakeReader(found, start, found.end if end is None else end)


class FakeNode:
    """One node of a cluster, asked at its own address."""

    def __init__(self, found: StatsAnswer | IsterError) -> None:
        self.found = found

    async def __aenter__(self) -> FakeNode:
        if isinstance(self.found, IsterError):
            raise self.found
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def stats(self) -> StatsAnswer:
        assert isinstance(self.found, StatsAnswer)
        return self.found


def cluster_of(
    count: int,
    *,
    down: Sequence[int] = (),
    leader: int = 1,
    answered_by: int = 1,
    learners: Sequence[int] = (),
    is_current: bool = True,
    problems: Sequence[Problem] = (),
) -> ClusterAnswer:
    """A cluster on one machine: clients from port 9091, peers from 6001."""

    def role(node_id: int) -> str:
        return "leader" if node_id == leader else "learner" if node_id in learners else "voter"

    nodes = [
        ClusterNode(
            node_id,
            "127.0.0.1",
            9090 + node_id,
            "127.0.0.1",
            6000 + node_id,
            role(node_id),
            node_id not in down,
            f"{node_id:08x}",
            starts=2,
            behind=12 if node_id in learners else 0,
            open_segments=node_id,
            segments=1000 * node_id,
        )
        for node_id in range(1, count + 1)
    ]
    return ClusterAnswer(
        "c-1",
        nodes,
        answered_by,
        leader,
        term=5,
        commit_index=1042,
        applied_index=1041,
        snapshot_index=1000,
        topics=6,
        segments=6000,
        is_current=is_current,
        problems=list(problems),
    )


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str


Ister = Callable[..., Outcome]


def only_object(out: bytes) -> dict[str, Any]:
    lines = out.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found
