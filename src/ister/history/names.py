"""Names of objects: whose they are can be read from them, and no two contents ever have one name.

    <cluster id>/<namespace>/<topic>-<topic uid>/<start>-<last>-<segment>-<segment uid>-<attempt>.ister

Offsets and uids have 20 digits, so that a list is in order. `start` and `last` are the segment's first and
last offset. The uids keep a topic that was deleted and made again from its predecessor's objects (I3), the
cluster id keeps two clusters apart that were given one place. An attempt is a number from 0 on: where what
lies under a name is not what it should be, or was abandoned, the next attempt has another name (E2, E3).
"""

from __future__ import annotations

import re
from typing import NamedTuple

SUFFIX = ".ister"
_NAME = re.compile(
    r"(?P<cluster>[^/]+)/(?P<namespace>[^/]+)/(?P<topic>[^/]+)-(?P<topic_uid>\d{20})/"
    r"(?P<start>\d{20})-(?P<last>\d{20})-(?P<segment>\d+)-(?P<uid>\d{20})-(?P<attempt>\d+)\.ister"
)


class ObjectName(NamedTuple):
    """What a name says."""

    cluster_id: str
    topic: str
    topic_uid: int
    segment: int
    segment_uid: int
    start_offset: int
    end_offset: int
    """Behind the last one."""
    attempt: int

    def __str__(self) -> str:
        return (
            f"{prefix_of(self.cluster_id, self.topic, self.topic_uid)}"
            f"{self.start_offset:020d}-{self.end_offset - 1:020d}-{self.segment}-{self.segment_uid:020d}-"
            f"{self.attempt}{SUFFIX}"
        )


def prefix_of(cluster_id: str, topic: str, topic_uid: int) -> str:
    """Of all objects of a topic, and of no other's."""
    return f"{cluster_id}/{topic}-{topic_uid:020d}/"


def parse_name(name: str) -> ObjectName | None:
    """None of a name that is not one of ours: whatever it is, it is nobody's to touch."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return ObjectName(
        found["cluster"],
        f"{found['namespace']}/{found['topic']}",
        int(found["topic_uid"]),
        int(found["segment"]),
        int(found["uid"]),
        int(found["start"]),
        int(found["last"]) + 1,
        int(found["attempt"]),
    )
