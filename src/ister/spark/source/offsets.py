"""Where a stream is, as Spark keeps it in a checkpoint.

    {"version": 2, "cluster": "...", "reader": "...", "topics": {"default/orders": {"uid", ...}}}

Spark compares these by their text, so the keys always come in one order. What stands here is all that a
query has when it goes on after a restart, on another machine perhaps, so it says which log was read: the
cluster's id (I1) and each topic's uid (I3). A topic that was deleted and made again, or another cluster under
the same address, is never taken for the one that was read.

`began` is where the query began in the topic. Spark does not keep the place at which a query started, and
asks for it anew if the query fails in its very first batch: `latest` is somewhere else by then, and the
records in between would be missing. So the end of the batch says where it began. The same holds for a topic
that joins later. `reader` names the query for as long as its checkpoint lives.

Version 1 had neither `cluster`, nor `reader`, nor `began`; it is read, and goes on as version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ister.errors import BadRequest, UnsupportedVersion

VERSION: Final = 2


class TopicPlace(NamedTuple):
    """How far a query is in one topic."""

    uid: int
    began: int
    offset: int
    """The next one to read."""


class StreamOffset(NamedTuple):
    cluster: str
    """Empty if it is not known: then it may be any."""
    reader: str
    topics: Mapping[str, TopicPlace]

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "cluster": self.cluster,
            "reader": self.reader,
            "topics": {
                name: {"uid": place.uid, "began": place.began, "offset": place.offset}
                for name, place in sorted(self.topics.items())
            },
        }


class _Versioned(msgspec.Struct):
    version: int


class _Place1(msgspec.Struct):
    uid: int
    offset: int


class _Offset1(msgspec.Struct):
    topics: dict[str, _Place1]


class _Place2(msgspec.Struct):
    uid: int
    began: int
    offset: int


class _Offset2(msgspec.Struct):
    cluster: str
    reader: str
    topics: dict[str, _Place2]


def stream_offset(found: object) -> StreamOffset:
    """What a checkpoint has, of this version or an older one."""
    try:
        version = msgspec.convert(found, _Versioned).version
        if version > VERSION:
            raise UnsupportedVersion(
                f"the checkpoint has offsets of version {version}; this Ister reads up to version {VERSION}",
                hint="Run the query with the newer Ister that wrote the checkpoint, or with a fresh one.",
            )
        if version == 1:
            first = msgspec.convert(found, _Offset1)
            old = {name: TopicPlace(at.uid, 0, at.offset) for name, at in first.topics.items()}
            return StreamOffset("", "", old)
        second = msgspec.convert(found, _Offset2)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"the checkpoint has {found!r}, which is no offset of a stream of Ister: {error}",
            hint="Give a checkpointLocation of this query, or a fresh one.",
        ) from error
    places = {name: TopicPlace(at.uid, at.began, at.offset) for name, at in second.topics.items()}
    return StreamOffset(second.cluster, second.reader, places)
