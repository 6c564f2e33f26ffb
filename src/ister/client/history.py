"""The part of a log about the history, and what the metadata has."""

from __future__ import annotations

from typing import Final

from ister.client.requests import Part
from ister.names import normalise_topic
from ister.protocol.codec import decode_header, encode_header
from ister.protocol.history import (
    Explain,
    Explanation,
    HistoryList,
    HistorySwept,
    ListHistory,
    LookedUp,
    LookUp,
    MergeObjects,
    ObjectsMerged,
    ObjectVerified,
    ReplacedPart,
    SweepHistory,
    VerifyObject,
)
from ister.protocol.messages import Kind

VERIFY_SECONDS: Final = 600.0
"""How long a node may read one object of the history before it is asked again."""


class HistoryOfTopics(Part):
    """The history, and what the metadata has."""

    async def history(self, topic: str, start: int = 0, end: int = 0) -> HistoryList:
        """What of a topic is in the history, segment by segment, and what waits for it; of segments that have
        offsets from `start` to before `end` only, if that is given."""
        name = normalise_topic(topic)
        request = encode_header(ListHistory(name, start, end))
        answer = await self.requests.call(f"listing the history of {name}", Kind.LIST_HISTORY, request)
        return decode_header(HistoryList, answer.header or answer.payload)

    async def verify_object(self, topic: str, topic_uid: int, segment_uid: int) -> ObjectVerified:
        """Have a node read the object of a segment to its end."""
        name = normalise_topic(topic)
        request = encode_header(VerifyObject(name, topic_uid, segment_uid))
        what = f"verifying the history of {name}"
        answer = await self.requests.call(what, Kind.VERIFY_OBJECT, request, wait_s=VERIFY_SECONDS)
        return decode_header(ObjectVerified, answer.header)

    async def sweep_history(self, topic: str) -> list[str]:
        """Delete the objects of a topic that no descriptor names, and none will; which these were. Also of a
        topic that was deleted."""
        name = normalise_topic(topic)
        request = encode_header(SweepHistory(name))
        what = f"sweeping the history of {name}"
        answer = await self.requests.call(what, Kind.SWEEP_HISTORY, request, wait_s=VERIFY_SECONDS)
        return decode_header(HistorySwept, answer.header or answer.payload).deleted

    async def merge_objects(
        self, topic: str, topic_uid: int, attempt: int, parts: list[ReplacedPart]
    ) -> ObjectsMerged:
        """Let a merged object take the place of those of its segments, all of them or none."""
        name = normalise_topic(topic)
        request = encode_header(MergeObjects(name, topic_uid, attempt, parts))
        answer = await self.requests.call(f"replacing objects of {name}", Kind.MERGE_OBJECTS, request)
        return decode_header(ObjectsMerged, answer.header or answer.payload)

    async def look_up(self, path: str) -> LookedUp:
        """What of the metadata is at a path, and below it."""
        answer = await self.requests.call(f"looking up {path}", Kind.LOOK_UP, encode_header(LookUp(path)))
        return decode_header(LookedUp, answer.header or answer.payload)

    async def explain(self, topic: str, offset: int) -> Explanation:
        """Where a record is, and who has it."""
        name = normalise_topic(topic)
        request = encode_header(Explain(name, offset))
        answer = await self.requests.call(f"explaining offset {offset} of {name}", Kind.EXPLAIN, request)
        return decode_header(Explanation, answer.header or answer.payload)
