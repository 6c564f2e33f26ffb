"""The metadata as paths, in the layout of the document that these names come from: nothing is kept so.

    /topics/<ns>/<topic>/delivery                      how records are delivered
    /topics/<ns>/<topic>/subscriptions/<name>/cursor   the last offset that was acknowledged
    /storage/topics/<ns>/<topic>/segments/<start>      a sealed segment: its descriptor
    /storage/topics/<ns>/<topic>/segments/cur          the start of the newest one that is durable
    /storage/topics/<ns>/<topic>/state                 where the last handoff sealed the topic
    /cluster/unassigned/<ns>/<topic>                   a topic that nobody can append to now
    /cluster/brokers/<id>/<ns>/<topic>                 a topic whose open segment that node leads

Offsets are inclusive here, as there; inside they are not. A place that has nothing in it yet has null.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ister.metadata.nodes import is_active
from ister.metadata.state import ClusterState, SegmentState, TopicState
from ister.protocol.peer import node_of

Entry = tuple[str, Any]


def look_up(state: ClusterState, path: str, *, has_store: bool) -> tuple[bool, bytes, list[str]]:
    """Whether there is a value at this path, the value as JSON, and the names below it, in order."""
    path = "/" + path.strip("/")
    below: dict[str, None] = {}
    found, value = False, None
    start = path.rstrip("/") + "/"
    for name, at in entries(state, path, has_store=has_store):
        if name == path:
            found, value = True, at
        elif name.startswith(start):
            below[name[len(start) :].partition("/")[0]] = None
    return found, msgspec.json.encode(value) if found else b"", sorted(below, key=_order)


def _order(name: str) -> tuple[bool, int, str]:
    """Numbers first, by what they are worth."""
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def entries(state: ClusterState, path: str, *, has_store: bool) -> Iterator[Entry]:
    """All that may lie at this path or below it, and perhaps more."""
    for topic in _topics(state, path):
        yield from _of_topic(topic)
        yield from _of_storage(topic, has_store=has_store)
        yield from _of_cluster(state, topic)
    for node_id in sorted(state.nodes):
        yield f"/cluster/brokers/{node_id}", _broker(state, node_id)


def _topics(state: ClusterState, path: str) -> list[TopicState]:
    """Those that a path can be about."""
    parts = path.strip("/").split("/")
    skipped = {"topics": 1, "storage": 2, "cluster": 3 if parts[1:2] == ["brokers"] else 2}.get(parts[0], 0)
    name = "/".join(parts[skipped : skipped + 2]) if skipped else ""
    if name.count("/") == 1:
        found = state.topics.get(name)
        return [found] if found is not None else []
    return [state.topics[one] for one in sorted(state.topics)]


def _of_topic(topic: TopicState) -> Iterator[Entry]:
    yield f"/topics/{topic.name}/delivery", "Reliable"
    if topic.get_epoch:
        yield f"/topics/{topic.name}/subscriptions/get/cursor", _inclusive(topic.get_offset)
    for one in topic.subscriptions:
        yield f"/topics/{topic.name}/subscriptions/{one.name}/cursor", _inclusive(one.cursor)


def _of_storage(topic: TopicState, *, has_store: bool) -> Iterator[Entry]:
    base = f"/storage/topics/{topic.name}"
    durable: SegmentState | None = None
    for segment in topic.segments:
        if segment.is_sealed and not segment.is_empty:
            yield f"{base}/segments/{segment.base_offset:020d}", descriptor(topic, segment)
            if segment.history is not None or not has_store:
                durable = segment
    if durable is not None:
        yield f"{base}/segments/cur", f"{durable.base_offset:020d}"
    sealed = [segment for segment in topic.segments if segment.is_sealed]
    if sealed:
        last = sealed[-1]
        assert last.end_offset is not None
        yield (
            f"{base}/state",
            {
                "sealed": True,
                "last_committed_offset": _inclusive(last.end_offset),
                "broker_id": node_of(last.sealed_by),
                "timestamp": last.sealed_at_us // 1_000_000,
            },
        )


def descriptor(topic: TopicState, segment: SegmentState) -> dict[str, Any]:
    """Of a sealed segment: the object that has it, or the nodes that do."""
    found, end = segment.history, segment.data_end
    assert end is not None
    return {
        "segment_id": topic.key_of(segment),
        "start_offset": segment.base_offset,
        "end_offset": end - 1,
        "size": segment.end_position if found is None else found.size,
        "etag": None if found is None else f"{found.crc:08x}",
        "created_at": (segment.sealed_at_us if found is None else found.published_at_us) // 1_000_000,
        "completed": True,
        "first_append_time_us": None if found is None else found.first_append_time_us,
        "last_append_time_us": segment.last_append_time_us,
        "object": None if found is None else found.name,
        "position": 0 if found is None else found.position,
        "exported_by": None if found is None else node_of(found.exported_by),
        "nodes": [node_of(member) for member in segment.replicas],
    }


def _of_cluster(state: ClusterState, topic: TopicState) -> Iterator[Entry]:
    opened = topic.open_segment
    leader = node_of(opened.leader)
    if is_active(state.nodes, opened.leader) and not opened.recovery:
        yield f"/cluster/brokers/{leader}/{topic.name}", None
    else:
        reason = "failover" if opened.recovery else "node removed"
        yield f"/cluster/unassigned/{topic.name}", {"reason": reason, "from_broker": leader}


def _broker(state: ClusterState, node_id: int) -> dict[str, Any]:
    node = state.nodes[node_id]
    return {
        "disk_id": node.disk_id,
        "client": f"{node.client_host}:{node.client_port}",
        "peer": f"{node.peer_host}:{node.peer_port}",
        "starts": node.starts,
    }


def _inclusive(end: int) -> int | None:
    """The last offset before an end; None of nothing."""
    return end - 1 if end else None
